// Package relay is the pipeline from the walsender to Kafka: one session's loop, and the supervisor that starts the
// next one. It is the package to read first: session.go is one session from connect to first error, confirm.go decides
// when the slot is told how far Kafka has got, classify.go what an error means.
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
	// WaitFree returns once nobody holds the slot; tick is called with every look at it.
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
	Resolve(ctx context.Context, oid uint32, schema, name string) (table int, err error)
	Tables() []replication.TableNow
	Close(last pglogrepl.LSN, now time.Time) error
}

// Sink delivers the records of one session. One goroutine calls Ready, Check and Send. Nothing in it blocks for long.
type Sink interface {
	// Ready reports whether records may be sent to the topic. False: it is being looked up, or missing and looked for
	// again and again; Callbacks.Wake says when to ask again.
	Ready(topic string) (bool, error)
	// Missing reports that Kafka answers and has no such topic.
	Missing(topic string) bool
	// Check recognises a record that Kafka would refuse before it is sent. alone asks for it to be sent with nothing
	// else in flight.
	Check(rec *router.Record) (alone bool, poison *router.Poison)
	// Send hands a record over under its event number. It copies what it keeps. Per partition, acknowledgements come
	// in the order of Send without holes, or the session has failed.
	Send(rec *router.Record, n uint64) error
	// Flush says that no more is coming for now: what was sent need not wait for company. Any goroutine may call it.
	Flush()
	// Healthy returns nil when Kafka has answered lately.
	Healthy() error
	// Waiting lists topics that are looked for.
	Waiting() []string
	// Close waits until nothing is in flight or ctx ends, then cuts; no callback runs after it.
	Close(ctx context.Context) error
	Past
}

// Callbacks is what a sink reports, from goroutines of its own.
type Callbacks struct {
	Acked  func(n uint64)  // event n is in Kafka
	Failed func(err error) // the first error: the session is over
	Wake   func()          // Ready may answer differently now
}

// Kafka opens sinks.
type Kafka interface {
	Open(ctx context.Context, cb Callbacks) (Sink, error)
	// Probe returns nil when just that would work now which the last session waited for.
	Probe(ctx context.Context) error
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

// DefaultConfig is what surface §3 promises.
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

// Relay delivers one slot's outbox to Kafka until it is told to stop or finds something that no retry can mend.
type Relay struct {
	cfg    Config
	source Source
	kafka  Kafka
	router *router.Router
	log    *slog.Logger
	met    *Metrics

	started time.Time
	mem     memory                                 // what earlier sessions of this process delivered
	refused map[checkpoint.Position]*router.Poison // by Kafka, and not to stop the relay
	missing map[string]absence                     // topics that Kafka does not have; the session's, or between two the supervisor's
	careful pglogrepl.LSN                          // transactions up to this commit LSN are sent record by record, to find the one refused

	mu     sync.Mutex // guards view
	view   view
	clock  func() time.Time
	jitter func(n int64) int64 // below n
}

// New wires a relay; it connects to nothing.
func New(cfg Config, source Source, kafka Kafka, r *router.Router, met *Metrics, log *slog.Logger) *Relay {
	rl := &Relay{cfg: cfg, source: source, kafka: kafka, router: r, met: met, log: log, clock: time.Now, jitter: rand.Int64N, refused: map[checkpoint.Position]*router.Poison{}, missing: map[string]absence{}}
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
// error of a class that a retry cannot mend comes up (then it returns *Stopped).
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
			return r.goodbye()
		}
		v := classify(err, r.delivered())
		if v.class != Retry {
			r.setState(Failed, err.Error())
			if v.class == Poison && r.cfg.Poison.Hold {
				r.hold(ctx, err)
			}
			return &Stopped{Class: v.class, Err: err}
		}
		r.met.reconnects.WithLabelValues(v.reason).Inc()
		if err := r.wait(ctx, v, err, attempt); err != nil {
			if ctx.Err() != nil {
				return r.goodbye()
			}
			// What waiting ran into is classified like what a session runs into.
			if w := classify(err, r.delivered()); w.class != Retry {
				r.setState(Failed, err.Error())
				return &Stopped{Class: w.class, Err: err}
			}
			r.backoff(ctx, attempt, err)
		}
	}
}

