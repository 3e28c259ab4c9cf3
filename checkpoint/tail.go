package checkpoint

import (
	"cmp"

	"github.com/jackc/pglogrepl"
)

// Lineage is a server's present history: which timeline each LSN of its WAL lies on. replication.Identity is the real one.
type Lineage interface {
	System() uint64
	// TimelineOf returns the timeline that a record starting at lsn lies on.
	TimelineOf(lsn pglogrepl.LSN) int32
}

// IsZero reports whether p names no event.
func (p Position) IsZero() bool { return p.CommitLSN == 0 }

// Compare orders two positions of one lineage: -1 if p comes before q, 0 if they are one event, 1 if p comes after it.
// Across systems, or with one beyond the fork of its timeline, the answer means nothing: see [Tail].
func (p Position) Compare(q Position) int {
	return cmp.Or(cmp.Compare(p.CommitLSN, q.CommitLSN), cmp.Compare(p.Ordinal, q.Ordinal))
}

// Holds reports whether l's server has the event: it committed there, or on a timeline in front of the fork.
func Holds(l Lineage, p Position) bool {
	return p.SystemID == l.System() && l.TimelineOf(p.CommitLSN) == p.Timeline
}

// Tail is what the end of one Kafka partition says about the sessions of this slot that came before: the partition holds
// every event of ours that goes to it, up to and including Last, because a session sends a partition's events in order and
// without holes, from a point that the one before it has reached.
type Tail struct {
	Last     Position // zero: no record of ours was found
	Phantoms Phantoms
}

// Phantoms are records of events that the server does not have: they were committed on an earlier timeline, delivered, and
// lost when a standby that had not received them was promoted. They are in Kafka for good, and say nothing about what the
// server has now.
type Phantoms struct {
	Count       int
	First, Last Phantom // by position
}

// Phantom is one of them.
type Phantom struct {
	ID       string
	Position Position
}

// See takes one record of ours from the partition, in any order, and reports whether it is one that the server has.
func (t *Tail) See(l Lineage, p Position, id []byte) bool {
	switch {
	case Holds(l, p):
		if t.Last.IsZero() || p.Compare(t.Last) > 0 {
			t.Last = p
		}
		return true
	case p.SystemID == l.System():
		t.Phantoms.add(Phantom{string(id), p})
	}
	return false
}

func (ps *Phantoms) add(p Phantom) {
	if ps.Count == 0 || p.Position.Compare(ps.First.Position) < 0 {
		ps.First = p
	}
	if ps.Count == 0 || p.Position.Compare(ps.Last.Position) > 0 {
		ps.Last = p
	}
	ps.Count++
}

// Merge adds what another partition's tail has found.
func (ps *Phantoms) Merge(other Phantoms) {
	if other.Count == 0 {
		return
	}
	count := ps.Count + other.Count
	ps.add(other.First)
	ps.add(other.Last)
	ps.Count = count
}
