package checkpoint

import (
	"cmp"

	"github.com/jackc/pglogrepl"
)

// Lineage is the history of a server: the timeline of each LSN of its WAL. replication.Identity implements it.
type Lineage interface {
	System() uint64
	// Current is the server's timeline, End the flushed end of its WAL when the session acquired the slot.
	Current() int32
	End() pglogrepl.LSN
	// TimelineOf returns the timeline that a record starting at lsn lies on.
	TimelineOf(lsn pglogrepl.LSN) int32
	// EndOf returns where the history left an earlier timeline. over is false for the current timeline, and for
	// timelines of other histories.
	EndOf(timeline int32) (lsn pglogrepl.LSN, over bool)
}

// descends reports whether the server's timeline is the given one or branched off from it.
func descends(l Lineage, timeline int32) bool {
	_, over := l.EndOf(timeline)
	return over || timeline == l.Current()
}

// LastOrdinal is after the ordinal of every event of a transaction.
const LastOrdinal = 1<<32 - 1

// IsZero reports whether p names no event.
func (p Position) IsZero() bool { return p.CommitLSN == 0 }

// Compare orders two positions of one lineage: -1 if p is before q, 0 if both are the same event, 1 if p is after q.
// The result has no meaning across systems, or for a position beyond the fork of its timeline: see [Position.On].
func (p Position) Compare(q Position) int {
	return cmp.Or(cmp.Compare(p.CommitLSN, q.CommitLSN), cmp.Compare(p.Ordinal, q.Ordinal))
}

// Holds reports whether the server has the event: it was committed on the current timeline, or on an earlier one
// before the fork.
func Holds(l Lineage, p Position) bool {
	return p.SystemID == l.System() && l.TimelineOf(p.CommitLSN) == p.Timeline
}

// On returns the last position at or before p that the server can have: p itself, or the end of p's timeline if the
// server left that timeline before p. Zero: the server is not known to have any event before p.
func (p Position) On(l Lineage) Position {
	if p.IsZero() || Holds(l, p) {
		return p
	}
	end, over := l.EndOf(p.Timeline)
	if p.SystemID != l.System() || !over || p.CommitLSN < end || end == 0 {
		return Position{}
	}
	p.CommitLSN, p.Ordinal = end-1, LastOrdinal
	return p
}

// Search describes the events that a session searches for at the ends of partitions of Kafka, in deduplicated delivery.
type Search struct {
	Lineage   Lineage
	Producers []int64          // a record of one of these producers is ours; in the order of their sessions
	Acked     Position         // events at or before it are not searched for
	Settled   Position         // a record of ours at or before it ends the search in its partition
	LookBack  int              // maximum offsets to read backwards without finding a record of ours
	Topics    []string         // all of their partitions are searched
	Others    map[int64]uint32 // those of other processes, each with the number of the session that it counts as
	// Found receives the records of events that the server has and that were committed before Until: see Note. Phantoms
	// is called, from other goroutines, once for each partition and timeline with events that the server does not have.
	Found    *Found
	Until    pglogrepl.LSN
	Phantoms func(topic string, partition int32, p Phantoms)
}

// Phantoms are records of events that the server does not have: the events were committed on an earlier timeline,
// delivered, and lost when a standby that had not received them was promoted. Their records stay in Kafka. All are of
// one timeline, because positions of two have no order.
type Phantoms struct {
	Count       int
	First, Last Phantom // by position
}

// Phantom is an event that the server does not have.
type Phantom struct {
	ID       string
	Position Position
}

// Add adds a phantom.
func (ps *Phantoms) Add(id []byte, at Position) {
	p := Phantom{string(id), at}
	if ps.Count == 0 || at.Compare(ps.First.Position) < 0 {
		ps.First = p
	}
	if ps.Count == 0 || at.Compare(ps.Last.Position) > 0 {
		ps.Last = p
	}
	ps.Count++
}
