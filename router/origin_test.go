//go:build !race

package router

import (
	"testing"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// TestOrigin: the header names the origin, also if it changes between two events of one commit LSN. It costs no
// allocation.
func TestOrigin(t *testing.T) {
	r := newRouter(t, nil)
	var rec Record
	ev := outbox()
	position := func(pos checkpoint.Position) string {
		must(t, r.Route(ev, pos, &rec))
		return string(rec.Headers[len(rec.Headers)-1].Value)
	}
	next := testPos
	next.Ordinal++
	one, two := checkpoint.Origin{Database: 5, Slot: "s"}, checkpoint.Origin{Database: 5, Slot: "s", Epoch: 4}
	for _, c := range []struct {
		origin checkpoint.Origin
		pos    checkpoint.Position
		want   string
	}{
		{checkpoint.Origin{}, testPos, testPosText},
		{one, testPos, "2:7:5:s:0:1:0000000000001a2b:3"},
		{one, next, "2:7:5:s:0:1:0000000000001a2b:4"},
		{two, next, "2:7:5:s:4:1:0000000000001a2b:4"},
		{checkpoint.Origin{}, testPos, testPosText},
	} {
		r.SetOrigin(c.origin)
		if got := position(c.pos); got != c.want {
			t.Errorf("%+v at %s: %s, want %s", c.origin, c.pos, got, c.want)
		}
	}
	pos := testPos
	if n := testing.AllocsPerRun(1000, func() { // each event is a transaction
		pos.CommitLSN++
		two.Epoch++
		r.SetOrigin(two)
		must(t, r.Route(ev, pos, &rec))
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
