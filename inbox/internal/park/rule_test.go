package park

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestAfterFailure(t *testing.T) {
	rule := Rule{Schedule: []time.Duration{time.Minute, time.Hour}}
	for _, c := range []struct {
		failures       int
		random         float64
		release, alone bool
		want           Next
	}{
		{1, 0, false, false, Next{}},
		{1, 0.5, false, false, Next{Wait: 30 * time.Second}},
		{2, 0.5, false, false, Next{Wait: 30 * time.Minute}},
		{3, 0.5, false, false, Next{IsDead: true}},
		{4, 0.5, false, false, Next{IsDead: true}}, // the schedule was longer before
		{2, 0.5, true, false, Next{Wait: 30 * time.Minute}},
		{3, 0.5, true, false, Next{IsDead: true, IsAside: true}},
		{3, 0.5, true, true, Next{IsDead: true}}, // no other key waits
	} {
		rule.Release, rule.Random = c.release, func() float64 { return c.random }
		if got := rule.AfterFailure(c.failures, c.alone); got != c.want {
			t.Errorf("after %d failures, release %t, alone %t: %+v, want %+v", c.failures, c.release, c.alone, got, c.want)
		}
	}
	if got := (Rule{}).AfterFailure(1, false); !got.IsDead {
		t.Errorf("without a schedule: %+v", got)
	}
}

// TestBatch: a record of a parked key is held, and so is one after a record of its key that has failed in this batch.
// A record without a key is never held. A batch whose records are called again has each of them once.
func TestBatch(t *testing.T) {
	b := NewBatch([][]byte{[]byte("old"), {}})
	record := func(offset int64, key []byte) Record { return Record{Offset: offset, Key: key} }
	if !b.IsHeld([]byte("old")) || !b.IsHeld([]byte{}) || b.IsHeld([]byte("new")) || b.IsHeld(nil) {
		t.Error("which keys are held at the begin of the batch")
	}
	b.Behind(3, record(13, []byte("old")))
	b.Fail(1, record(11, []byte("new")), errors.New("why"))
	b.Fail(2, record(12, nil), errors.New(""))
	b.Behind(3, record(13, []byte("old"))) // the handler was called again for its half
	if !b.IsHeld([]byte("new")) || b.IsHeld(nil) {
		t.Error("which keys are held after failures")
	}
	var offsets []int64
	for _, e := range b.Entries() {
		offsets = append(offsets, e.Offset)
		if isOpener := e.Offset != 13; (e.Failure != "") != isOpener {
			t.Errorf("offset %d has the failure %q", e.Offset, e.Failure)
		}
	}
	if len(offsets) != 3 || offsets[0] != 11 || offsets[1] != 12 || offsets[2] != 13 {
		t.Errorf("parked: %v", offsets)
	}
}

// TestErrorText: Postgres stores neither zero bytes nor invalid UTF-8, and an error can be long.
func TestErrorText(t *testing.T) {
	for _, text := range []string{"a\x00b", "\xff\xfe", "", strings.Repeat("ä", maxError)} {
		got := errorText(errors.New(text))
		if got == "" || strings.Contains(got, "\x00") || !utf8.ValidString(got) || len(got) > maxError+4 {
			t.Errorf("%.20q became %.20q, %d bytes", text, got, len(got))
		}
	}
}

// TestTurns: a key with many records does not keep the other keys that are due waiting until all of them are handled.
func TestTurns(t *testing.T) {
	q := &turns{left: map[string]int64{"many": 100_000, "one": 1}, next: map[string]int{"many": 1, "one": 2}, now: 3}
	calls := 0
	for ; q.left["one"] > 0 && calls <= turn+1; calls++ {
		if _, err := (Rule{}).Retry(t.Context(), q, func(*Key, *Record) (failure, err error) { return nil, nil }); err != nil {
			t.Fatal(err)
		}
	}
	if q.handled != turn {
		t.Errorf("the next look at the key begins after record %d, and %d are handled", q.handled, turn)
	}
	if calls > turn+1 {
		t.Errorf("the other key had its turn after %d records", calls)
	}
}

// turns are keys with so many records, and their next try. Each statement takes a unit of time.
type turns struct {
	Queue
	left map[string]int64
	next map[string]int
	now  int

	handled int64 // of the last key that was postponed
}

func (q *turns) Claim(context.Context) (*Key, error) {
	first := ""
	for id := range q.left {
		if first == "" || q.next[id] < q.next[first] {
			first = id
		}
	}
	return &Key{ID: first}, nil
}

func (q *turns) Oldest(_ context.Context, k *Key) (*Record, int64, error) {
	return &Record{}, 100_001 - q.left[k.ID], nil
}

func (q *turns) Remove(_ context.Context, k *Key, _ int64) (bool, error) {
	q.left[k.ID]--
	return q.left[k.ID] > 0, nil
}

func (q *turns) Close(context.Context, *Key) (bool, error) { return true, nil }

func (q *turns) Postpone(_ context.Context, k *Key, _ int, handled int64, _ Next, _ string) error {
	q.handled = handled
	q.now++
	q.next[k.ID] = q.now
	return nil
}
