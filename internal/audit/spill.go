package audit

import (
	"encoding/binary"
	"fmt"
	"os"
)

const (
	// buckets is how many parts the entries of a spill are spread over. One of them at a time is read back into memory.
	buckets = 256
	// chunkBytes is how much of a bucket is collected in memory before it is written.
	chunkBytes = 32 << 10
)

// spill holds entries on disk, in buckets by the hash of what they are joined by. Entries are byte strings. The file has no name, so that
// the system removes it with the process, whatever ends that. A spill is for one goroutine.
type spill struct {
	file *os.File
	end  int64
	all  [buckets]bucket
}

// bucket is a part of a spill: chunks of the file, and what has not been written yet.
type bucket struct {
	chunks []chunk
	rest   []byte
	size   int64
}

type chunk struct{ at, size int64 }

// newSpill creates a spill in a directory; "": the system's temporary directory.
func newSpill(dir string) (*spill, error) {
	f, err := os.CreateTemp(dir, "outboxcdc-*")
	if err != nil {
		return nil, err
	}
	return &spill{file: f}, os.Remove(f.Name())
}

// add appends an entry to the bucket of hash.
func (s *spill) add(hash uint64, entry []byte) error {
	b := &s.all[hash%buckets]
	before := len(b.rest)
	b.rest = append(binary.AppendUvarint(b.rest, uint64(len(entry))), entry...)
	b.size += int64(len(b.rest) - before)
	if len(b.rest) < chunkBytes {
		return nil
	}
	if _, err := s.file.WriteAt(b.rest, s.end); err != nil {
		return fmt.Errorf("write a temporary file (TMPDIR chooses the directory): %w", err)
	}
	b.chunks = append(b.chunks, chunk{s.end, int64(len(b.rest))})
	s.end += int64(len(b.rest))
	b.rest = b.rest[:0]
	return nil
}

// read returns the entries of a bucket, which share one block of memory, in the order in which they were added. limit is the maximum size.
func (s *spill) read(i int, limit int64) ([][]byte, error) {
	b := &s.all[i]
	if b.size > limit {
		return nil, fmt.Errorf("one part of %d of the comparison takes %d MiB of memory: set --memory to that, at least", buckets, b.size*memoryFactor>>20+1)
	}
	block := make([]byte, b.size)
	n := int64(0)
	for _, c := range b.chunks {
		if _, err := s.file.ReadAt(block[n:n+c.size], c.at); err != nil {
			return nil, fmt.Errorf("read a temporary file: %w", err)
		}
		n += c.size
	}
	copy(block[n:], b.rest)
	var entries [][]byte
	for len(block) > 0 {
		n, head := binary.Uvarint(block)
		if head <= 0 || n > uint64(len(block)-head) {
			return nil, errDamaged
		}
		end := head + int(n)
		entries = append(entries, block[head:end:end])
		block = block[end:]
	}
	return entries, nil
}

// close closes the file, and with it removes it.
func (s *spill) close() error { return s.file.Close() }
