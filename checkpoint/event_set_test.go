package checkpoint

import (
	"testing"
	"unsafe"

	"github.com/jackc/pglogrepl"
)

// TestFound: an event is recognised by its exact position and its id only.
func TestFound(t *testing.T) {
	f := NewEventSet()
	p := Position{SystemID: 7, Timeline: 2, CommitLSN: 0x200, Ordinal: 3}
	if _, has := f.Has(p, []byte("a")); has {
		t.Error("an empty set has something")
	}
	for _, at := range []Position{{7, 1, 0x90, 0}, p, {7, 2, 0x300, 1}, {7, 1, 0x120, 0}} {
		f.Add(at, f.Hash([]byte("a")))
	}
	for name, c := range map[string]struct {
		at   Position
		id   string
		want bool
	}{
		"the event":        {p, "a", true},
		"another id":       {p, "b", false},
		"no id":            {p, "", false},
		"an ordinal less":  {Position{7, 2, 0x200, 2}, "a", false},
		"an ordinal more":  {Position{7, 2, 0x200, 4}, "a", false},
		"an LSN less":      {Position{7, 2, 0x1FF, 3}, "a", false},
		"another timeline": {Position{7, 1, 0x200, 3}, "a", false},
		"before the first": {Position{7, 1, 0x10, 0}, "a", false},
		"after the last":   {Position{7, 2, 0x900, 0}, "a", false},
	} {
		if _, got := f.Has(c.at, []byte(c.id)); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	f.Forget(func(q Position) bool { return q.Timeline == 1 || q.Compare(p) <= 0 })
	later := Position{7, 2, 0x300, 1}
	n, _ := f.Len()
	_, has := f.Has(p, []byte("a"))
	if _, left := f.Has(later, []byte("a")); n != 1 || has || !left {
		t.Errorf("%d are left", n)
	}
	for want := range uint32(3) { // acknowledged again in a later session
		f.Add(later, f.Hash([]byte("a")))
		if got, _ := f.Has(later, []byte("a")); got != want || f.Session() != want {
			t.Errorf("session %d, want %d", got, want)
		}
		f.NextSession()
	}
}

// TestFoundIsBounded: a full set takes no more events, and has none that was not added.
func TestFoundIsBounded(t *testing.T) {
	if size := unsafe.Sizeof(ackedEvent{}); size != 32 {
		t.Errorf("an event takes %d bytes", size)
	}
	f := NewEventSet()
	at := func(i int) Position { return Position{7, 2, pglogrepl.LSN(0x1000 + i), 0} }
	for i := range MaxEvents {
		f.Add(at(i/2), 1) // each twice
	}
	if !f.Add(at(MaxEvents), 1) {
		t.Error("duplicates fill the set")
	}
	for i := range MaxEvents {
		f.Add(at(i), 1)
	}
	if n, full := f.Len(); n != MaxEvents || !full {
		t.Errorf("%d, full %v", n, full)
	}
	if f.Add(at(5*MaxEvents), 1) {
		t.Error("a full set takes one more")
	}
	f.Forget(func(p Position) bool { return p.Compare(at(MaxEvents/2)) <= 0 })
	if _, full := f.Len(); full || !f.Add(at(5*MaxEvents), 1) {
		t.Error("after room was made it takes none")
	}
}
