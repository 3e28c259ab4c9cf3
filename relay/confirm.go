package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/replication"
)

// turn does what is due besides reading: it ends the session when told to, takes the guard's answer, sends status
// updates, and watches for silence on either side. It returns when it wants to be called again at the latest.
func (s *session) turn(ctx context.Context, now time.Time) (time.Time, error) {
	r := s.r
	r.tick()
	if s.heard {
		s.heard, s.lastHeard = false, now
	}
	if ctx.Err() != nil {
		// The sink stores what it has to say before it ends the context.
		if failure := s.failure.Load(); failure != nil {
			return now, *failure
		}
		// The rest of a transaction that is half sent: without its Commit it cannot be confirmed and would be repeated.
		// A long one is left all the same, and one that waits for Kafka already.
		if s.finishBy.IsZero() {
			s.finishBy = now.Add(grace)
		}
		if !s.inTx || s.awaiting != "" && s.awaiting != goesAlone || !now.Before(s.finishBy) {
			return now, errShutdown
		}
	}
	r.progress(s)
	if err := s.keepGuard(now); err != nil {
		return now, err
	}
	if err := s.confirm(now); err != nil {
		return now, err
	}
	if err := s.watch(now); err != nil {
		return now, err
	}
	third := r.cfg.WalSenderTimeout / 3
	// Nothing wakes us when something is acknowledged, so this bounds for how long it goes unnoticed.
	next := earlier(now.Add(min(r.cfg.statusLeast(), roundLeast, r.cfg.leaseEvery())), s.lastSaid.Add(third))
	if !s.guard.looking {
		next = earlier(next, s.guard.last.Add(s.lookEvery()))
		if s.tracker.Acked() > s.guard.safe {
			next = earlier(next, s.lookDue())
		}
	}
	if s.safe() > s.confirmed {
		next = earlier(next, maxTime(s.said.due, s.held(now)))
	}
	if s.past.on && !s.past.saving && s.wanted() > s.past.allowed {
		next = earlier(next, maxTime(s.recordDue(), s.held(now)))
	}
	if !s.finishBy.IsZero() {
		next = earlier(next, s.finishBy)
	}
	if s.replyDue {
		next = earlier(next, s.lastSaid.Add(replyEvery))
	}
	return next, nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// replyEvery bounds the answers that carry nothing new: a server that shuts down asks as fast as we answer.
const replyEvery = 100 * time.Millisecond

// keepGuard takes the guard's answer, and has it look if that is due: before something is confirmed, and to keep the lease.
func (s *session) keepGuard(now time.Time) error {
	if err := s.guard.result(s.r); err != nil {
		return err
	}
	if s.tracker.Acked() > s.guard.safe && !now.Before(s.lookDue()) || now.Sub(s.guard.last) >= s.lookEvery() {
		s.guard.look(now, s.received)
	}
	return nil
}

// confirm sends a status update if one is due.
func (s *session) confirm(now time.Time) error {
	if err := s.keepPosition(now); err != nil {
		return err
	}
	cfg := &s.r.cfg
	since := now.Sub(s.lastSaid)
	moved := s.safe() > s.confirmed
	switch {
	case moved && !now.Before(s.said.due) && !s.moreSoon(now),
		since >= cfg.WalSenderTimeout/3,
		s.replyDue && (moved || since >= replyEvery):
		// Long silence of the server: ask it for a sign of life, wal_sender_timeout/3 before we would give it up.
		if err := s.say(now, now.Sub(s.lastHeard) >= cfg.WalSenderTimeout/3); err != nil {
			return err
		}
	}
	return nil
}

// safe is what may be confirmed: what is wanted, as far as the position topic allows it. A slot that stands beyond that was
// moved by somebody else.
func (s *session) safe() pglogrepl.LSN {
	if s.past.on || s.past.saving { // or the first record is on its way
		return max(s.confirmed, min(s.wanted(), s.past.allowed))
	}
	return s.wanted()
}

// wanted is what the slot should be told: acknowledged, guarded, and of a history that is known to be ours. Until what was
// delivered before has come by again, what is dropped before it may be another's.
func (s *session) wanted() pglogrepl.LSN {
	if s.frozen || s.resume.Expecting() {
		return s.confirmed
	}
	return max(s.confirmed, min(s.tracker.Acked(), s.guard.safe))
}

// say sends a status update with the highest position that is acknowledged and guarded.
func (s *session) say(now time.Time, reply bool) error {
	safe := s.safe()
	s.r.mem.Sending(s.stream.Identity(), safe)
	if err := s.stream.Status(safe, reply, now); err != nil {
		s.r.met.statusFailed.Inc()
		s.statusFailed = true
		return err
	}
	if safe > s.confirmed {
		s.r.said(safe, now)
		s.said.happened(now, s.r.cfg.statusLeast())
	}
	s.confirmed, s.lastSaid, s.replyDue = safe, now, false
	s.r.met.statusSent.Inc()
	return nil
}

// watch ends a session in which one of the two sides has gone silent.
func (s *session) watch(now time.Time) error {
	events, _ := s.tracker.InFlight()
	topics := s.sink.Waiting()
	if events == 0 && s.awaiting == "" && !s.past.saving {
		s.waitSince = time.Time{}
		// Only a reader can expect to hear something.
		if now.Sub(s.lastHeard) > s.r.cfg.WalSenderTimeout {
			return errSilent
		}
		return nil
	}
	if s.waitSince.IsZero() {
		s.waitSince = now
	}
	last := maxTime(s.waitSince, s.ackedAt())
	last = maxTime(last, s.r.mem.fence) // until then it is not Kafka that is waited for
	if now.Sub(last) < s.r.cfg.ParkAfter {
		return nil
	}
	what := fmt.Sprintf("%d events in flight for %s", events, s.r.cfg.ParkAfter)
	switch {
	case len(topics) > 0 && s.awaiting != "":
		what = fmt.Sprintf("topic %s is missing or forbidden; create it, or grant it", topics[0])
	case events == 0 && s.awaiting == "":
		what = "the position record"
	case events == 0:
		what = s.awaiting
	}
	return s.unheard(what)
}

// unheard is the end of a session that Kafka has not acknowledged something for too long.
func (s *session) unheard(what string) error {
	if err := s.sink.Healthy(); err != nil {
		what += ": " + err.Error()
	}
	return &errStalled{what}
}

// guard asks the catalogs whether the stream is whole, beside the session's goroutine, which must not wait for a query.
// safe is the position that was received before the start of the last look that found everything well.
type guard struct {
	safe      pglogrepl.LSN
	asked     pglogrepl.LSN // received when the running look was asked for
	looking   bool
	undecided bool            // the last look could not tell
	slot      pglogrepl.LSN   // where the slot stood at the last look
	last      time.Time       // start of the last look
	due       time.Time       // before which no further one is made for the sake of what waits to be confirmed
	seen      func(time.Time) // is called when a look has found the slot ours; nil: no session asks
	ask       chan struct{}
	answer    chan guardAnswer
	notify    func()
}

type guardAnswer struct {
	slot *replication.Slot
	err  error
}

const (
	// guardMost is how often the guard looks with nothing to confirm; with something, it is once in a round.
	guardMost = 15 * time.Second
	// guardTimeout bounds one look, should the network swallow it.
	guardTimeout = 10 * time.Second
)

// init lets the first look be taken after first: a process that lives for less than a second may confirm something too.
func (g *guard) init(start pglogrepl.LSN, now time.Time, first time.Duration, notify func()) {
	*g = guard{safe: start, last: now, due: now.Add(first), ask: make(chan struct{}, 1), answer: make(chan guardAnswer, 1), notify: notify}
}

// run answers until ctx ends.
func (g *guard) run(ctx context.Context, stream Stream) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.ask:
		}
		look, cancel := context.WithTimeout(ctx, guardTimeout)
		slot, err := stream.Check(look)
		cancel()
		if g.seen != nil && slot != nil && (err == nil || errors.Is(err, replication.ErrUndecided)) {
			g.seen(slot.Asked)
		}
		g.answer <- guardAnswer{slot, err}
		g.notify()
	}
}

// look starts a look unless one is running.
func (g *guard) look(now time.Time, received pglogrepl.LSN) {
	if g.looking {
		return
	}
	g.looking, g.asked, g.last, g.due = true, received, now, now.Add(roundLeast)
	g.ask <- struct{}{}
}

// result takes an answer if there is one.
func (g *guard) result(r *Relay) error {
	select {
	case a := <-g.answer:
		return g.take(a, r)
	default:
		return nil
	}
}

func (g *guard) take(a guardAnswer, r *Relay) error {
	g.looking = false
	if a.slot != nil {
		g.slot = a.slot.ConfirmedFlush
		r.sawSlot(a.slot)
	}
	if errors.Is(a.err, replication.ErrUndecided) {
		if !g.undecided {
			r.log.Warn("confirmation paused", "because", a.err)
		}
		g.undecided = true
		return nil
	}
	if a.err != nil {
		return a.err
	}
	if g.undecided {
		r.log.Info("confirmation resumed")
	}
	g.undecided = false
	g.safe = max(g.safe, g.asked)
	return nil
}
