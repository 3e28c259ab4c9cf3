package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/outboxcdc/outboxcdc/decoder"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
)

// grace is how long a session that ends with an error waits for acknowledgements: each one is an event less to repeat.
const grace = 2 * time.Second

// leave ends the session's work with Kafka. On shutdown, and at a poison event, it delivers and confirms all events
// that were read. After any other error it freezes the position, because the meaning of the error is not known here.
func (s *session) leave(ctx context.Context, cause error) error {
	cause = s.findRefused(cause)
	if errors.Is(cause, errShutdown) || errors.As(cause, new(*router.Poison)) {
		if err := s.finish(ctx, cause); err != nil {
			s.rule.Freeze()
			return err
		}
		return cause
	}
	s.rule.Freeze()
	s.keepFinding(ctx, cause)
	if endedAtRow(cause) {
		s.deliverBeforeRow(ctx)
	}
	_ = s.closeSink(grace) // no more requests leave: another client may have the slot by now
	return cause
}

// finish delivers and confirms the events that were read: it drains, stores the last position record, closes the
// sink, and sends the last status update. Its error replaces cause.
func (s *session) finish(ctx context.Context, cause error) error {
	s.sink.Flush()
	s.r.setState(Draining, "")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.r.cfg.ShutdownTimeout)
	defer cancel()
	poison, isPoison := errors.AsType[*router.Poison](cause)
	err := s.drain(ctx)
	if err != nil && !isPoison {
		s.keepFinding(ctx, err)
		cut := s.closeSink(time.Millisecond)
		if classify(err, true).class != Retry { // the guard found a change during the drain
			return err
		}
		return &errDrain{errors.Join(err, cut)}
	}
	checked, err := s.leaveRecord(ctx, err == nil)
	if err != nil {
		_ = s.closeSink(grace)
		return err
	}
	s.repeatStatus(grace)
	if err := s.closeSink(grace); err != nil && !isPoison {
		s.r.log.Warn("close the producer", "error", err)
	}
	if isPoison && poison.Cause != router.Rejected && s.failure.Load() != nil {
		s.rule.Freeze() // Kafka failed during the drain: nothing more is confirmed
		return nil
	}
	if !checked {
		// The tracker is final. After this check every acknowledged position may be confirmed.
		if err := s.checkAgain(ctx); err != nil {
			s.r.log.Warn("last position not confirmed; the next start repeats events delivered since the last confirmed position", "error", err)
			if classify(err, true).class != Retry {
				return err
			}
			return nil
		}
	}
	if err := s.confirmLast(ctx); err != nil {
		s.r.log.Warn("the slot may not have moved to the last confirmed position", "error", err)
		if classify(err, true).class != Retry {
			return err
		}
	}
	return nil
}

// leaveRecord stores the last position record of the session, unless Kafka has failed. drained means that every event
// that was sent is acknowledged. It reports whether a catalog check has passed since the last event was read. Its error
// is what a check has found: nothing more is confirmed.
func (s *session) leaveRecord(ctx context.Context, drained bool) (checked bool, err error) {
	if !s.rule.RecordsRequired() || s.failure.Load() != nil {
		return false, nil
	}
	if err := s.saveLast(ctx, drained); err != nil {
		s.r.log.Warn("last position record not stored; the next start waits fence_wait and reads the ends of partitions", "error", err)
		if isFinding(err) {
			s.keepFinding(ctx, err)
			return false, err
		}
		return false, nil
	}
	return true, nil
}

// lastCheckEvery is the time between two checks of whether the slot has moved to the position of the last status
// update.
const lastCheckEvery = 20 * time.Millisecond

// confirmLast sends the last status update and waits until the slot has moved to its position. The stream must not be
// read meanwhile: while the client reads as fast as the walsender sends a long transaction, the walsender reads
// status updates only every half of wal_sender_timeout. A walsender that cannot send reads them at once.
func (s *session) confirmLast(ctx context.Context) error {
	if s.rule.Safe() > s.rule.Confirmed() {
		if err := s.sendStatus(s.r.clock(), false); err != nil {
			return err
		}
	}
	for s.guard.slot < s.rule.Confirmed() {
		if err := s.checkAgain(ctx); err != nil {
			return err
		}
		if s.guard.slot < s.rule.Confirmed() {
			select {
			case <-time.After(lastCheckEvery):
			case <-ctx.Done():
			}
		}
	}
	return nil
}

