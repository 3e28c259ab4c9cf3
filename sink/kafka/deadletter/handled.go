package deadletter

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// handled is the set of handled offsets of a partition: all offsets before next, and those of the spans. Next is the
// group's committed offset and the spans are the metadata of that commit, so Kafka stores both together, and tools
// that do not know the spans show a lag that is never too small.
type handled struct {
	next  int64
	spans []span // after next, in order, neither adjacent nor overlapping
}

// span is the offsets from first to last.
type span struct{ first, last int64 }

func (d *handled) clone() handled { return handled{d.next, slices.Clone(d.spans)} }

func (d *handled) has(offset int64) bool {
	if offset < d.next {
		return true
	}
	_, found := slices.BinarySearchFunc(d.spans, offset, func(s span, offset int64) int {
		switch {
		case s.last < offset:
			return -1
		case s.first > offset:
			return 1
		}
		return 0
	})
	return found
}

// openBefore returns how many offsets before end are not handled.
func (d *handled) openBefore(end int64) int64 {
	n := max(0, end-d.next)
	for _, s := range d.spans {
		n -= max(0, min(s.last+1, end)-s.first)
	}
	return n
}

// add adds the offsets from first to last.
func (d *handled) add(first, last int64) {
	if first = max(first, d.next); first > last {
		return
	}
	i := 0
	for i < len(d.spans) && d.spans[i].last+1 < first {
		i++
	}
	j := i
	for ; j < len(d.spans) && d.spans[j].first <= last+1; j++ {
		first, last = min(first, d.spans[j].first), max(last, d.spans[j].last)
	}
	d.spans = slices.Replace(d.spans, i, j, span{first, last})
	if d.spans[0].first == d.next {
		d.next = d.spans[0].last + 1
		d.spans = d.spans[1:]
	}
}

// skip is add for offsets without a dead letter of this slot. It does not start a new span: there could be too many.
func (d *handled) skip(first, last int64) {
	if first <= d.next || d.has(first-1) {
		d.add(first, last)
	}
}

// hasRoom reports whether one more offset can be stored: Kafka limits the metadata of a commit
// (offset.metadata.max.bytes).
func (d *handled) hasRoom(offset int64) bool {
	try := d.clone()
	try.add(offset, offset)
	return len(try.metadata()) <= maxMetadata
}

const (
	// maxMetadata is slightly less than Kafka's default of 4096.
	maxMetadata = 4000
	// prefix distinguishes our metadata from that of other tools. It is stored in Kafka, so it must not change.
	prefix = "outboxcdc dealt with "
)

// metadata writes the spans: "outboxcdc dealt with 17,19-22".
func (d *handled) metadata() string {
	if len(d.spans) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString(prefix)
	for i, s := range d.spans {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatInt(s.first, 10))
		if s.last > s.first {
			b.WriteString("-" + strconv.FormatInt(s.last, 10))
		}
	}
	return b.String()
}

// parseHandled reads a committed offset and its metadata. It ignores metadata of other tools. Damaged metadata is an
// error, because the dead letters that it lists would be sent twice.
func parseHandled(next int64, metadata string) (handled, error) {
	d := handled{next: max(next, 0)}
	list, ours := strings.CutPrefix(metadata, prefix)
	if !ours {
		return d, nil
	}
	for text := range strings.SplitSeq(list, ",") {
		from, to, two := strings.Cut(text, "-")
		if !two {
			to = from
		}
		first, err := strconv.ParseInt(from, 10, 64)
		last, err2 := strconv.ParseInt(to, 10, 64)
		if err != nil || err2 != nil || last < first {
			return d, fmt.Errorf("the metadata of the committed offset is damaged at %q", text)
		}
		d.add(first, last)
	}
	return d, nil
}
