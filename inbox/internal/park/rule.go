// Package park decides what becomes of the records that a handler cannot handle. rule.go and retry.go decide, without
// I/O; tables.go has the statements.
//
// A parked key is a row, and its records are rows that refer to it. Three locks of that row keep batches and retries
// apart:
//
//   - A batch takes KEY SHARE before it handles or adds records of the key. It never waits for a handler.
//   - A retry takes NO KEY UPDATE before it reads the oldest record. It excludes other retries, and not batches.
//   - The deletion of the row takes UPDATE, and then sees that no records are left. It excludes batches that add some.
package park

import (
	"slices"
	"strings"
	"time"
)

// Rule says when a record is tried again.
type Rule struct {
	Schedule []time.Duration // the upper bound of each pause
	Release  bool            // a dead record leaves its key
	Random   func() float64  // at least 0 and below 1
}

// Next is what becomes of a key whose oldest record has failed.
type Next struct {
	Wait    time.Duration // until the next try
	IsDead  bool          // no further try
	IsAside bool          // the dead record leaves its key, which goes on with the next one
}

// AfterFailure decides about a record that has failed so many times; the first failure was the one in its batch.
func (r Rule) AfterFailure(failures int, isAlone bool) Next {
	if failures > len(r.Schedule) {
		return Next{IsDead: true, IsAside: r.Release && !isAlone}
	}
	return Next{Wait: time.Duration(r.Random() * float64(r.Schedule[failures-1]))}
}

// Record is a record of Kafka.
type Record struct {
	Partition   int32
	Offset      int64
	LeaderEpoch int32
	TimestampMs int64
	Key         []byte // nil: none
	Value       []byte // nil: a tombstone
	Headers     [][2][]byte
	ID          string // of the event
}

// Header returns the value of the first header of a name.
func (r *Record) Header(name string) (value string, ok bool) {
	for _, h := range r.Headers {
		if string(h[0]) == name {
			return string(h[1]), true
		}
	}
	return "", false
}

// Batch collects the records of a batch that are parked. The batch's transaction has locked the mark of its partition.
type Batch struct {
	held    map[string]bool // the keys whose records are parked: those that were before the batch, and those of failed records
	entries map[int]Entry   // by the index in the batch
}

// Entry is a record that is parked.
type Entry struct {
	Record
	Failure string // why it opens a key; empty: it is parked behind others
}

// NewBatch begins a batch. held are those of its keys that are parked.
func NewBatch(held [][]byte) *Batch {
	b := &Batch{held: map[string]bool{}, entries: map[int]Entry{}}
	for _, key := range held {
		b.held[string(key)] = true
	}
	return b
}

// IsHeld reports whether a record has to be parked behind others, without a call of the handler.
func (b *Batch) IsHeld(key []byte) bool { return key != nil && b.held[string(key)] }

// Behind parks a record behind earlier ones of its key.
func (b *Batch) Behind(index int, r Record) { b.entries[index] = Entry{Record: r} }

// Fail parks a record that has failed.
func (b *Batch) Fail(index int, r Record, cause error) {
	b.entries[index] = Entry{Record: r, Failure: errorText(cause)}
	if r.Key != nil {
		b.held[string(r.Key)] = true
	}
}

// Entries returns the parked records in their order.
func (b *Batch) Entries() []Entry {
	order := make([]int, 0, len(b.entries))
	for i := range b.entries {
		order = append(order, i)
	}
	slices.Sort(order)
	out := make([]Entry, len(order))
	for i, index := range order {
		out[i] = b.entries[index]
	}
	return out
}

// maxError is the maximum length of a stored error.
const maxError = 8 << 10

// errorText returns the text of an error as Postgres can store it. It is never empty.
func errorText(err error) string {
	text := err.Error()
	text = text[:min(len(text), maxError)]
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
	if text == "" {
		return "an error without a text"
	}
	return text
}