// checkAgain runs a catalog check that begins now, and waits for its result.
func (s *session) checkAgain(ctx context.Context) error {
	asked := false
	err := s.waitFor(ctx, func() (bool, error) {
		if s.rule.Checking() {
			return false, nil
		}
		done := asked
		if !asked {
			asked = true
			s.startCheck(s.r.clock())
		}
		return done, nil
	})
	if err != nil {
		return fmt.Errorf("check the catalogs: %w", err)
	}
	return nil
}

// waitFor waits, without reading, until done returns true or an error. Status updates and catalog checks continue.
func (s *session) waitFor(ctx context.Context, done func() (bool, error)) error {
	third := s.r.cfg.WalSenderTimeout / 3
	for {
		s.r.tick()
		now := s.r.clock()
		if err := s.takeCheck(); err != nil {
			return err
		}
		if s.rule.Keep(now).Check {
			s.guard.ask <- struct{}{}
		}
		if ok, err := done(); ok || err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if s.rule.SilentFor(now) >= third {
			if err := s.sendStatus(now, false); err != nil {
				return err
			}
		}
		wait := time.NewTimer(max(s.rule.WakeKeep(now).Sub(now), time.Millisecond))
		select {
		case <-ctx.Done():
		case <-s.tracker.Moved():
		case <-s.wake:
		case <-wait.C:
		}
		wait.Stop()
	}
}

// repeatStatus sends the last status update again if one falls due within d, a time in which none can be sent. It
// does nothing after an update has failed: that update may have arrived with a later position.
func (s *session) repeatStatus(d time.Duration) {
	now := s.r.clock()
	if s.statusFailed || s.rule.SilentFor(now.Add(d)) <= s.r.cfg.WalSenderTimeout/3 {
		return
	}
	if err := s.stream.Status(s.rule.Confirmed(), false, now); err != nil {
		s.r.log.Debug("repeat the last status update", "error", err)
		return
	}
	s.rule.Repeated(now)
}

// endedAtRow reports whether the error is about the next row of the stream. Each start meets that row again.
func endedAtRow(err error) bool {
	if pg, ok := errors.AsType[*replication.Error](err); ok {
		return pg.Kind == replication.RelationMismatch || pg.Kind == replication.ColumnMissing || pg.Kind == replication.CannotSend
	}
	return errors.As(err, new(*router.MissingColumnError)) || errors.As(err, new(*decoder.Error))
}

// deliverBeforeRow waits until the events before the row are delivered: no later session would get further. The
// position is frozen.
func (s *session) deliverBeforeRow(ctx context.Context) {
	s.sink.Flush()
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	_ = s.waitFor(ctx, func() (bool, error) { return s.isEmpty() || s.failure.Load() != nil, nil }) // the session ends anyway
}

// drain waits until nothing is in flight, and confirms acknowledged positions meanwhile.
func (s *session) drain(ctx context.Context) error {
	err := s.waitFor(ctx, func() (bool, error) {
		if s.isEmpty() {
			return true, nil
		}
		if failure := s.failure.Load(); failure != nil {
			return false, *failure // nothing more will be acknowledged
		}
		return false, s.confirm(s.r.clock())
	})
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		events, _ := s.tracker.InFlight()
		return &errInFlight{events}
	}
	return err
}

type errInFlight struct{ events int }

func (e *errInFlight) Error() string {
	return fmt.Sprintf("%d events are not acknowledged: they are not confirmed, and the next start sends them again", e.events)
}

// closeSink closes the sink within d. No callback runs afterwards, so the tracker is final.
func (s *session) closeSink(d time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return s.sink.Close(ctx)
}

// close ends the stream and adds the session to the history. The last status update carries the position that may be
// confirmed: after an error, the frozen one.
func (s *session) close() {
	r := s.r
	last := s.rule.Safe()
	r.mem.Sending(s.stream.Identity(), last)
	if err := s.stream.Close(last, r.clock()); err != nil {
		r.log.Debug("close the stream", "error", err)
	} else {
		s.rule.Sent(r.clock(), last)
	}
	if r.cfg.Deduplication.Slot != "" {
		s.noteDoubt()
	}
	r.mem.Learn(s.stream.Identity(), s.stream.Start(), s.tracker, s.rule.Confirmed(), &s.resume, s.firstResent)
	if single, _ := r.mem.Events.Len(); single == 0 && !r.mem.Overtaken() {
		r.mem.forgetOrder()
	}
	s.leaveLetters()
	r.mem.slotUsed, r.mem.idleTimeout = r.clock(), s.stream.IdleTimeout()
	r.detach(s)
}
