package checkpoint

import (
	"cmp"

	"github.com/jackc/pglogrepl"
)

// Lineage is a server's present history: which timeline each LSN of its WAL lies on. replication.Identity is the real one.
type Lineage interface {
	System() uint64
	// Current is the server's timeline, End the flushed end of its WAL when the session acquired the slot.
	Current() int32
	End() pglogrepl.LSN
	// TimelineOf returns the timeline that a record starting at lsn lies on.
	TimelineOf(lsn pglogrepl.LSN) int32
	// EndOf is where the history leaves an earlier timeline; over is false for the present one, and for one it was never on.
	EndOf(timeline int32) (lsn pglogrepl.LSN, over bool)
}

// descends reports whether the server's timeline is the given one or branched off from it.
func descends(l Lineage, timeline int32) bool {
	_, over := l.EndOf(timeline)
	return over || timeline == l.Current()
}

// LastOrdinal is an ordinal behind every event of a transaction.
const LastOrdinal = 1<<32 - 1

// IsZero reports whether p names no event.
func (p Position) IsZero() bool { return p.CommitLSN == 0 }

// Compare orders two positions of one lineage: -1 if p comes before q, 0 if they are one event, 1 if p comes after it.
// Across systems, or with one beyond the fork of its timeline, the answer means nothing: see [Position.On].
func (p Position) Compare(q Position) int {
	return cmp.Or(cmp.Compare(p.CommitLSN, q.CommitLSN), cmp.Compare(p.Ordinal, q.Ordinal))
}

// Holds reports whether l's server has the event: it committed there, or on an earlier timeline before the fork.
func Holds(l Lineage, p Position) bool {
	return p.SystemID == l.System() && l.TimelineOf(p.CommitLSN) == p.Timeline
}

// On is the last position at or before p that l's server can have: p itself, or the end of p's timeline if the server left that
// before p. Zero: nothing of what is before p is known to be on the server's history.
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

// Search says what a session looks for at the ends of partitions.
type Search struct {
	Lineage   Lineage
	Producers []int64  // whose records are ours
	Acked     Position // events at or before it are not looked for
	Settled   Position // a record of ours at or before it ends the search in its partition
	LookBack  int      // offsets that are read at most, from the end of a partition backwards, without a record of ours among them
	Topics    []string // all partitions of them
	// Found takes the events that the server has, Phantoms what it does not have, once for each partition that has any. Phantoms is
	// called from other goroutines.
	Found    *Found
	Until    pglogrepl.LSN // of events that were committed before it
	Phantoms func(topic string, partition int32, p Phantoms)
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

// Add counts one more.
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
