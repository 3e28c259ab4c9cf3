package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/replication"
)

// turn does everything that is due besides reading: it ends the session on shutdown or failure, takes the guard's
// answer, confirms, and checks both sides for silence. It returns when to call it again at the latest.
func (s *session) turn(ctx context.Context, now time.Time) (time.Time, error) {
	r := s.r
	r.tick()
	s.counts.publish(r.met)
	if s.gotMessage {
		s.gotMessage, s.lastMessage = false, now
		s.isDecoding = false
	}
	if ctx.Err() != nil {
		// The sink stores its failure before it cancels the context.
		if failure := s.failure.Load(); failure != nil {
			return now, *failure
		}
		// Read the open transaction to its end: without its Commit it cannot be confirmed and would be repeated. A
		// transaction that is too long, or that waits for Kafka already, is left.
		if s.finishBy.IsZero() {
			s.finishBy = now.Add(grace)
		}
		if !s.inTx || s.awaiting != "" && s.awaiting != sendingSingly || !now.Before(s.finishBy) {
			return now, errShutdown
		}
	}
	r.publishPositions(s)
	if err := s.takeCheck(); err != nil {
		return now, err
	}
	if err := s.confirm(now); err != nil {
		return now, err
	}
	if err := s.watch(now); err != nil {
		return now, err
	}
	s.watchOldest(now)
	next := s.rule.Wake(now)
	reads, err := s.takeLetters(now)
	if err != nil {
		return now, err
	}
	if reads.Before(next) {
		next = reads
	}
	if !s.finishBy.IsZero() && s.finishBy.Before(next) {
		next = s.finishBy
	}
	return next, nil
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// startCheck begins a catalog check, unless one is running.
func (s *session) startCheck(now time.Time) {
	if s.rule.BeginCheck(now) {
		s.guard.ask <- struct{}{}
	}
}

// confirm takes Kafka's answer about the position record, and runs the actions that the confirm rule requests.
func (s *session) confirm(now time.Time) error {
	if err := s.takeStored(); err != nil {
		return err
	}
	do := s.rule.Next(now)
	if do.Check {
		s.guard.ask <- struct{}{}
	}
	silence := now.Sub(s.lastMessage)
	if third := s.r.cfg.WalSenderTimeout / 3; silence >= 2*third && now.Sub(s.rule.LastCheck()) >= third {
		s.startCheck(now) // does the walsender work?
	}
	if do.Record != 0 {
		s.savePosition(do.Record, false)
	}
	if do.Status {
		// After a long silence of the server, request a reply: the session ends if none arrives.
		return s.sendStatus(now, silence >= s.r.cfg.WalSenderTimeout/3)
	}
	return nil
}

// sendStatus sends a status update with the position that may be confirmed now.
func (s *session) sendStatus(now time.Time, reply bool) error {
	safe := s.rule.Safe()
	s.r.mem.Sending(s.stream.Identity(), safe)
	if err := s.stream.Status(safe, reply, now); err != nil {
		s.r.met.statusFailed.Inc()
		s.statusFailed = true
		return err
	}
	if s.rule.Sent(now, safe) {
		s.r.publishConfirmed(safe, now)
	}
	s.r.met.statusSent.Inc()
	return nil
}

// watch returns an error if Postgres or Kafka has been silent for too long.
func (s *session) watch(now time.Time) error {
	events, _ := s.tracker.InFlight()
	if events == 0 && s.awaiting == "" && !s.rule.Saving() {
		s.waitSince = time.Time{}
		return s.watchServer(now)
	}
	if s.waitSince.IsZero() {
		s.waitSince = now
	}
	last := maxTime(s.waitSince, s.ackedAt())
	last = maxTime(last, s.r.mem.fence) // until then the session does not wait for Kafka
	last = maxTime(last, s.reading.movedAt(now, s.endsProgress()))
	limit := s.r.cfg.ParkAfter
	if s.awaiting == readingEnds {
		limit = s.r.view.progress.patience(limit)
	}
	if now.Sub(last) < limit {
		return nil
	}
	what := fmt.Sprintf("%d events in flight for %s", events, limit)
	switch topics := s.sink.Waiting(); {
	case len(topics) > 0 && s.awaiting != "":
		what = fmt.Sprintf("topic %s is missing, or access to it is denied; create it, or grant access", topics[0])
	case events == 0 && s.awaiting == "":
		what = "the position record"
	case events == 0:
		what = s.awaiting
	}
	return s.stalledBecause(what)
}

// watchOldest shows the state while the oldest event is not delivered, or not confirmed, for too long.
func (s *session) watchOldest(now time.Time) {
	events, _ := s.tracker.InFlight()
	acked := s.tracker.Acked()
	if s.resume.Expecting() { // nothing is confirmed until the server has sent again what it had sent before
		acked = 0
	}
	s.oldest.see(now, events, s.tracker.Progress(), acked, s.rule.Confirmed())
	switch {
	case s.oldest.isUndelivered(now):
		s.showLate(WaitingForSink, "oldest event", fmt.Sprintf("%s has not acknowledged the oldest event for %s", s.r.cfg.Sink, now.Sub(s.oldest.undelivered).Round(time.Second))+s.sinkTrouble())
	case s.oldest.isUnconfirmed(now, s.r.cfg.StatusInterval):
		late := now.Sub(s.oldest.unconfirmed).Round(time.Second)
		if saving := now.Sub(s.position.record.At); s.rule.Saving() && saving >= lateAfter {
			s.showLate(WaitingForSink, "position record", fmt.Sprintf("the position record has not been stored for %s", saving.Round(time.Second))+s.sinkTrouble())
		} else {
			s.showLate(WaitingForPostgres, "catalog check", fmt.Sprintf("what is delivered is not confirmed for %s: no catalog check has passed, because it fails or an alteration of publication or table is in progress", late))
		}
	case s.isLate && !s.isDecoding:
		s.isLate = false
		s.r.endLate()
	}
}

// sinkTrouble returns ": " and what is wrong with the sink, or "".
func (s *session) sinkTrouble() string {
	if err := s.sink.Healthy(); err != nil {
		return ": " + err.Error()
	}
	if topics := s.sink.Waiting(); len(topics) > 0 {
		return fmt.Sprintf(": topic %s is missing, or access to it is denied", topics[0])
	}
	return ""
}

// showLate shows a state in which something waits for longer than usual, unless another such state is shown.
func (s *session) showLate(state State, label, reason string) {
	s.isLate = true
	s.r.setLate(state, label, reason)
}

// waits returns since when something waits that cannot be seen in flight.
func (s *session) waits() time.Time {
	switch {
	case s.isDecoding:
		return s.lastMessage
	case s.oldest.isUnconfirmed(s.r.clock(), s.r.cfg.StatusInterval):
		return s.oldest.unconfirmed
	}
	return time.Time{}
}

// watchServer returns an error if the server is silent and its walsender does not work. A walsender sends nothing
// while it decodes a transaction whose changes are not published, for minutes if the transaction is large. The server
// is expected to send only while the stream is read.
func (s *session) watchServer(now time.Time) error {
	silence, limit := now.Sub(s.lastMessage), s.r.cfg.WalSenderTimeout
	if silence <= limit {
		return nil
	}
	if now.Sub(s.lastWork) > limit {
		return errSilent
	}
	s.isDecoding = true
	s.showLate(WaitingForPostgres, "decoding", fmt.Sprintf("the server has sent nothing for %s and its walsender works: it decodes a large transaction", silence.Round(time.Second)))
	return nil
}

// stalledBecause returns the error of a session that Kafka has given no acknowledgement for too long.
func (s *session) stalledBecause(what string) error {
	if err := s.sink.Healthy(); err != nil {
		what += ": " + err.Error()
	}
	return &errStalled{what}
}

// guard checks the catalogs in a goroutine of its own: the session's goroutine must not wait for a query.
type guard struct {
	undecided bool            // the last check had no result
	slot      pglogrepl.LSN   // the slot's position at the last check
	renew     func(time.Time) // renews the lease after a check that found our walsender at the slot; nil: no lease
	ask       chan struct{}
	answer    chan guardAnswer
	notify    func()
}

type guardAnswer struct {
	slot *replication.Slot
	err  error
}

// guardTimeout is the longest duration of a catalog check, in case the network loses it.
const guardTimeout = 10 * time.Second

func newGuard(notify func()) guard {
	return guard{ask: make(chan struct{}, 1), answer: make(chan guardAnswer, 1), notify: notify}
}

// run runs catalog checks on request until ctx ends.
func (g *guard) run(ctx context.Context, stream Stream) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.ask:
		}
		checking, cancel := context.WithTimeout(ctx, guardTimeout)
		slot, err := g.check(checking, stream)
		cancel()
		g.answer <- guardAnswer{slot, err}
		g.notify()
	}
}

