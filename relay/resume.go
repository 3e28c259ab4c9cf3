package relay

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/decoder"
	"github.com/outboxcdc/outboxcdc/replication"
)

// memory is what this process knows to be in Kafka, from one session to the next. The server may forget: it saves a
// slot's position at checkpoints only, so that after a crash of Postgres it sends what was confirmed long ago.
type memory struct {
	systemID uint64
	timeline int32             // of the server, in the last session
	spans    []span            // what its sessions have delivered without a gap, oldest first; nearly always one
	found    *checkpoint.Found // single events beside them
	done     pglogrepl.LSN     // commit LSN of the last transaction that is in Kafka whole

	confirmed   pglogrepl.LSN // the last position that we sent, as far as we know with success
	said        pglogrepl.LSN // the last position that we tried to send, to the server saidTo on its timeline saidOn
	saidTo      uint64        // system identifier; 0: nothing was said
	saidOn      int32
	foundAt     pglogrepl.LSN // the highest position at which the slot was found, on the timeline foundOn, that we had not sent
	foundOn     int32
	rereading   bool // the last session ended before it had read again all that is known to be in Kafka
	idleTimeout time.Duration
	slotUsed    time.Time // when a session, or a touch, last ended

	// Of deduplicated delivery.
	generation uint64    // of the last position record that is ours
	producers  []int64   // that the first record of that generation named
	doubt      bool      // Kafka may have more of what was sent before than is known here
	fence      time.Time // until when what was sent before may still arrive
}

// tell notes a position that is sent to the server. It may arrive whatever we are told.
func (m *memory) tell(id replication.Identity, pos pglogrepl.LSN) {
	if id.SystemID != m.saidTo || id.Timeline != m.saidOn {
		m.said, m.saidTo, m.saidOn = 0, id.SystemID, id.Timeline
	}
	m.said = max(m.said, pos)
}

// told is how far the server's slot can stand by our own doing: of what was told on a timeline that ended, only so much counts.
func (m *memory) told(id replication.Identity) pglogrepl.LSN {
	if m.saidTo != id.SystemID {
		return 0
	}
	return m.reach(id, m.said, m.saidOn)
}

// reach is how much of a position on a timeline is the server's.
func (m *memory) reach(id replication.Identity, pos pglogrepl.LSN, timeline int32) pglogrepl.LSN {
	if !id.Descends(timeline) {
		return 0
	}
	if end, over := id.EndOf(timeline); over {
		return min(pos, end)
	}
	return pos
}

// findSlot notes where the slot stands when a session begins, before anything is sent in it.
func (m *memory) findSlot(id replication.Identity, start pglogrepl.LSN) {
	if start > m.told(id) && start > m.reach(id, m.foundAt, m.foundOn) {
		m.foundAt, m.foundOn = start, id.Timeline
	}
}

// span is a part of the stream that is in Kafka: every event that was committed from from on, up to the position to. It says nothing
// of what was committed before from: that the slot stood there does not prove that it was delivered.
type span struct {
	from, until pglogrepl.LSN // transactions with a commit LSN in between are in Kafka whole: from ≤ commit LSN < until
	to          checkpoint.Position
	tx          checkpoint.TxID // the transaction of to; zero: not known
}

func (s *span) has(p checkpoint.Position) bool { return s.from <= p.CommitLSN && p.Compare(s.to) <= 0 }

// join makes one span of two that touch.
func (s *span) join(o span) bool {
	if s.from > o.until || o.from > s.until {
		return false
	}
	if o.to.Compare(s.to) > 0 {
		s.to, s.tx = o.to, o.tx
	}
	s.from, s.until = min(s.from, o.from), max(s.until, o.until)
	return true
}

