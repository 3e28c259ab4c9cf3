// Package relay is the pipeline from the walsender to Kafka: the loop of one session, and the supervisor that starts
// the next session. Read this package first. session.go is one session from connect to first error, confirm.go runs
// the actions of the confirm rule of package checkpoint, classify.go decides what an error means, and retry.go waits
// between sessions.
//
// The package obeys the confirm rule (docs: ARCHITECTURE.md). It sends events in order and ends a session at the
// first error. A process does not send an event again that Kafka has acknowledged. Kafka is known only as a [Sink].
package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
)

// Source opens sessions with the walsender. replication.Source implements it.
type Source interface {
	// Open starts replication from the slot's own position.
	Open(ctx context.Context) (Stream, error)
	// WaitFree returns when the slot is free. It calls tick each time it has read the slot.
	WaitFree(ctx context.Context, tick func(*replication.Slot)) error
	// Look reads the slot over a connection that is closed at once.
	Look(ctx context.Context) (*replication.Slot, error)
}

// Stream is one session with the walsender. replication.Stream documents the methods.
type Stream interface {
	Identity() replication.Identity
	Start() pglogrepl.LSN
	Missing() []string
	Found() error
	IdleTimeout() time.Duration
	SetDeadline(t time.Time) bool
	Receive() (replication.Message, error)
	OnDrained(f func())
	Interrupt()
	Status(confirmed pglogrepl.LSN, reply bool, now time.Time) error
	Check(ctx context.Context) (*replication.Slot, error)
	Resolve(ctx context.Context, rel *replication.Announced) (table int, err error)
	Types(ctx context.Context, oids []uint32) (replication.Types, error)
	Tables() []replication.TableNow
	Published() string
	Altered(ctx context.Context, published string) (replication.Alteration, error)
	Close(last pglogrepl.LSN, now time.Time) error
}

// Config has the relay's own settings.
type Config struct {
	StatusInterval   time.Duration // how often a moved position is confirmed
	WalSenderTimeout time.Duration // the longest silence of the server; ours is at most a third of it
	ParkAfter        time.Duration // how long events wait without an acknowledgement before the relay parks
	ShutdownTimeout  time.Duration // the longest duration of the drain
	MaxEvents        int           // maximum number of events in flight
	MaxBytes         int64         // maximum bytes in flight
	BackoffMin       time.Duration // full jitter between retries: 0 to BackoffMin, doubling up to BackoffMax
	BackoffMax       time.Duration
	Poison           PoisonPolicies
	// MissingAfter is how long a topic may be missing before its events are poison; 0: no limit.
	MissingAfter time.Duration
	// MessagePrefix is the prefix of the logical messages that are events; "": no messages are events.
	MessagePrefix string
	// Slot is the name of the slot in the header outboxcdc-position.
	Slot string
	// Sink is the name of what events are delivered to.
	Sink string
	// Deduplication skips, after a crash, events that Kafka has.
	Deduplication Deduplication
}

// DefaultConfig returns the default settings.
func DefaultConfig() Config {
	return Config{
		StatusInterval:   time.Second,
		WalSenderTimeout: 15 * time.Second,
		ParkAfter:        30 * time.Second,
		ShutdownTimeout:  30 * time.Second,
		MaxEvents:        50_000,
		MaxBytes:         16 << 20,
		BackoffMin:       100 * time.Millisecond,
		BackoffMax:       30 * time.Second,
		Sink:             "Kafka",
	}
}

// Relay delivers the events of one slot until it is stopped or meets an error that no retry can fix.
type Relay struct {
	cfg    Config
	source Source
	sinks  Sinks
	router *router.Router
	log    *slog.Logger
	met    *Metrics

	// Used by the session, and between sessions by the supervisor.
	started       time.Time
	mem           memory
	refusedEvents map[checkpoint.Position]*router.Poison // events that Kafka has refused and whose policy is not to stop
	missingTopics map[string]absence                     // topics that Kafka does not have
	gaveUpAt      time.Time                              // when the last wait for a missing topic was over
	suspects      suspects                               // one of them was refused by Kafka

	mu               sync.Mutex // guards view and reportedPhantoms
	view             view
	reportedPhantoms map[string]int // by partition and timeline
	clock            func() time.Time
	jitter           func(n int64) int64 // below n
}

