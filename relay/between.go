package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/outboxcdc/outboxcdc/replication"
)

// stop is the end of Run with an error that no retry can fix.
func (r *Relay) stop(ctx context.Context, class Class, cause error) error {
	r.setState(Failed, cause.Error())
	// What this process has seen happen to slot or publication the next one may not know.
	if r.cfg.Poison.Hold && (class == Poison || class == Lost && r.delivered()) {
		r.hold(ctx, cause)
	}
	return &Stopped{Class: class, Err: cause}
}

// hold waits until the process is stopped, so that a supervisor does not start it again and again. Each start
// would have used the slot; here it is kept from its idle timeout instead, or what waits for the decision would be lost.
func (r *Relay) hold(ctx context.Context, cause error) {
	r.log.Error("holding: nothing is delivered or confirmed until an operator has decided and restarted the process", "error", cause)
	found := ""
	for ctx.Err() == nil {
		r.sleep(ctx, probeEvery)
		if err := r.keepSlot(ctx); err != nil && err.Error() != found {
			found = err.Error()
			r.log.Error("what waits for the decision may be lost", "error", err)
		}
	}
}

// wait spends the time until the next session in the way that suits what ended the last one.
func (r *Relay) wait(ctx context.Context, v verdict, cause error, attempt int) error {
	switch v.how {
	case waitSlot:
		r.setState(WaitingForSlot, cause.Error())
		return r.source.WaitFree(ctx, func(s *replication.Slot) { r.tick(); r.publishSlot(s) })
	case park:
		return r.park(ctx, cause)
	default:
		r.backoff(ctx, attempt, cause)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if v.reason == "kafka" && r.probe(ctx) != nil {
			return r.park(ctx, cause)
		}
		if errors.As(cause, new(*replication.Error)) {
			return nil // Postgres itself is tried again and again
		}
		return r.keepSlot(ctx)
	}
}

// probeEvery bounds the pause between two probes while parked, so that delivery goes on soon after Kafka is back.
const (
	probeEvery   = 3 * time.Second
	probeTimeout = 10 * time.Second
)

// probe asks whether just that would work now which the last session waited for.
func (r *Relay) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return r.kafka.Probe(ctx)
}

// backoff sleeps for a random time between nothing and a ceiling that doubles with each attempt (full jitter).
func (r *Relay) backoff(ctx context.Context, attempt int, cause error) {
	ceiling := r.cfg.BackoffMax
	if isUnavailable(cause) {
		ceiling = min(ceiling, awayMax)
	}
	if attempt < 16 {
		ceiling = min(ceiling, r.cfg.BackoffMin<<attempt)
	}
	d := time.Duration(r.jitter(int64(ceiling) + 1))
	r.setStateOf(Reconnecting, classify(cause, r.delivered()).reason, cause.Error())
	r.log.Debug("retrying", "in", d, "attempt", attempt+1, "error", cause)
	r.sleep(ctx, d)
}

// awayMax is the longest pause between two tries while Postgres is away: a try costs it next to nothing, and delivery goes
// on soon after it is back.
const awayMax = 10 * time.Second

// sleep waits for d or the end of ctx, and shows meanwhile that the main loop lives.
func (r *Relay) sleep(ctx context.Context, d time.Duration) {
	end := time.NewTimer(d)
	defer end.Stop()
	beat := time.NewTicker(time.Second)
	defer beat.Stop()
	for {
		r.tick()
		select {
		case <-ctx.Done():
			return
		case <-end.C:
			return
		case <-beat.C:
		}
	}
}

// park leaves the server alone until Kafka can take what was waiting: the replication connection is closed, the slot
// keeps the WAL, and Postgres can be stopped and started freely.
func (r *Relay) park(ctx context.Context, cause error) error {
	r.setState(Parked, cause.Error())
	for attempt := 0; ctx.Err() == nil; attempt++ {
		r.sleep(ctx, probeEvery/4+time.Duration(r.jitter(int64(min(probeEvery, 250*time.Millisecond<<min(attempt, 8))))))
		err := r.probe(ctx)
		if err == nil {
			return nil
		}
		if r.missingTooLong() {
			return nil // a session will find out whether it still is, and make poison of what is for it
		}
		r.log.Debug("still parked", "error", err)
		r.setReason(err.Error())
		if err := r.keepSlot(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// keepSlot opens and closes the slot, which restarts idle_replication_slot_timeout (PostgreSQL 18), before half of that
// has passed since it was last used. Nothing is confirmed. A server that is away can invalidate nothing, so only an
// error that no retry can fix is one; that this is another server than before is.
func (r *Relay) keepSlot(ctx context.Context) error {
	idle := r.mem.idleTimeout / 3
	if r.mem.slotUsed.IsZero() { // no session yet, so the time-out is not known: Kafka is away since the start
		idle = learnAfter
	}
	if idle == 0 || r.clock().Sub(maxTime(r.mem.slotUsed, r.started)) < idle {
		return nil
	}
	open, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	stream, err := r.source.Open(open)
	if err != nil {
		if classify(err, r.delivered()).class != Retry {
			return fmt.Errorf("keep the slot from its idle timeout: %w", err)
		}
		r.log.Debug("keep the slot from its idle timeout", "error", err)
		if replication.KindOf(err) == replication.SlotActive {
			r.mem.slotUsed = r.clock() // another client keeps it
		}
		return nil
	}
	id := stream.Identity()
	other := r.mem.Check(id)
	if other == nil {
		r.mem.NoteServer(id)
	}
	r.mem.slotUsed, r.mem.idleTimeout = r.clock(), stream.IdleTimeout()
	if err := stream.Close(0, r.clock()); err != nil {
		r.log.Debug("close the slot again", "error", err)
	}
	return other
}

// learnAfter is how long a process that has had no session waits until it opens the slot to learn its time-out.
const learnAfter = time.Minute
