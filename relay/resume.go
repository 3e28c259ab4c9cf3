package relay

import (
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
	timeline int32 // that the newest of it lies on
	progress checkpoint.Progress
	// earlier holds further transactions, behind Done and in front of Partial, that are partly in Kafka. There are some
	// if a crash took the slot back to before this process began, and the session that read from there was cut.
	earlier     []checkpoint.Progress
	confirmed   pglogrepl.LSN // the last position that we sent, as far as we know with success
	said        pglogrepl.LSN // the last position that we tried to send, to the server saidTo on its timeline saidOn
	saidTo      uint64        // system identifier; 0: nothing was said
	saidOn      int32
	rereading   bool // the last session ended before all that is known to be in Kafka had come by again
	idleTimeout time.Duration
	slotUsed    time.Time // when a session, or a touch, last ended

	// Of deduplicated delivery.
	generation uint64    // of the last position record that is ours
	unanswered bool      // the session that wrote it left something on its way to Kafka
	ended      time.Time // when it did
}

// newest is the last transaction of which anything is known to be in Kafka.
func newest(p checkpoint.Progress) checkpoint.TxID {
	if !p.Partial.IsZero() {
		return p.Partial
	}
	return p.Done
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
	if m.saidTo != id.SystemID || !id.Descends(m.saidOn) {
		return 0
	}
	if end, over := id.EndOf(m.saidOn); over {
		return min(m.said, end)
	}
	return m.said
}

// learn takes over what a session delivered.
//
// The session may have been cut while it read again what an earlier one had delivered, and then knows less than we do.
func (m *memory) learn(id replication.Identity, p checkpoint.Progress, confirmed pglogrepl.LSN, idle time.Duration) {
	m.systemID, m.idleTimeout = id.SystemID, idle
	m.confirmed = max(m.confirmed, confirmed)
	know := &m.progress
	if p.Done.CommitLSN > know.Done.CommitLSN {
		know.Done = p.Done
	}
	switch old := know.Partial.CommitLSN; {
	case p.Partial.CommitLSN > old, p.Partial.CommitLSN == old && p.Events > know.Events:
		if old != 0 && p.Partial.CommitLSN > old { // somebody else has delivered the rest, which a crash may undo
			m.earlier = append(m.earlier, *know)
		}
		know.Partial, know.Events = p.Partial, p.Events
	case p.Partial.CommitLSN < old && !p.Partial.IsZero():
		m.earlier = append(m.earlier, p)
	}
	m.earlier = slices.DeleteFunc(m.earlier, func(e checkpoint.Progress) bool { return e.Partial.CommitLSN <= know.Done.CommitLSN })
	if know.Partial.CommitLSN <= know.Done.CommitLSN {
		know.Partial, know.Events = checkpoint.TxID{}, 0
	}
	m.timeline = id.TimelineOf(newest(*know).CommitLSN)
}

// skipper drops what memory knows to be in Kafka as it comes by again, and verifies that it is the same history:
// commit LSNs are compared with commit LSNs, within one system and timeline only. Row LSNs are never compared and no
// remembered LSN is ever given to the server.
type skipper struct {
	checkpoint.Progress
	earlier []checkpoint.Progress
	// Done, and Partial, must come by before anything later does.
	expectDone, expectPartial bool
	// saved must come by as well, if expectSaved: the transaction that the position record of a process before ends with.
	saved       checkpoint.TxID
	expectSaved bool
}

// expecting: what is dropped may still turn out to be another's, so nothing is confirmed.
func (s *skipper) expecting() bool { return s.expectDone || s.expectPartial || s.expectSaved }

func otherHistory(format string, args ...any) error {
	return &replication.Error{
		Kind: replication.OtherHistory, Op: "compare with what was delivered before", Err: fmt.Errorf(format, args...),
		Remedy: "this is another history than the one delivered from (restored, cloned or failed over without its last " +
			"transactions): compare the outbox table with the topics, then restart",
	}
}

// resume checks the server's identity and says what will be dropped.
func (m *memory) resume(id replication.Identity, start pglogrepl.LSN) (skipper, error) {
	last := newest(m.progress)
	switch {
	case m.systemID != 0 && id.SystemID != m.systemID:
		return skipper{}, otherHistory("system identifier is %d, was %d", id.SystemID, m.systemID)
	case last.IsZero():
		return skipper{Progress: m.progress}, nil
	case id.TimelineOf(last.CommitLSN) != m.timeline:
		return skipper{}, otherHistory("the transaction committed at %s on timeline %d was delivered, but timeline %d branched off before it",
			last.CommitLSN, m.timeline, id.Timeline)
	case id.WALEnd <= last.CommitLSN:
		return skipper{}, otherHistory("the transaction committed at %s was delivered, but the server's WAL ends at %s", last.CommitLSN, id.WALEnd)
	}
	// The server leaves out a transaction iff its commit LSN is below the start.
	expected := func(id checkpoint.TxID) bool { return !id.IsZero() && id.CommitLSN >= start }
	return skipper{Progress: m.progress, earlier: m.earlier, expectDone: expected(m.progress.Done), expectPartial: expected(m.progress.Partial)}, nil
}

// allEvents is beyond any ordinal.
const allEvents = 1 << 63

// begin says how many of a transaction's first events are in Kafka already.
func (s *skipper) begin(b *decoder.Begin) (events uint64, err error) {
	if s.expectSaved && b.CommitLSN == s.saved.CommitLSN {
		if err := same(b, s.saved); err != nil {
			return 0, err
		}
		s.expectSaved = false
	}
	switch {
	case b.CommitLSN < s.Done.CommitLSN:
		return allEvents, nil
	case b.CommitLSN == s.Done.CommitLSN:
		if err := same(b, s.Done); err != nil {
			return 0, err
		}
		s.expectDone = false
		return allEvents, nil
	}
	if err := s.passed(b.CommitLSN); err != nil {
		return 0, err
	}
	if !s.Partial.IsZero() && b.CommitLSN == s.Partial.CommitLSN {
		s.expectPartial = false
		return uint64(s.Events), same(b, s.Partial)
	}
	for _, e := range s.earlier {
		if b.CommitLSN == e.Partial.CommitLSN {
			events = max(events, uint64(e.Events))
			err = same(b, e.Partial)
		}
	}
	return events, err
}

// passed notes that everything in front of lsn has come by.
func (s *skipper) passed(lsn pglogrepl.LSN) error {
	for _, x := range []struct {
		expect bool
		id     checkpoint.TxID
	}{{s.expectDone, s.Done}, {s.expectPartial, s.Partial}, {s.expectSaved, s.saved}} {
		if x.expect && lsn > x.id.CommitLSN {
			return otherHistory("the transaction committed at %s was delivered, but the server, which started before it, is at %s and has not sent it",
				x.id.CommitLSN, lsn)
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