// New returns a relay. It connects to nothing.
func New(cfg Config, source Source, sinks Sinks, r *router.Router, met *Metrics, log *slog.Logger) *Relay {
	rl := &Relay{
		cfg: cfg, source: source, sinks: sinks, router: r, met: met, log: log, clock: time.Now, jitter: rand.Int64N,
		refusedEvents: map[checkpoint.Position]*router.Poison{}, missingTopics: map[string]absence{}, reportedPhantoms: map[string]int{},
	}
	rl.mem.History, rl.mem.resent = checkpoint.NewHistory(), newResentEvents()
	now := rl.clock()
	rl.started = now
	rl.view = view{state: Starting, since: now, changed: now, stopped: now, beat: now}
	met.observe(rl)
	return rl
}

// Stopped is the error of Run, with its class.
type Stopped struct {
	Class Class
	Err   error
}

func (s *Stopped) Error() string { return s.Err.Error() }
func (s *Stopped) Unwrap() error { return s.Err }

// errShutdown ends a session on shutdown.
var errShutdown = errors.New("shutting down")

// Run runs sessions until ctx ends or an error occurs that no retry can fix. When ctx ends, it drains and returns
// nil, or an error if the drain was incomplete. After an error that no retry can fix it returns *Stopped.
func (r *Relay) Run(ctx context.Context) error {
	watch, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { r.watchSlot(watch) })
	defer wg.Wait()
	defer stop()

	for attempt := 0; ; attempt++ {
		wentWell, err := r.session(ctx)
		if wentWell {
			attempt = 0
		}
		if ctx.Err() != nil && (errors.Is(err, errShutdown) || classify(err, r.delivered()).class == Retry) {
			return r.checkConfirmed()
		}
		v := classify(err, r.delivered())
		if v.class != Retry {
			return r.stop(ctx, v.class, err)
		}
		r.met.reconnects.WithLabelValues(v.reason).Inc()
		if err := r.wait(ctx, v, err, attempt); err != nil {
			if ctx.Err() != nil {
				return r.checkConfirmed()
			}
			// An error of the wait is classified like an error of a session.
			if w := classify(err, r.delivered()); w.class != Retry {
				return r.stop(ctx, w.class, err)
			}
			r.backoff(ctx, attempt, err)
		}
	}
}

// checkConfirmed returns the result of Run on shutdown: an error if an acknowledged transaction is not confirmed. It
// reads the slot, because the last status update may be lost.
func (r *Relay) checkConfirmed() error {
	done := r.mem.Done()
	if done == 0 {
		return nil
	}
	confirmed := r.mem.Confirmed()
	ctx, cancel := context.WithTimeout(context.Background(), finalCheckTimeout)
	defer cancel()
	if slot, err := r.source.Look(ctx); err == nil {
		confirmed = slot.ConfirmedFlush
	}
	if done >= confirmed {
		why := "before Postgres confirmed the last position"
		if r.mem.Rereading() {
			why = "before Postgres had sent again all events that were already delivered"
		}
		return &Stopped{Class: Fault, Err: fmt.Errorf("stopped %s: transactions up to the one committed at %s are in %s, "+
			"but the slot is confirmed only up to %s, where the next start begins", why, done, r.cfg.Sink, confirmed)}
	}
	return nil
}

// finalCheckTimeout is the longest duration of the last read of the slot.
const finalCheckTimeout = 5 * time.Second

// slotEvery is how often the slot is read for the metrics.
const slotEvery = 15 * time.Second

// watchSlot updates the slot's metrics while no session does.
func (r *Relay) watchSlot(ctx context.Context) {
	tick := time.NewTicker(slotEvery / 5) // a session may have read the slot at any time
	defer tick.Stop()
	var tried time.Time
	logged := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !r.slotUnwatched() {
			logged = ""
			continue
		}
		if r.clock().Sub(tried) < slotEvery {
			continue
		}
		tried = r.clock()
		looking, cancel := context.WithTimeout(ctx, slotEvery)
		slot, err := r.source.Look(looking)
		cancel()
		if slot != nil {
			r.publishSlot(slot)
		}
		if err == nil {
			continue
		}
		r.met.slot.pollErrors.Inc()
		r.log.Debug("read the slot", "error", err)
		// While the relay waits for Kafka, no session reports errors of Postgres.
		if ctx.Err() == nil && err.Error() != logged && r.waitsForKafka() {
			logged = err.Error()
			r.log.Warn("waiting for "+r.cfg.Sink+"; Postgres cannot be used either", "error", err)
		}
	}
}
