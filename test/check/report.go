package check

import (
	"fmt"
	"strings"
)

// Report says what was found. Each entry of a list describes one row or record.
type Report struct {
	Rows    int // in the truth
	Records int // read
	Repeats int // records beyond the first of an id: allowed after a fault, if identical

	Missing      []string // a row without a record
	Phantom      []string // a record without a row
	OutOfOrder   []string // a first delivery that was not the next of its key
	BadRepeats   []string // a repeat that differs from the first delivery
	WrongContent []string // a first delivery with another topic, key or value than its row
	Misplaced    []string // a key in two partitions of a topic
	Invalid      []string // faults of the truth or the reader: nothing above can be relied on
}

func (r *Report) lists() []struct {
	name    string
	entries []string
} {
	return []struct {
		name    string
		entries []string
	}{
		{"invalid", r.Invalid},
		{"missing", r.Missing},
		{"phantom", r.Phantom},
		{"out of order", r.OutOfOrder},
		{"bad repeats", r.BadRepeats},
		{"wrong content", r.WrongContent},
		{"misplaced", r.Misplaced},
	}
}

// OK reports whether the promise was kept. Repeats alone do not break it; a test without faults checks that there are
// none.
func (r Report) OK() bool {
	for _, l := range r.lists() {
		if len(l.entries) > 0 {
			return false
		}
	}
	return true
}

// String is one line, and the first few entries of each kind of defect.
func (r Report) String() string {
	const few = 5
	var b strings.Builder
	verdict := "ok"
	if !r.OK() {
		verdict = "FAILED"
	}
	fmt.Fprintf(&b, "%s: %d rows, %d records, %d repeats", verdict, r.Rows, r.Records, r.Repeats)
	for _, l := range r.lists() {
		if len(l.entries) > 0 {
			fmt.Fprintf(&b, ", %d %s", len(l.entries), l.name)
		}
	}
	for _, l := range r.lists() {
		for i, e := range l.entries {
			if i == few {
				fmt.Fprintf(&b, "\n  %s: … and %d more", l.name, len(l.entries)-few)
				break
			}
			fmt.Fprintf(&b, "\n  %s: %s", l.name, e)
		}
	}
	return b.String()
}
