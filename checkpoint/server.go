package checkpoint

import (
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/internal/advice"
)

// ConfirmedOn returns the highest position to which a status update may have moved the slot of a server, which may be
// a standby promoted since: up to the fork, the server has the history of the record. 0: none is known, or s is nil.
func (s *PositionRecord) ConfirmedOn(l Lineage) pglogrepl.LSN {
	if s == nil || s.SystemID != l.System() {
		return 0
	}
	return reach(l, s.Confirm, s.Timeline)
}

// KeepsSlots is the first major version whose logical slots pg_upgrade creates again in the new cluster. It does so
// only if the slots have consumed everything (PostgreSQL, "pg_upgrade").
const KeepsSlots = 17

// upgradeRemedy is the remedy if pg_upgrade has upgraded the record's server to the present one.
func (s *PositionRecord) upgradeRemedy() string {
	if s.ServerMajor < KeepsSlots {
		return ""
	}
	return fmt.Sprintf("if pg_upgrade has upgraded the other server to this one, run `outboxcdc slot adopt --upgraded-from %d`; ", s.SystemID)
}

// Upgraded returns an error if the slot of this server, at start, cannot be the one that pg_upgrade has created for
// the slot of the record, or if the record is not of the system from. pg_upgrade starts the new WAL after the old
// one. That is the only comparison of positions of two systems. It can only refuse.
func (s *PositionRecord) Upgraded(from uint64, l Lineage, start pglogrepl.LSN) error {
	const instead = "; " + advice.Recover
	switch {
	case from == l.System():
		return fmt.Errorf("postgres.url names a server of system %d itself, which was not upgraded", from)
	case s.SystemID == l.System():
		return fmt.Errorf("the position record is of this server already (system %d): start the daemon", s.SystemID)
	case s.SystemID != from:
		return fmt.Errorf("the position record was written for system %d, not for system %d: if this is the position topic of another server, "+
			"set delivery.position_topic to the right one", s.SystemID, from)
	case s.ServerMajor == 0:
		return fmt.Errorf("the position record does not say which version system %d had%s", from, instead)
	case s.ServerMajor < KeepsSlots:
		return fmt.Errorf("system %d was PostgreSQL %d, and pg_upgrade keeps slots since PostgreSQL %d, so this slot was created after the upgrade%s",
			from, s.ServerMajor, KeepsSlots, instead)
	case start <= s.Confirm:
		return fmt.Errorf("the slot is at %s, and outboxcdc has confirmed %s on system %d: pg_upgrade starts the new WAL after the old one, "+
			"so this server is not the result of an upgrade of that one%s", start, s.Confirm, from, instead)
	}
	return nil
}

// OtherServer returns why the record may be of another server than the one of l, or of a later state of it, which can
// be in use elsewhere; "": it is of this server. After a failover that has lost transactions, it is of such a server.
func (s *PositionRecord) OtherServer(l Lineage) string {
	if what := s.foreign(l); what != "" {
		return what
	}
	if !s.Acked.IsZero() && !Holds(l, s.Acked) {
		return fmt.Sprintf("Kafka has the transaction committed at %s on timeline %d, which is not in the history of this server's timeline %d",
			s.Acked.CommitLSN, s.Acked.Timeline, l.Current())
	}
	return ""
}

// foreign returns why no daemon continues on this server: the record is of another system, another history, or a
// later state; "": it can.
func (s *PositionRecord) foreign(l Lineage) string {
	switch {
	case s.UpgradedFrom != 0 && s.UpgradedFrom == l.System():
		return fmt.Sprintf("this server is system %d, which was replaced by system %d, for which the position record was written", l.System(), s.SystemID)
	case s.SystemID != l.System():
		return fmt.Sprintf("it was written for system %d, this server is system %d", s.SystemID, l.System())
	case !descends(l, s.Timeline):
		return fmt.Sprintf("it was written on timeline %d, and the server's timeline %d does not descend from it", s.Timeline, l.Current())
	case !s.Acked.IsZero() && Holds(l, s.Acked) && s.Acked.CommitLSN >= l.End():
		return fmt.Sprintf("Kafka has the transaction committed at %s, but the server's WAL ends at %s: it is an older copy", s.Acked.CommitLSN, l.End())
	}
	return ""
}

// Contradiction returns an error if the position record forbids a session that starts at start on this server. The
// server must have the history of the record, and no other client may have moved the slot. The publication must be
// unchanged: events that were committed while it sent less are not in the stream. altered describes how the
// publication was changed; "": it was not. The error is a [HistoryError].
func (s *PositionRecord) Contradiction(l Lineage, start pglogrepl.LSN, altered string) error {
	allowed := s.ConfirmedOn(l)
	remedy := advice.Recover + " (only if there is nothing to compare, because events are logical messages or their rows were deleted: outboxcdc slot adopt)"
	what := s.foreign(l)
	switch {
	case what != "" && s.UpgradedFrom != 0 && s.UpgradedFrom == l.System():
		remedy = "let postgres.url name the new server; if that was undone, " + remedy
	case s.SystemID != l.System():
		remedy = "if both servers are in use, give each a topic of its own in delivery.position_topic (slot adopt would stop the other server's daemon); " +
			s.upgradeRemedy() + "if this server replaces the other in another way, " + remedy
	case what != "":
	case start > allowed:
		what = fmt.Sprintf("the slot is at %s, but outboxcdc confirmed %s at most: it was recreated, advanced, or read by another client, "+
			"and events committed in between may be missing in Kafka", start, allowed)
	case altered != "":
		what = fmt.Sprintf("since %s, %s", s.At.UTC().Format(time.RFC3339), altered)
	default:
		return nil
	}
	return &HistoryError{Op: "compare with the position record of slot " + s.Slot, Err: errors.New(what), Remedy: remedy}
}