// check makes a catalog check. If it finds our walsender at the slot, the lease is renewed.
func (g *guard) check(ctx context.Context, stream Stream) (*replication.Slot, error) {
	slot, err := stream.Check(ctx)
	if g.renew != nil && slot != nil {
		g.renew(slot.Asked)
	}
	return slot, err
}

// takeCheck takes the result of a catalog check, if there is one.
func (s *session) takeCheck() error {
	var a guardAnswer
	select {
	case a = <-s.guard.answer:
	default:
		return nil
	}
	g, r := &s.guard, s.r
	if a.slot != nil {
		g.slot = a.slot.ConfirmedFlush
		if a.slot.Works {
			s.lastWork = a.slot.Asked
		}
		r.publishSlot(a.slot)
	}
	if errors.Is(a.err, replication.ErrUndecided) {
		s.rule.CheckUndecided()
		if !g.undecided {
			r.log.Warn("confirmation paused", "because", a.err)
		}
		g.undecided = true
		return nil
	}
	if a.err != nil {
		s.rule.CheckUndecided() // the session ends
		if s.keepsRecord && replication.KindOf(a.err) == replication.PublicationChanged {
			return nil // once the position record has the finding; each check has the same one
		}
		return a.err
	}
	s.rule.CheckPassed()
	if g.undecided {
		r.log.Info("confirmation resumed")
	}
	g.undecided = false
	return nil
}
