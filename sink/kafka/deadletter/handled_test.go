package deadletter

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestHandled compares the handled offsets with a plain set of numbers, and writes and reads the metadata at each step.
func TestHandled(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		d := handled{next: int64(rnd.IntN(5))}
		set := map[int64]bool{}
		for o := range d.next {
			set[o] = true
		}
		for range 40 {
			first := int64(rnd.IntN(50))
			last := first + int64(rnd.IntN(4)) - 1
			d.add(first, last)
			for o := first; o <= last; o++ {
				set[o] = true
			}
			again, err := parseHandled(d.next, d.metadata())
			if err != nil || again.next != d.next || !slices.Equal(again.spans, d.spans) {
				t.Fatalf("seed %d: %+v became %+v: %v", seed, d, again, err)
			}
			for o := range int64(60) {
				if d.has(o) != set[o] {
					t.Fatalf("seed %d: offset %d is handled: %v, want %v: %+v", seed, o, d.has(o), set[o], d)
				}
			}
			open := int64(0)
			for o := range int64(30) {
				if !set[o] {
					open++
				}
			}
			if got := d.openBefore(30); got != open {
				t.Fatalf("seed %d: %d offsets are open, want %d: %+v", seed, got, open, d)
			}
			if set[d.next] {
				t.Fatalf("seed %d: the next offset %d is handled: %+v", seed, d.next, d)
			}
		}
	}
	for _, foreign := range []string{"", "somebody's", "17,18"} {
		if d, err := parseHandled(3, foreign); err != nil || d.next != 3 || d.spans != nil {
			t.Errorf("%q: %+v %v", foreign, d, err)
		}
	}
	for _, damaged := range []string{"", "x", "1-", "5-4", "4,,6"} {
		if _, err := parseHandled(3, prefix+damaged); err == nil {
			t.Errorf("%q is no error", damaged)
		}
	}
	if d, _ := parseHandled(-1, ""); d.next != 0 {
		t.Errorf("no offset committed: %+v", d)
	}
}

// The size of the metadata is limited. There is always room for the oldest dead letter, and a skipped one takes none.
func TestHandledRoom(t *testing.T) {
	var d handled
	n := int64(1)
	for ; d.hasRoom(n); n += 2 {
		d.add(n, n)
	}
	if len(d.metadata()) > maxMetadata || n < 1000 {
		t.Errorf("%d bytes of metadata after %d letters", len(d.metadata()), n)
	}
	if !d.hasRoom(0) || !d.hasRoom(2) {
		t.Error("no room for the oldest, or for one between two")
	}
	spans := len(d.spans)
	d.skip(n+2, n+2) // after an open one
	if len(d.spans) != spans {
		t.Error("a skipped dead letter takes room")
	}
	d.skip(0, 0)
	if d.next != 2 {
		t.Errorf("next is %d, want 2", d.next)
	}
}
