package audit

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
)

// sorter sorts entries, which may be more than memory holds. Entries are byte strings. It sorts as many as memory
// holds, and writes each such run to a file; the runs are merged when they are read. So it needs the same memory
// whatever the entries are. The file has no name, so that the system removes it with the process, whatever ends that.
// A sorter is for one goroutine.
type sorter struct {
	file  *os.File
	end   int64
	limit int // bytes of entries in memory
	block []byte
	refs  []ref // the entries in block
	runs  []part
}

// ref is the place of an entry in memory, part that of a sorted run in the file. head is the first bytes of the
// entry, which decide most comparisons.
type (
	ref struct {
		head     uint64
		at, size uint32
	}
	part struct{ at, size int64 }
)

const (
	// runBuffer is the memory for reading a run while runs are merged.
	runBuffer = 32 << 10
	// leastBlock and mostBlock bound the memory for entries. Larger blocks would not make the merging faster.
	leastBlock, mostBlock = 64 << 10, 1 << 30
)

// newSorter creates a sorter with a file in a directory; "": the system's temporary directory.
func newSorter(dir string, memory int64) (*sorter, error) {
	f, err := os.CreateTemp(dir, "outboxcdc-*")
	if err != nil {
		return nil, err
	}
	return &sorter{file: f, limit: int(min(max(memory, leastBlock), mostBlock))}, os.Remove(f.Name())
}

// add adds a copy of an entry.
func (s *sorter) add(entry []byte) error {
	const refBytes = 16
	if len(s.refs) > 0 && len(s.block)+len(entry)+refBytes*(len(s.refs)+1) > s.limit {
		if err := s.flush(); err != nil {
			return err
		}
	}
	var head [8]byte
	copy(head[:], entry)
	s.refs = append(s.refs, ref{binary.BigEndian.Uint64(head[:]), uint32(len(s.block)), uint32(len(entry))})
	s.block = append(s.block, entry...)
	return nil
}

func (s *sorter) at(r ref) []byte {
	end := r.at + r.size
	return s.block[r.at:end:end]
}

func (s *sorter) sort() {
	slices.SortFunc(s.refs, func(a, b ref) int {
		if a.head != b.head {
			return cmp.Compare(a.head, b.head)
		}
		return bytes.Compare(s.at(a), s.at(b))
	})
}

// flush writes what is in memory as a run.
func (s *sorter) flush() error {
	s.sort()
	w := s.writer()
	for _, r := range s.refs {
		w.add(s.at(r))
	}
	s.block, s.refs = s.block[:0], s.refs[:0]
	if cap(s.block) > 2*s.limit { // of a huge entry
		s.block = nil
	}
	return s.close(w)
}

// runWriter writes a run at the end of the file.
type runWriter struct {
	w    *bufio.Writer
	head []byte
	size int64
}

func (s *sorter) writer() *runWriter {
	return &runWriter{w: bufio.NewWriterSize(io.NewOffsetWriter(s.file, s.end), runBuffer)}
}

// add writes an entry. An error is returned by close.
func (w *runWriter) add(entry []byte) {
	w.head = binary.AppendUvarint(w.head[:0], uint64(len(entry)))
	w.w.Write(w.head) //nolint:errcheck // Flush returns the error
	w.w.Write(entry)  //nolint:errcheck // Flush returns the error
	w.size += int64(len(w.head) + len(entry))
}

func (s *sorter) close(w *runWriter) error {
	if err := w.w.Flush(); err != nil {
		return fmt.Errorf("write a temporary file (TMPDIR chooses the directory): %w", err)
	}
	s.runs = append(s.runs, part{s.end, w.size})
	s.end += w.size
	return nil
}

// each calls fn with all entries in their order. An entry is valid until fn returns. each can be called again.
func (s *sorter) each(fn func(entry []byte) error) error {
	most := max(2, s.limit/runBuffer)
	for len(s.runs) > most {
		some := s.runs[:most]
		w := s.writer()
		if err := s.merge(some, nil, func(entry []byte) error { w.add(entry); return nil }); err != nil {
			return err
		}
		s.runs = slices.Clone(s.runs[most:])
		if err := s.close(w); err != nil {
			return err
		}
	}
	s.sort()
	return s.merge(s.runs, s.refs, fn)
}

// source is a sorted list of entries: a run, or what is in memory.
type source struct {
	entry []byte
	run   *bufio.Reader
	refs  []ref
}

// next advances to the next entry. It reports false at the end.
func (s *sorter) next(from *source) (bool, error) {
	if from.run == nil {
		if len(from.refs) == 0 {
			return false, nil
		}
		from.entry, from.refs = s.at(from.refs[0]), from.refs[1:]
		return true, nil
	}
	n, err := binary.ReadUvarint(from.run)
	if errors.Is(err, io.EOF) {
		return false, nil
	}
	if err == nil {
		from.entry = slices.Grow(from.entry[:0], int(n))[:n]
		_, err = io.ReadFull(from.run, from.entry)
	}
	if err != nil {
		return false, fmt.Errorf("read a temporary file: %w", err)
	}
	return true, nil
}

func (s *sorter) merge(runs []part, refs []ref, fn func(entry []byte) error) error {
	heap := make(sources, 0, len(runs)+1)
	all := []*source{{refs: refs}}
	for _, r := range runs {
		all = append(all, &source{run: bufio.NewReaderSize(io.NewSectionReader(s.file, r.at, r.size), runBuffer)})
	}
	for _, from := range all {
		if more, err := s.next(from); err != nil {
			return err
		} else if more {
			heap = append(heap, from)
		}
	}
	for i := len(heap)/2 - 1; i >= 0; i-- {
		heap.down(i)
	}
	for len(heap) > 0 {
		if err := fn(heap[0].entry); err != nil {
			return err
		}
		more, err := s.next(heap[0])
		if err != nil {
			return err
		}
		if !more {
			last := len(heap) - 1
			heap[0], heap = heap[last], heap[:last]
		}
		heap.down(0)
	}
	return nil
}

// sources is a heap: the least entry is that of the first one.
type sources []*source

func (h sources) down(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(h); child++ {
			if bytes.Compare(h[child].entry, h[least].entry) < 0 {
				least = child
			}
		}
		if least == i {
			return
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}

// remove closes the file, and with it removes it.
func (s *sorter) remove() error { return s.file.Close() }
