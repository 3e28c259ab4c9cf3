package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
)

// stop ends Run with an error that no retry can fix.
func (r *Relay) stop(ctx context.Context, class Class, cause error) error {
	reason := cause.Error() // of all but poison events it has the remedy
	if poison, ok := errors.AsType[*router.Poison](cause); ok {
		poison.Remedy = r.cfg.Poison.remedy(poison)
		reason += "; remedy: " + poison.Remedy
	}
	r.setState(Failed, reason)
	// With class Lost, the next process may not notice what happened to the slot or the publication.
	if r.cfg.Poison.Hold && (class == Poison || class == Lost && r.delivered()) {
		r.hold(ctx, cause)
	}
	return &Stopped{Class: class, Err: cause}
}

// hold waits until the process is stopped, so that a supervisor does not restart it again and again. It keeps the
// slot from its idle timeout, so that events that wait for the operator's decision are not lost.
func (r *Relay) hold(ctx context.Context, cause error) {
	r.log.Error("holding: nothing is delivered or confirmed until an operator resolves the error and restarts the process", "error", cause)
	logged := ""
	for ctx.Err() == nil {
		r.sleep(ctx, probeEvery)
		if err := r.keepSlot(ctx); err != nil && err.Error() != logged {
			logged = err.Error()
			r.log.Error("waiting events may be lost", "error", err)
		}
	}
}

// wait waits, depending on the error that ended the last session, until the next one may begin.
func (r *Relay) wait(ctx context.Context, v verdict, cause error, attempt int) error {
	switch v.wait {
	case waitNot:
		return nil
	case waitSlot:
		r.setState(WaitingForSlot, cause.Error())
		return r.source.WaitFree(ctx, func(s *replication.Slot) { r.tick(); r.publishSlot(s) })
	case park:
		return r.park(ctx, Parked, cause)
	case parkForPosition:
		return r.park(ctx, WaitingForPosition, cause)
	default:
		r.backoff(ctx, attempt, cause)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if v.wait == waitProbe && r.probe(ctx) != nil {
			return r.park(ctx, Parked, cause)
		}
		if errors.As(cause, new(*replication.Error)) {
			return nil // the next session uses the slot
		}
		return r.keepSlot(ctx)
	}
}

// probeEvery bounds the random part of the pause between two probes while parked. probeTimeout is for one run of a
// command that makes a token, credential.Timeout, and as long again for the requests.
const (
	probeEvery   = 3 * time.Second
	probeTimeout = 20 * time.Second
)

// probe checks whether Kafka can do now what the last session waited for.
func (r *Relay) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return r.sinks.Probe(ctx)
}

// backoff sleeps for a random time up to a ceiling that doubles with each attempt (full jitter).
func (r *Relay) backoff(ctx context.Context, attempt int, cause error) {
	ceiling := r.cfg.BackoffMax
	if isUnavailable(cause) {
		ceiling = min(ceiling, unavailableBackoffMax)
	}
	if attempt < 16 {
		ceiling = min(ceiling, r.cfg.BackoffMin<<attempt)
	}
	d := time.Duration(r.jitter(int64(ceiling) + 1))
	r.setStateOf(Reconnecting, classify(cause, r.delivered()).reason, cause.Error())
	r.log.Debug("retrying", "in", d, "attempt", attempt+1, "error", cause)
	r.sleep(ctx, d)
}

// unavailableBackoffMax is the longest pause between two attempts while Postgres is unavailable. An attempt is cheap,
// and delivery has to resume within 5 s after a new primary accepts connections: the rest is for the attempt itself.
const unavailableBackoffMax = 2 * time.Second

// sleep waits for d or the end of ctx, and ticks meanwhile, so that the main loop counts as alive.
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

// park waits, without a replication connection, until a probe finds that Kafka works again. The slot keeps the WAL
// meanwhile, and Postgres can be stopped and started freely.
func (r *Relay) park(ctx context.Context, state State, cause error) error {
	r.setState(state, cause.Error())
	for attempt := 0; ctx.Err() == nil; attempt++ {
		r.sleep(ctx, probeEvery/4+time.Duration(r.jitter(int64(min(probeEvery, 250*time.Millisecond<<min(attempt, 8))))))
		err := r.probe(ctx)
		if err == nil {
			return nil
		}
		if r.missingTooLong() {
			return nil // a session checks whether the topic is still missing, and handles its events as poison
		}
		level := slog.LevelDebug
		if attempt == 0 { // what Kafka says now has the remedy; the cause of parking may be its silence alone
			level = slog.LevelWarn
		}
		r.log.Log(ctx, level, "still parked", "error", err)
		r.setReason(state, err.Error())
		if err := r.keepSlot(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// keepSlot opens and closes the slot, which restarts idle_replication_slot_timeout (PostgreSQL 18), when a third of
// the timeout has passed since the slot was last used. Nothing is confirmed. It returns only errors that no retry can
// fix, such as another history: a server that is unavailable cannot invalidate the slot.
func (r *Relay) keepSlot(ctx context.Context) error {
	idle := r.mem.idleTimeout / 3
	if r.mem.slotUsed.IsZero() { // no session yet, so the timeout is not known
		idle = firstKeepAfter
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
			r.mem.slotUsed = r.clock() // another client uses it
		}
		return nil
	}
	id := stream.Identity()
	other := r.mem.Check(id)
	if other == nil {
		r.mem.NoteServer(id)
	}
	r.mem.slotUsed, r.mem.idleTimeout = r.clock(), stream.IdleTimeout()
	if found := stream.Found(); found != nil { // the next session stores it, which needs Kafka, and ends the process
		r.log.Error("events may be missing in the stream", "error", found)
	}
	if err := stream.Close(0, r.clock()); err != nil {
		r.log.Debug("close the slot", "error", err)
	}
	return other
}

// firstKeepAfter is how long a process without a session waits before it opens the slot and learns the timeout.
const firstKeepAfter = time.Minute