// hold stands still at poison until it is told to end, so that a supervisor does not start it again and again. Each start
// would have used the slot; here it is kept from its idle timeout instead, or what waits for the decision would be lost.
func (r *Relay) hold(ctx context.Context, cause error) {
	r.log.Error("holding at a poison event: nothing is delivered or confirmed until it is decided and the process started again", "error", cause)
	for ctx.Err() == nil {
		r.sleep(ctx, probeEvery)
		if err := r.keepSlot(ctx); err != nil {
			r.log.Debug("hold", "error", err)
		}
	}
}

// goodbye is the end of Run when it was told to stop: well only if everything acknowledged is confirmed. What we sent
// last may have been lost on the way, or taken without an answer, so the slot is asked.
func (r *Relay) goodbye() error {
	done := r.mem.progress.Done
	if done.IsZero() {
		return nil
	}
	confirmed := r.mem.confirmed
	ctx, cancel := context.WithTimeout(context.Background(), goodbyeTimeout)
	defer cancel()
	if slot, err := r.source.Look(ctx); err == nil {
		confirmed = slot.ConfirmedFlush
	}
	if done.CommitLSN >= confirmed {
		return &Stopped{Class: Fault, Err: fmt.Errorf("stopped while Postgres could not be told: transactions up to the one "+
			"committed at %s are in Kafka, the slot is confirmed up to %s; the difference is repeated by the next start", done.CommitLSN, confirmed)}
	}
	return nil
}

// goodbyeTimeout bounds the last look at the slot.
const goodbyeTimeout = 5 * time.Second

// wait spends the time until the next session in the way that suits what ended the last one.
func (r *Relay) wait(ctx context.Context, v verdict, cause error, attempt int) error {
	switch v.how {
	case waitSlot:
		r.setState(WaitingForSlot, cause.Error())
		return r.source.WaitFree(ctx, func(s *replication.Slot) { r.tick(); r.sawSlot(s) })
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

// probe asks whether just that would work now which the last session waited for.
func (r *Relay) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return r.kafka.Probe(ctx)
}

// backoff sleeps for a random time between nothing and a ceiling that doubles with each attempt (full jitter).
func (r *Relay) backoff(ctx context.Context, attempt int, cause error) {
	ceiling := r.cfg.BackoffMax
	if away(cause) {
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

// probeEvery bounds the pause between two probes while parked, so that delivery goes on soon after Kafka is back.
const (
	probeEvery   = 3 * time.Second
	probeTimeout = 10 * time.Second
)

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
// error that no retry can mend is one.
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
			r.mem.slotUsed = r.clock() // somebody else keeps it
		}
		return nil
	}
	r.mem.slotUsed, r.mem.idleTimeout = r.clock(), stream.IdleTimeout()
	if err := stream.Close(0, r.clock()); err != nil {
		r.log.Debug("close the slot again", "error", err)
	}
	return nil
}

// learnAfter is how long a process that has had no session waits until it opens the slot to learn its time-out.
const learnAfter = time.Minute

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// slotEvery is how often the slot is looked at for the metrics.
const slotEvery = 15 * time.Second

// watchSlot keeps the slot's metrics true while no session does, which is when they matter most.
func (r *Relay) watchSlot(ctx context.Context) {
	tick := time.NewTicker(slotEvery / 5) // a session's last look was at any time
	defer tick.Stop()
	var tried time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if r.clock().Sub(tried) < slotEvery || !r.slotUnwatched() {
			continue
		}
		tried = r.clock()
		look, cancel := context.WithTimeout(ctx, slotEvery)
		slot, err := r.source.Look(look)
		cancel()
		if slot != nil {
			r.sawSlot(slot)
		}
		if err != nil {
			r.met.slot.pollErrors.Inc()
			r.log.Debug("look at the slot", "error", err)
		}
	}
}
