package kafka

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// dealt is which offsets of a partition are dealt with: all in front of next, and those of the spans behind it. Next is the
// group's committed offset and the spans are the metadata of that commit, so that Kafka keeps both together, and tools that
// know nothing of spans see a lag that is never too small.
type dealt struct {
	next  int64
	spans []span // behind next, in order, neither touching nor overlapping
}

// span is offsets from first to last.
type span struct{ first, last int64 }

func (d *dealt) has(offset int64) bool {
	return offset < d.next || slices.ContainsFunc(d.spans, func(s span) bool { return s.first <= offset && offset <= s.last })
}

// openBefore is how many offsets in front of end are not dealt with.
func (d *dealt) openBefore(end int64) int64 {
	n := max(0, end-d.next)
	for _, s := range d.spans {
		n -= max(0, min(s.last+1, end)-s.first)
	}
	return n
}

// add deals with the offsets from first to last.
func (d *dealt) add(first, last int64) {
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

// pass is add for offsets that are nobody's letters. It begins no span of its own: they could be many.
func (d *dealt) pass(first, last int64) {
	if first <= d.next || d.has(first-1) {
		d.add(first, last)
	}
}

// room says whether one more offset can be noted: Kafka bounds the metadata of a commit (offset.metadata.max.bytes).
func (d *dealt) room(offset int64) bool {
	try := dealt{next: d.next, spans: slices.Clone(d.spans)}
	try.add(offset, offset)
	return len(try.metadata()) <= maxMetadata
}

const (
	// maxMetadata is a little less than Kafka's default of 4096.
	maxMetadata = 4000
	// dealtPrefix tells our metadata from that of other tools.
	dealtPrefix = "outboxcdc dealt with "
)

// metadata writes the spans: "outboxcdc dealt with 17,19-22".
func (d *dealt) metadata() string {
	if len(d.spans) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString(dealtPrefix)
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

// parseDealt reads what was committed. Metadata of somebody else's commit means nothing; of ours, damaged, is an error: to
// forget it would send letters twice.
func parseDealt(next int64, metadata string) (dealt, error) {
	d := dealt{next: max(next, 0)}
	list, ours := strings.CutPrefix(metadata, dealtPrefix)
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
