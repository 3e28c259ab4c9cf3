package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// firstStored waits for Kafka's answer about the session's first record, for park_after at most.
func (s *session) firstStored(ctx context.Context) error {
	limit := s.r.cfg.ParkAfter
	waiting, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := s.waitFor(waiting, s.answered)
	if ctx.Err() == nil && waiting.Err() != nil && s.rule.Saving() {
		return s.stalledBecause(fmt.Sprintf("the position record for %s", limit))
	}
	return err
}

// save hands a record over. It says what Kafka has acknowledged by now, and allows the slot to be told confirm.
func (s *session) save(confirm pglogrepl.LSN, clean bool) {
	p, id := &s.past, s.stream.Identity()
	rec := &p.record
	rec.Slot, rec.FenceWait = s.r.cfg.Deduplication.Slot, max(rec.FenceWait, s.r.cfg.Deduplication.FenceWait) // a longer lease of one before may last yet
	rec.SystemID, rec.Timeline, rec.Confirm, rec.Clean, rec.At = id.SystemID, id.Timeline, confirm, clean, s.r.clock()
	// What was dropped may be another's until the server has shown that it is not.
	if acked, tx := s.tracker.Progress().Last(id); !acked.IsZero() && !s.resume.Expecting() && (!checkpoint.Holds(id, rec.Acked) || acked.Compare(rec.Acked) > 0) {
		rec.Acked, rec.AckedTx = acked, tx
	}
	if s.settled() {
		rec.Settle()
		rec.FenceWait = s.r.cfg.Deduplication.FenceWait
	}
	rec.Use(s.sink.Topics())
	rec.Published = s.stream.Published()
	s.sink.SavePosition(*rec, func(err error) {
		p.saved <- err
		s.interrupt()
	})
}

// keepPosition takes Kafka's answer to the last record. A session that cannot use the position topic asks for it again.
func (s *session) keepPosition(now time.Time) error {
	if !s.rule.RecordsRequired() {
		return s.recallAgain(now)
	}
	_, err := s.answered()
	if err != nil {
		return fmt.Errorf("keep the position record: %w", err)
	}
	return nil
}

// answered takes Kafka's answer about the record that was handed over, if there is one.
func (s *session) answered() (is bool, err error) {
	select {
	case err := <-s.past.saved:
		if err != nil {
			s.rule.NotStored()
		} else {
			s.rule.Stored()
		}
		return true, err
	default:
		return false, nil
	}
}

// lastPosition leaves the last record of a session that was drained, as far as it could be. drained: nothing that it sent is without
// an answer.
func (s *session) lastPosition(ctx context.Context, drained bool) error {
	p, clean := &s.past, drained && s.recordsAll()
	if err := s.checkLast(ctx); err != nil {
		return err
	}
	err := s.waitFor(ctx, func() (bool, error) {
		if err := s.keepPosition(s.r.clock()); err != nil || s.rule.Saving() {
			return false, err
		}
		want := max(s.rule.Wanted(), s.rule.Allowed())
		if p.record.Clean == clean && p.record.Confirm == want {
			return true, nil
		}
		s.rule.Save(want)
		s.save(want, clean)
		return false, nil
	})
	if err != nil && s.rule.Saving() {
		return fmt.Errorf("keep the position record: %w", err)
	}
	return err
}

// recordsAll reports whether the acked position covers all that this process or one before it has in Kafka: then the next start need not
// look for more.
func (s *session) recordsAll() bool {
	settled, acked := s.settled(), s.past.record.Acked.On(s.stream.Identity())
	if at, _ := s.tracker.Progress().Last(s.stream.Identity()); at.Compare(acked) > 0 {
		acked = at
	}
	single, _ := s.r.mem.Found.Len()
	return (settled || !s.r.mem.doubt && single == 0) && s.r.mem.Newest().Compare(acked) <= 0
}
