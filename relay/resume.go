package relay

import (
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/decoder"
	"github.com/outboxcdc/outboxcdc/replication"
)

// memory is what this process knows to be in Kafka, from one session to the next. The server may forget: it saves a
// slot's position at checkpoints only, so that after a crash of Postgres it sends what was confirmed long ago.
type memory struct {
	systemID    uint64
	timeline    int32 // that done lies on
	progress    checkpoint.Progress
	confirmed   pglogrepl.LSN // the last position we sent
	idleTimeout time.Duration
}

// learn takes over what a session delivered.
func (m *memory) learn(id replication.Identity, p checkpoint.Progress, confirmed pglogrepl.LSN, idle time.Duration) {
	m.systemID, m.idleTimeout = id.SystemID, idle
	m.confirmed = max(m.confirmed, confirmed)
	old := m.progress
	if !p.Done.IsZero() && p.Done.CommitLSN >= old.Done.CommitLSN {
		m.progress.Done = p.Done
		m.timeline = id.TimelineOf(p.Done.CommitLSN)
	}
	switch {
	case !p.Partial.IsZero() && (p.Partial.CommitLSN > old.Partial.CommitLSN || p.Events > old.Events):
		m.progress.Partial, m.progress.Events = p.Partial, p.Events
	case m.progress.Partial.CommitLSN <= m.progress.Done.CommitLSN:
		m.progress.Partial, m.progress.Events = checkpoint.TxID{}, 0
	}
}

// skipper drops what memory knows to be in Kafka as it comes by again, and verifies that it is the same history:
// commit LSNs are compared with commit LSNs, within one system and timeline only. Row LSNs are never compared and no
// remembered LSN is ever given to the server.
type skipper struct {
	checkpoint.Progress
	expect bool // Done must come by before anything later does
}

func otherHistory(format string, args ...any) error {
	return &replication.Error{
		Kind: replication.OtherHistory, Op: "compare with what was delivered before", Err: fmt.Errorf(format, args...),
		Remedy: "this is another history than the one delivered from (restored, cloned or failed over without its last " +
			"transactions): compare the outbox table with the topics, then restart",
	}
}

// resume checks the server's identity and says what will be dropped.
func (m *memory) resume(id replication.Identity, start pglogrepl.LSN) (skipper, error) {
	done := m.progress.Done
	switch {
	case m.systemID != 0 && id.SystemID != m.systemID:
		return skipper{}, otherHistory("system identifier is %d, was %d", id.SystemID, m.systemID)
	case done.IsZero():
		return skipper{Progress: m.progress}, nil
	case id.TimelineOf(done.CommitLSN) != m.timeline:
		return skipper{}, otherHistory("the transaction committed at %s on timeline %d was delivered, but timeline %d branched off before it",
			done.CommitLSN, m.timeline, id.Timeline)
	case id.WALEnd <= done.CommitLSN:
		return skipper{}, otherHistory("the transaction committed at %s was delivered, but the server's WAL ends at %s", done.CommitLSN, id.WALEnd)
	}
	// The server leaves out a transaction iff its commit LSN is below the start.
	return skipper{Progress: m.progress, expect: done.CommitLSN >= start}, nil
}

// allEvents is beyond any ordinal.
const allEvents = 1 << 63

// begin says how many of a transaction's first events are in Kafka already.
func (s *skipper) begin(b *decoder.Begin) (events uint64, err error) {
	switch {
	case b.CommitLSN < s.Done.CommitLSN:
		return allEvents, nil
	case b.CommitLSN == s.Done.CommitLSN:
		if err := same(b, s.Done); err != nil {
			return 0, err
		}
		s.expect = false
		return allEvents, nil
	}
	if err := s.passed(b.CommitLSN); err != nil {
		return 0, err
	}
	if !s.Partial.IsZero() && b.CommitLSN == s.Partial.CommitLSN {
		return uint64(s.Events), same(b, s.Partial)
	}
	return 0, nil
}

// passed notes that everything in front of lsn has come by.
func (s *skipper) passed(lsn pglogrepl.LSN) error {
	if s.expect && lsn > s.Done.CommitLSN {
		return otherHistory("the transaction committed at %s was delivered, but the server, which started before it, is at %s and has not sent it",
			s.Done.CommitLSN, lsn)
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
