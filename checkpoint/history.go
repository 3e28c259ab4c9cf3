package checkpoint

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/internal/advice"
)

// History is what one process knows of its earlier sessions: which events are in Kafka, and how far it has confirmed
// the slot. The server saves a slot's position at checkpoints only, so after a crash of Postgres it sends again
// events that were confirmed long ago (PostgreSQL, "Logical Decoding Concepts").
type History struct {
	// Events holds single events that are in Kafka and lie in no span, because their records were acknowledged.
	Events *EventSet
	// Found holds events whose records were read in Kafka.
	Found *Found

	systemID uint64 // of the server of the last session; 0: there was no session
	timeline int32
	spans    []span // delivered without a gap, oldest first; nearly always one
	done     pglogrepl.LSN

	confirmed pglogrepl.LSN // by the last status update of a session
	rereading bool

	sent   pglogrepl.LSN // the highest position in a status update to the server sentTo on its timeline sentOn, received or not
	sentTo uint64        // system identifier; 0: nothing was sent
	sentOn int32
}

// NewHistory returns the history of a process before its first session.
func NewHistory() *History { return &History{Events: NewEventSet(), Found: NewFound()} }

// Done returns the commit LSN of the newest transaction that is in Kafka with all transactions before it.
func (h *History) Done() pglogrepl.LSN { return h.done }

// Confirmed returns the position of the last status update of the last session.
func (h *History) Confirmed() pglogrepl.LSN { return h.confirmed }

// Rereading reports whether the last session ended before the server had sent again the newest transactions in Kafka.
func (h *History) Rereading() bool { return h.rereading }

// Sending notes a position before a status update with it is sent: the update may arrive even if sending it returns
// an error.
func (h *History) Sending(l Lineage, pos pglogrepl.LSN) {
	h.sent, h.sentTo, h.sentOn = max(h.sentUpTo(l), pos), l.System(), l.Current()
}

// sentUpTo returns the highest position to which this process may have moved the server's slot.
func (h *History) sentUpTo(l Lineage) pglogrepl.LSN {
	if h.sentTo != l.System() {
		return 0
	}
	return reach(l, h.sent, h.sentOn)
}

// reach returns the highest position up to pos, on a timeline, that is part of the server's history.
func reach(l Lineage, pos pglogrepl.LSN, timeline int32) pglogrepl.LSN {
	if !descends(l, timeline) {
		return 0
	}
	if end, over := l.EndOf(timeline); over {
		return min(pos, end)
	}
	return pos
}

// MovedByOthers reports whether another client has moved the slot to start, since this process sent a status update
// to the server.
func (h *History) MovedByOthers(l Lineage, start pglogrepl.LSN) bool {
	return h.sentTo == l.System() && start > h.sentUpTo(l)
}

// Check compares the server's history with the history that was delivered. The error is a [HistoryError].
func (h *History) Check(l Lineage) error {
	newest := h.Newest()
	switch {
	case h.systemID != 0 && l.System() != h.systemID:
		err := otherHistory("system identifier is %d, was %d", l.System(), h.systemID)
		err.Remedy = fmt.Sprintf("if pg_upgrade has upgraded the former server, PostgreSQL %d or later, to this one, run "+
			"`outboxcdc slot adopt --upgraded-from %d` (with delivery.mode at_least_once, only start the daemon again); otherwise %s", KeepsSlots, h.systemID, err.Remedy)
		return err
	case newest.IsZero():
		return nil
	case !descends(l, h.timeline):
		return otherHistory("timeline was %d, and the server's timeline %d does not descend from it", h.timeline, l.Current())
	case Holds(l, newest) && l.End() <= newest.CommitLSN:
		return otherHistory("the transaction committed at %s was delivered, but the server's WAL ends at %s", newest.CommitLSN, l.End())
	}
	return nil
}

// NoteServer notes the server of a connection that was no session.
func (h *History) NoteServer(l Lineage) { h.systemID = l.System() }

// Resume returns the events that a session starting at start skips. lost is the newest position in Kafka if a
// failover has lost its transaction. The error is a [HistoryError].
func (h *History) Resume(l Lineage, start pglogrepl.LSN) (r Resume, lost Position, err error) {
	if err := h.Check(l); err != nil {
		return r, lost, err
	}
	fork, over := l.EndOf(h.timeline)
	for i := range h.spans {
		s := &h.spans[i]
		if over {
			s.from, s.until = min(s.from, fork), min(s.until, fork)
		}
		if on := s.to.On(l); on != s.to {
			lost = s.to
			s.to, s.tx = on, TxID{}
			h.done = min(h.done, on.CommitLSN)
		}
		r.expect(s.tx, start)
	}
	r.spans = h.spans
	return r, lost, nil
}

