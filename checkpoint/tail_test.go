package checkpoint

import (
	"testing"

	"github.com/jackc/pglogrepl"
)

// afterFailover is a server on timeline 2, which branched off at 0/100.
var afterFailover = server{system: 7, timeline: 2, end: 0x1000, forks: []fork{{1, 0x100}}}

// TestHolds: which events a server has after a failover, and the last position at or before another one that it can
// have.
func TestHolds(t *testing.T) {
	at := func(system uint64, timeline int32, lsn pglogrepl.LSN, ordinal uint32) Position {
		return Position{system, timeline, lsn, ordinal}
	}
	end := at(7, 1, 0xFF, LastOrdinal)
	for name, c := range map[string]struct {
		pos   Position
		holds bool
		on    Position
	}{
		"before the fork":                   {at(7, 1, 0x90, 3), true, at(7, 1, 0x90, 3)},
		"last before the fork":              {at(7, 1, 0xFF, 0), true, at(7, 1, 0xFF, 0)},
		"at the fork, on the old timeline":  {at(7, 1, 0x100, 9), false, end},
		"after it, on the old timeline":     {at(7, 1, 0x120, 0), false, end},
		"first of the new timeline":         {at(7, 2, 0x100, 0), true, at(7, 2, 0x100, 0)},
		"of the new, before it began":       {at(7, 2, 0x80, 0), false, Position{}},
		"of an unknown timeline":            {at(7, 5, 0x120, 0), false, Position{}},
		"of another cluster":                {at(8, 1, 0x120, 0), false, Position{}},
		"of another cluster, by its number": {at(8, 2, 0x900, 0), false, Position{}},
		"nothing":                           {Position{}, false, Position{}},
	} {
		if got := Holds(afterFailover, c.pos); got != c.holds {
			t.Errorf("%s: holds %v", name, got)
		}
		if got := c.pos.On(afterFailover); got != c.on {
			t.Errorf("%s: up to %s, want %s", name, got, c.on)
		}
	}
}

func TestPhantoms(t *testing.T) {
	var p Phantoms
	for i, lsn := range []pglogrepl.LSN{0x110, 0x130, 0x105, 0x120} {
		p.Add([]byte{byte('a' + i)}, Position{7, 1, lsn, 0})
	}
	if p.Count != 4 || p.First.ID != "c" || p.Last.ID != "b" || p.Last.Position.CommitLSN != 0x130 {
		t.Errorf("%+v", p)
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