// learn takes over what a session delivered, which began at start. The session may have been cut while it read again what an earlier
// one had delivered, and then knows less than we do.
func (m *memory) learn(id replication.Identity, start pglogrepl.LSN, t *checkpoint.Tracker, confirmed pglogrepl.LSN, idle time.Duration) {
	m.systemID, m.timeline, m.idleTimeout = id.SystemID, id.Timeline, idle
	m.confirmed = max(m.confirmed, confirmed)
	p := t.Progress()
	m.done = max(m.done, p.Done.CommitLSN)
	now := span{from: start, until: t.Acked()}
	now.to, now.tx = reached(id, p)
	m.spans = slices.DeleteFunc(m.spans, func(s span) bool { return now.join(s) })
	m.spans = append(m.spans, now)
	slices.SortFunc(m.spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	t.Behind(func(commit pglogrepl.LSN, ordinal uint32, hash uint64) {
		m.found.Add(checkpoint.Position{SystemID: id.SystemID, Timeline: id.TimelineOf(commit), CommitLSN: commit, Ordinal: ordinal}, hash)
	})
	m.found.Forget(func(p checkpoint.Position) bool {
		return id.TimelineOf(p.CommitLSN) != p.Timeline || slices.ContainsFunc(m.spans, func(s span) bool { return s.has(p) })
	})
}

// newest is the last position of the newest span.
func (m *memory) newest() (p checkpoint.Position) {
	for _, s := range m.spans {
		if s.to.Compare(p) > 0 {
			p = s.to
		}
	}
	return p
}

// check finds out whether the server can be the one that was delivered from.
func (m *memory) check(id replication.Identity) error {
	newest := m.newest()
	switch {
	case m.systemID != 0 && id.SystemID != m.systemID:
		return otherHistory("system identifier is %d, was %d", id.SystemID, m.systemID)
	case newest.IsZero():
		return nil
	case !id.Descends(m.timeline):
		return otherHistory("timeline was %d, and the server's timeline %d does not descend from it", m.timeline, id.Timeline)
	case checkpoint.Holds(id, newest) && id.WALEnd <= newest.CommitLSN:
		return otherHistory("the transaction committed at %s was delivered, but the server's WAL ends at %s", newest.CommitLSN, id.WALEnd)
	}
	return nil
}

// resume says what a session that starts at start drops and what it must read again. lost is the last position that was
// delivered and that the server does not have, if there is one: a failover has lost its transaction.
func (m *memory) resume(id replication.Identity, start pglogrepl.LSN) (s skipper, lost checkpoint.Position, err error) {
	if err := m.check(id); err != nil {
		return s, lost, err
	}
	fork, left := id.EndOf(m.timeline)
	for i := range m.spans {
		x := &m.spans[i]
		if left {
			x.from, x.until = min(x.from, fork), min(x.until, fork)
		}
		if on := x.to.On(id); on != x.to {
			lost = x.to
			x.to, x.tx = on, checkpoint.TxID{}
			m.done = min(m.done, on.CommitLSN)
		}
		s.expect(x.tx, start)
	}
	s.spans = m.spans
	return s, lost, nil
}

// skipper drops what is known to be in Kafka when it is read again, and verifies that it is the same history: commit LSNs are
// compared with commit LSNs, on the server's own history only. Row LSNs are never compared and no remembered LSN is ever given
// to the server.
type skipper struct {
	spans    []span              // were delivered by this process
	before   checkpoint.Position // everything up to it was delivered by earlier ones, says the position record
	expected []checkpoint.TxID   // must be read again before anything later is
}

// delivered reports whether this process has delivered the event at p in a span.
func (s *skipper) delivered(p checkpoint.Position) bool {
	for i := range s.spans {
		if s.spans[i].has(p) {
			return true
		}
	}
	return false
}

// expect demands that the stream, which begins at start, brings a transaction. The server leaves one out if and only if its commit
// LSN is below the start.
func (s *skipper) expect(tx checkpoint.TxID, start pglogrepl.LSN) {
	if !tx.IsZero() && tx.CommitLSN >= start {
		s.expected = append(s.expected, tx)
	}
}

// expecting: what is dropped may still turn out to be another's, so nothing is confirmed.
func (s *skipper) expecting() bool { return len(s.expected) > 0 }

func otherHistory(format string, args ...any) error {
	return &replication.Error{
		Kind: replication.OtherHistory, Op: "compare with what was delivered before", Err: fmt.Errorf(format, args...),
		Remedy: "this is another history than the one delivered from (restored or cloned): " +
			"compare the outbox table with the topics, then restart",
	}
}

// begin compares a transaction with those that are expected, and reports whether all of it is in Kafka.
func (s *skipper) begin(b *decoder.Begin) (known bool, err error) {
	if err := s.passed(b.CommitLSN); err != nil {
		return false, err
	}
	for _, tx := range s.expected {
		if b.CommitLSN == tx.CommitLSN {
			if err := same(b, tx); err != nil {
				return false, err
			}
		}
	}
	s.expected = slices.DeleteFunc(s.expected, func(tx checkpoint.TxID) bool { return tx.CommitLSN == b.CommitLSN })
	last := checkpoint.Position{CommitLSN: b.CommitLSN, Ordinal: checkpoint.LastOrdinal}
	return s.delivered(last) || last.Compare(s.before) <= 0, nil
}

// passed notes that everything before lsn has been read.
func (s *skipper) passed(lsn pglogrepl.LSN) error {
	for _, tx := range s.expected {
		if lsn > tx.CommitLSN {
			return otherHistory("the transaction committed at %s was delivered, but the server, which started before it, is at %s and has not sent it",
				tx.CommitLSN, lsn)
		}
	}
	return nil
}

func same(b *decoder.Begin, id checkpoint.TxID) error {
	if b.XID == id.XID && b.CommitTime.Equal(id.CommitTime) {
		return nil
	}
	return otherHistory("the transaction committed at %s was xid %d of %s when it was delivered, now it is xid %d of %s",
		id.CommitLSN, id.XID, id.CommitTime.UTC().Format(time.RFC3339Nano), b.XID, b.CommitTime.UTC().Format(time.RFC3339Nano))
}
