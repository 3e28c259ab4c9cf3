package checkpoint

import (
	"testing"

	"github.com/jackc/pglogrepl"
)

// lineage is a server on timeline 2, which branched off at 0/100.
type lineage struct{}

func (lineage) System() uint64 { return 7 }

func (lineage) TimelineOf(lsn pglogrepl.LSN) int32 {
	if lsn < 0x100 {
		return 1
	}
	return 2
}

func TestTail(t *testing.T) {
	at := func(system uint64, timeline int32, lsn pglogrepl.LSN, ordinal uint32) Position {
		return Position{system, timeline, lsn, ordinal}
	}
	seen := []struct {
		id  string
		pos Position
		has bool
	}{
		{"b", at(7, 1, 0x90, 3), true},
		{"a", at(7, 1, 0x90, 1), true},            // a late one of a session before
		{"lost 2", at(7, 1, 0x120, 0), false},     // behind the fork, on the timeline that ended there
		{"lost 1", at(7, 1, 0x100, 9), false},     // the fork itself belongs to the new one
		{"other", at(8, 1, 0x50, 0), false},       // another cluster's: not even a phantom
		{"not yet", at(7, 2, 0x80, 0), false},     // a timeline that began later
		{"first of 2", at(7, 2, 0x100, 0), true},  // same LSN as lost 1, another event
		{"other slot", at(8, 2, 0x900, 0), false}, // and it does not count
	}
	var tail Tail
	for _, s := range seen {
		if has := tail.See(lineage{}, s.pos, []byte(s.id)); has != s.has {
			t.Errorf("%s at %s: %v", s.id, s.pos, has)
		}
	}
	if want := at(7, 2, 0x100, 0); tail.Last != want {
		t.Errorf("the last is %s, want %s", tail.Last, want)
	}
	if p := tail.Phantoms; p.Count != 3 || p.First.ID != "not yet" || p.Last.ID != "lost 2" {
		t.Errorf("phantoms: %+v", p)
	}
	var all Phantoms
	all.Merge(Phantoms{})
	all.Merge(tail.Phantoms)
	all.Merge(Phantoms{2, Phantom{"x", at(7, 1, 0x101, 0)}, Phantom{"y", at(7, 1, 0x130, 0)}})
	if all.Count != 5 || all.First.ID != "not yet" || all.Last.ID != "y" {
		t.Errorf("merged: %+v", all)
	}
}

func TestCompare(t *testing.T) {
	p := Position{7, 1, 0x90, 3}
	for q, want := range map[Position]int{
		p: 0, {7, 1, 0x90, 2}: 1, {7, 1, 0x90, 4}: -1, {7, 1, 0x8f, 9}: 1, {7, 1, 0x91, 0}: -1,
	} {
		if got := p.Compare(q); got != want {
			t.Errorf("%s against %s: %d, want %d", p, q, got, want)
		}
	}
}
