// Package relay is the pipeline from the walsender to Kafka: one session's loop, and the supervisor that starts the
// next one. It is the package to read first: session.go is one session from connect to first error, confirm.go does
// what the confirm rule of package checkpoint says, classify.go what an error means, between.go what happens until the next one.
//
// It promises the confirm rule (docs: ARCHITECTURE.md) towards the server, order and fail-stop towards the sink, and
// within the life of a process that what was acknowledged is not sent again. It knows Kafka only as a [Sink].
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

// Source opens sessions with the walsender. replication.Source is the real one.
type Source interface {
	// Open starts replication from the slot's own position.
	Open(ctx context.Context) (Stream, error)
	// WaitFree returns once the slot is free; tick is called with every look at it.
	WaitFree(ctx context.Context, tick func(*replication.Slot)) error
	// Look reads the slot over a connection that is closed again at once.
	Look(ctx context.Context) (*replication.Slot, error)
}

// Stream is one session with the walsender. replication.Stream says what each method means.
type Stream interface {
	Identity() replication.Identity
	Start() pglogrepl.LSN
	Missing() []string
	IdleTimeout() time.Duration
	SetDeadline(t time.Time) bool
	Receive() (replication.Message, error)
	OnDrained(f func())
	Interrupt()
	Status(confirmed pglogrepl.LSN, reply bool, now time.Time) error
	Check(ctx context.Context) (*replication.Slot, error)
	Resolve(ctx context.Context, rel *replication.Announced) (table int, err error)
	Tables() []replication.TableNow
	Published() string
	Altered(ctx context.Context, published string) (string, error)
	Close(last pglogrepl.LSN, now time.Time) error
}

// Config holds the relay's own settings.
type Config struct {
	StatusInterval   time.Duration // how often a moved position is confirmed
	WalSenderTimeout time.Duration // a third of it is the longest silence of ours, all of it the longest of the server
	ParkAfter        time.Duration // without an ack for so long while something waits: leave the server alone
	ShutdownTimeout  time.Duration // how long the drain may take
	MaxEvents        int           // the window: events in flight
	MaxBytes         int64         // and their bytes
	BackoffMin       time.Duration // full jitter between retries: 0 to BackoffMin, doubling up to BackoffMax
	BackoffMax       time.Duration
	Poison           Poisons
	// MissingAfter is for how long a topic may be missing until its events are poison; 0: for ever.
	MissingAfter time.Duration
	// MessagePrefix is that of the logical messages that are events; "": none are.
	MessagePrefix string
	// Deduplication, if it is wanted, leaves out after a crash what Kafka has.
	Deduplication Deduplication
}

// DefaultConfig has the defaults of the settings.
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
	}
}

// Relay delivers one slot's outbox to Kafka until it is told to stop or finds something that no retry can fix.
type Relay struct {
	cfg    Config
	source Source
	kafka  Kafka
	router *router.Router
	log    *slog.Logger
	met    *Metrics

	started         time.Time
	mem             memory                                 // what earlier sessions of this process delivered
	refused         map[checkpoint.Position]*router.Poison // by Kafka, and not to stop the relay
	missing         map[string]absence                     // topics that Kafka does not have; the session's, or between two the supervisor's
	gaveUp          time.Time                              // when the wait for one of them was over last; of the same
	sendSinglyUntil pglogrepl.LSN                          // transactions up to this commit LSN are sent record by record, to find the one refused

	mu       sync.Mutex // guards view and reported
	view     view
	reported map[string]checkpoint.Phantoms // by partition
	clock    func() time.Time
	jitter   func(n int64) int64 // below n
}

// New wires a relay; it connects to nothing.
func New(cfg Config, source Source, kafka Kafka, r *router.Router, met *Metrics, log *slog.Logger) *Relay {
	rl := &Relay{cfg: cfg, source: source, kafka: kafka, router: r, met: met, log: log, clock: time.Now, jitter: rand.Int64N, refused: map[checkpoint.Position]*router.Poison{}, missing: map[string]absence{}, reported: map[string]checkpoint.Phantoms{}}
	rl.mem.History = checkpoint.NewHistory()
	now := rl.clock()
	rl.started = now
	rl.view = view{state: Starting, since: now, changed: now, stopped: now, beat: now}
	met.observe(rl)
	return rl
}

// Stopped is what Run returns when the relay has ended for another reason than being told to.
type Stopped struct {
	Class Class
	Err   error
}

func (s *Stopped) Error() string { return s.Err.Error() }
func (s *Stopped) Unwrap() error { return s.Err }

// errShutdown is the cause of a session that ends because it was told to.
var errShutdown = errors.New("shutting down")

// Run runs sessions until ctx ends (then it has drained and returns nil, or an error if the drain was incomplete) or an
// error of a class that a retry cannot fix comes up (then it returns *Stopped).
func (r *Relay) Run(ctx context.Context) error {
	watch, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { r.watchSlot(watch) })
	defer wg.Wait()
	defer stop()

	for attempt := 0; ; attempt++ {
		well, err := r.session(ctx)
		if well {
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
			// What waiting ran into is classified like what a session runs into.
			if w := classify(err, r.delivered()); w.class != Retry {
				return r.stop(ctx, w.class, err)
			}
			r.backoff(ctx, attempt, err)
		}
	}
}

// checkConfirmed is the end of Run when it was told to stop: well only if everything acknowledged is confirmed. What we sent
// last may have been lost on the way, or taken without an answer, so the slot is asked.
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
		why := "while Postgres could not be told"
		if r.mem.Rereading() {
			why = "before all that was delivered earlier had come by again"
		}
		return &Stopped{Class: Fault, Err: fmt.Errorf("stopped %s: transactions up to the one committed at %s are in Kafka, "+
			"the slot is confirmed up to %s, where the next start begins", why, done, confirmed)}
	}
	return nil
}

// finalCheckTimeout bounds the last look at the slot.
const finalCheckTimeout = 5 * time.Second

// slotEvery is how often the slot is looked at for the metrics.
const slotEvery = 15 * time.Second

// watchSlot keeps the slot's metrics true while no session does, which is when they matter most.
func (r *Relay) watchSlot(ctx context.Context) {
	tick := time.NewTicker(slotEvery / 5) // a session's last look was at any time
	defer tick.Stop()
	var tried time.Time
	said := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !r.slotUnwatched() {
			said = ""
			continue
		}
		if r.clock().Sub(tried) < slotEvery {
			continue
		}
		tried = r.clock()
		look, cancel := context.WithTimeout(ctx, slotEvery)
		slot, err := r.source.Look(look)
		cancel()
		if slot != nil {
			r.publishSlot(slot)
		}
		if err == nil {
			continue
		}
		r.met.slot.pollErrors.Inc()
		r.log.Debug("look at the slot", "error", err)
		// While Kafka is waited for, no session says what is wrong with Postgres.
		if ctx.Err() == nil && err.Error() != said && r.waitsForKafka() {
			said = err.Error()
			r.log.Warn("waiting for Kafka; Postgres cannot be used either", "error", err)
		}
	}
}