// Learn adds the events that a session, which began at start, has delivered. A session that ended while it re-read
// earlier events knows less than the history, so nothing is removed. resent is the first event in doubt that the
// session has sent, zero if there was none: what earlier sessions have delivered after it is before it in Kafka.
func (h *History) Learn(l Lineage, start pglogrepl.LSN, t *Tracker, confirmed pglogrepl.LSN, r *Resume, resent Position) {
	session := h.Events.NextSession()
	for i := range h.spans {
		if s := &h.spans[i]; s.overtaken == 0 && !resent.IsZero() && s.from > resent.CommitLSN {
			s.overtaken = session
		}
	}
	h.systemID, h.timeline = l.System(), l.Current()
	h.confirmed = max(h.confirmed, confirmed)
	h.rereading = r.Expecting()
	p := t.Progress()
	h.done = max(h.done, p.Done.CommitLSN)
	now := span{from: start, until: t.Acked()}
	now.to, now.tx = p.Last(l)
	h.spans = slices.DeleteFunc(h.spans, func(s span) bool { return now.join(s) })
	h.spans = append(h.spans, now)
	slices.SortFunc(h.spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	t.EachAckedAfterGap(func(commit pglogrepl.LSN, ordinal uint32, hash uint64) {
		h.Events.Add(Position{SystemID: l.System(), Timeline: l.TimelineOf(commit), CommitLSN: commit, Ordinal: ordinal}, hash)
	})
	h.Events.Forget(func(p Position) bool {
		return l.TimelineOf(p.CommitLSN) != p.Timeline || slices.ContainsFunc(h.spans, func(s span) bool { return s.overtaken == 0 && s.has(p) })
	})
}

// Overtake notes that another process may have sent older events since this one has delivered what it remembers. It
// counts as a session, whose number is returned.
func (h *History) Overtake() (session uint32) {
	session = h.Events.NextSession()
	for i := range h.spans {
		if s := &h.spans[i]; s.overtaken == 0 {
			s.overtaken = session
		}
	}
	return session
}

// Overtaken reports whether a part of the history is before an event in Kafka that is older.
func (h *History) Overtaken() bool {
	return slices.ContainsFunc(h.spans, func(s span) bool { return s.overtaken > 0 })
}

// Newest returns the last position of the newest span.
func (h *History) Newest() (p Position) {
	for _, s := range h.spans {
		if s.to.Compare(p) > 0 {
			p = s.to
		}
	}
	return p
}

// span is a part of the stream that is in Kafka: every event from the commit LSN `from` to the position `to`. Events
// before it may be missing in Kafka: the slot's position does not prove that they were delivered.
type span struct {
	from, until pglogrepl.LSN // whole transactions: from ≤ commit LSN < until
	to          Position
	tx          TxID   // the transaction of to; zero: not known
	overtaken   uint32 // the first later session that has sent an event of before it: see History.Learn; 0: none
}

func (s *span) has(p Position) bool { return s.from <= p.CommitLSN && p.Compare(s.to) <= 0 }

// join merges o into s if the two touch. What was overtaken is merged when all of it was delivered or skipped again.
func (s *span) join(o span) bool {
	if s.from > o.until || o.from > s.until || o.overtaken > 0 && o.to.Compare(s.to) > 0 {
		return false
	}
	if o.to.Compare(s.to) > 0 {
		s.to, s.tx = o.to, o.tx
	}
	s.from, s.until = min(s.from, o.from), max(s.until, o.until)
	return true
}

// HistoryError means that the server's history differs, or may differ, from the history that was delivered. Waiting
// does not help.
type HistoryError struct {
	Op     string // what was compared
	Err    error
	Remedy string
}

func (e *HistoryError) Error() string { return e.Op + ": " + e.Err.Error() + "; remedy: " + e.Remedy }

func (e *HistoryError) Unwrap() error { return e.Err }

func otherHistory(format string, args ...any) *HistoryError {
	return &HistoryError{
		Op: "compare with what was delivered before", Err: fmt.Errorf(format, args...),
		Remedy: "the server has another history than the one delivered (a restore or a clone): " + advice.Recover,
	}
}
