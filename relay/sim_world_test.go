package relay

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
)

// world is one run: a server, a broker, and processes. The script (sim_ops_test.go) runs in a goroutine of its own,
// the only one that uses Rand. After each operation it waits until nothing more happens.
type world struct {
	*rand.Rand
	seed  uint64
	begun time.Time
	cfg   Config
	met   *Metrics // of all processes, not checked

	mu    sync.Mutex // guards everything below, and all of pg and kafka
	pg    *simPG
	kafka *simKafka
	procs []*process

	calls    int    // calls across the boundary so far
	dieAt    int    // the number of the call in which the process dies; 0: none
	messages int    // messages read from streams so far
	cutAfter int    // number of messages after which the stream is cut; 0: it is not
	trace    uint64 // hash of all calls across the boundary
	story    *strings.Builder
	broken   string // the first violation of an invariant
	reached  [marks]bool
	trouble  time.Time     // the last fault that may delay a status update
	slowest  time.Duration // from healed to lag 0, without the pauses that heal allows
	refusals int

	dead      bool // poison goes to the dead-letter topic
	holding   bool // and holds its key
	hold      simHold
	audited   bool // audits run
	lower     bool // a restore has begun a timeline with a lower number
	forked    bool // a failover has lost transactions before recover
	slotKept  bool // the slot was not harmed before recover
	alike     bool // another database may have records that equal those of events
	stamped   bool // the settings give records a time of their own
	failovers bool // standbys are promoted
	owner     bool // the owner hides rows
	audits    []*SimAudit
	// of runs of recover
	recovers   int
	recovering bool              // recover has sent something, and has not finished
	adopted    time.Time         // when recover last wrote a position record
	positions  map[string]string // ids, by the position of their recovered records
	back       bool              // the server was taken back to an older state
	excused    map[Class]string  // classes with which a process may end now, and why
	sick       []condition       // that are active
	over       bool              // the run ends
	lastOp     string
	headers    simHeaders
}

func newWorld(o simOptions) *world {
	w := &world{
		Rand: rand.New(rand.NewPCG(o.seed, simVersion)), seed: o.seed, begun: time.Now(), met: o.met, cfg: DefaultConfig(),
		dieAt: o.dieAt, cutAfter: o.cutAfter, dead: o.dead, holding: o.hold, audited: o.audited, failovers: o.failovers, owner: o.owner, trace: 14695981039346656037, excused: map[Class]string{},
	}
	if o.story {
		w.story = &strings.Builder{}
	}
	w.cfg.MaxEvents = 1 + w.IntN(30)
	w.cfg.MessagePrefix, w.cfg.Slot = simPrefix, "slot"
	w.headers.owner = map[simHeader]*event{}
	// No whole seconds: timers that start and end together would make runs differ.
	w.cfg.ParkAfter = time.Duration(10+w.IntN(30))*time.Second + 1_000_037
	w.cfg.ShutdownTimeout = time.Duration(1+w.IntN(10))*time.Second + 3_000_011
	if w.dead {
		w.cfg.Poison = PoisonPolicies{Policy: DeadLetter, Topic: deadTopic, Decisions: map[string]PoisonPolicy{}}
		if w.IntN(2) == 0 {
			w.cfg.Poison.Causes = map[router.Cause]PoisonPolicy{router.NullKey: SkipPoison}
		}
	}
	if w.holding {
		w.cfg.Poison.Policy, w.cfg.Poison.Causes = HoldKey, nil
		w.cfg.Poison.Limits = checkpoint.HeldLimits{Keys: 1000, Letters: 100_000}
		w.hold.handled = map[int64]bool{}
	}
	if o.dedup {
		w.cfg.Deduplication = Deduplication{Slot: "slot", LookBack: []int{10_000, 10_000, 2, 1}[o.seed%4], FenceWait: simFence, Sources: "s"}
	}
	w.pg, w.kafka = newSimPG(w), newSimKafka(w)
	if w.audited {
		w.pg.standby, w.pg.lazy = w.IntN(2) == 0, w.IntN(2) == 0
		w.stamped = w.seed%3 == 0
	}
	return w
}

// fail notes the first violation. The script stops at its next step. w.mu is held.
func (w *world) fail(format string, args ...any) {
	if w.broken == "" {
		w.broken = fmt.Sprintf(format, args...)
		if w.story != nil {
			fmt.Fprintf(w.story, "%11s  *** %s\n", w.now(), w.broken)
		}
	}
}

// disturb notes a fault that may delay a status update. w.mu is held.
func (w *world) disturb() { w.trouble = maxTime(w.trouble, maxTime(time.Now(), w.pg.slowUntil)) }

func (w *world) now() time.Duration { return time.Since(w.begun) }

// see adds an event at the boundary to the trace, and to the story if there is one. w.mu is held.
func (w *world) see(p *process, what string, a, b uint64) {
	n := uint64(0)
	if p != nil {
		n = uint64(p.n)
	}
	h := w.trace
	for i := range len(what) {
		h = (h ^ uint64(what[i])) * 1099511628211
	}
	for _, x := range [...]uint64{uint64(w.now()), n, a, b} {
		h = (h ^ x) * 1099511628211
		h ^= h >> 29
	}
	w.trace = h
	if w.story != nil {
		fmt.Fprintf(w.story, "%11s  %s %s %x %x\n", w.now().Truncate(time.Microsecond), p, what, a, b)
	}
}

// tell adds an operation of the script to the story.
func (w *world) tell(format string, args ...any) {
	if w.story != nil {
		fmt.Fprintf(w.story, "%11s  — %s\n", w.now().Truncate(time.Microsecond), fmt.Sprintf(format, args...))
	}
}

// process is a running daemon. It may be killed, frozen, or stopped.
type process struct {
	w      *world
	n      int // 1 is the first
	relay  *Relay
	cancel context.CancelFunc
	over   chan struct{} // closed when Run has returned
	err    error         // the result of Run, once over is closed

	// w.mu guards these
	dead       chan struct{} // closed when the process is killed: its calls have no effect any more
	isDead     bool
	wasFrozen  bool
	thaw       chan struct{} // non-nil while the process is frozen, closed when it is resumed
	stopped    int           // goroutines that wait for thaw
	terminated bool          // SIGTERM was sent
	draining   bool          // its state is draining
	undrained  int           // records in flight at the end of the drain
	gone       bool          // it has ended, and the script has handled that
	sink       *simSink
	pid        int64 // its producer id
	epoch      int16
	stream     *simStream
	placement  placement
	known      []bool          // by event: it must not send the event again
	prefix     map[*event]bool // the known events before the first unknown one
	overtaken  map[*event]bool // known events after which an older one of their key was sent
	refused    map[*event]bool
	lastSent   pglogrepl.LSN   // the highest position in its status updates to the primary
	sentToAny  pglogrepl.LSN   // the same, also to a former primary, whose connection is not broken yet
	begun      bool            // it has read from a stream
	done       pglogrepl.LSN   // commit LSN of the last transaction that it knows to be completely in Kafka
	suspects   map[*event]bool // events of the last batch that was refused, which it sends in groups
	failed     func(error)     // of its newest sink
	altered    int             // simPG.altered at its first catalog check
	look       simLook         // its last one
	acked      bool            // it has had an acknowledgement
	opened     int             // streams
	outdated   bool            // it has not streamed since a failover lost transactions
	counts     [lastPlace]uint64
	idle       time.Time // when it last had no session
	history    bool      // it knows transactions, so it must notice another history
}

// place is a place in the fakes where time passes. Each place has its own random numbers, so that they do not depend
// on the order of goroutines.
type place int

const (
	openKafka place = iota
	probeKafka
	openStream
	lookAtSlot
	waitFree
	checkBefore
	checkAfter
	resolveRelation
	loseStatus
	lookUpTopic
	loadPosition
	savePosition
	readTail
	closeSink
	hideEnd
	readTable
	readRecords
	lastPlace
)

// draw returns the next random number of a place. w.mu is held.
func (p *process) draw(at place) uint64 {
	p.counts[at]++
	x := p.w.seed ^ uint64(p.n)<<48 ^ uint64(at)<<40 ^ p.counts[at]
	for range 2 { // splitmix64
		x += 0x9e3779b97f4a7c15
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		x ^= x >> 31
	}
	return x
}

var errDead = &replication.Error{Kind: replication.Unavailable, Op: "talk", Err: errors.New("the process is dead")}

// call begins every call of the relay across the boundary. It counts the call, and waits while the process is frozen.
// In a dead process it returns an error. Without an error w.mu is held.
func (p *process) call(what string) error {
	if err := p.gate(); err != nil {
		return err
	}
	return p.count(what)
}

// count counts a call, in which the process may die. Then w.mu is not held any more.
func (p *process) count(what string) error {
	w := p.w
	w.calls++
	if w.calls == w.dieAt {
		w.see(p, "dies in "+what, 0, 0)
		p.die()
		w.mu.Unlock()
		return errDead
	}
	return nil
}

// gate locks w.mu for a process that is alive and not frozen. Goroutines that a thaw resumes continue one after the
// other.
func (p *process) gate() error {
	w := p.w
	w.mu.Lock()
	for {
		thaw := p.thaw
		switch {
		case p.isDead:
			w.mu.Unlock()
			return errDead
		case thaw == nil:
			return nil
		}
		before := p.stopped
		p.stopped++
		w.mu.Unlock()
		select {
		case <-thaw:
			p.rest(time.Duration((before + 1) * (10_001 + 2*p.n)))
		case <-p.dead:
		}
		w.mu.Lock()
		p.stopped--
	}
}

// spend lets time pass in a call, an odd number of nanoseconds, so that no two calls end at the same instant. It
// returns early if ctx or the process ends.
func (p *process) spend(ctx context.Context, at place, atMost time.Duration) {
	p.w.mu.Lock()
	d := time.Duration(p.draw(at)%uint64(atMost))&^1 + 1001 + 2*time.Duration(p.n)
	p.w.mu.Unlock()
	p.spendAll(ctx, at, d)
}

func (p *process) spendAll(ctx context.Context, at place, d time.Duration) {
	select {
	case <-time.After(d):
	case <-p.dead:
	case <-ctx.Done():
		p.rest(p.apart(at)) // other goroutines that ctx ends continue first
	}
}

// apart returns a time that no other goroutine takes.
func (p *process) apart(at place) time.Duration { return time.Duration(1001 + 100*int(at) + 2*p.n) }

// rest lets time pass while the process is alive.
func (p *process) rest(d time.Duration) {
	select {
	case <-time.After(d):
	case <-p.dead:
	}
}

// die is kill -9. The script decides about records in flight. w.mu is held.
func (p *process) die() {
	if p.isDead {
		return
	}
	p.isDead = true
	close(p.dead)
	if p.sink != nil {
		p.sink.abandon()
	}
	if st := p.stream; st != nil {
		if st.pg.holder == st { // a dead machine, unlike a dead process, does not close its connections
			if draw := p.draw(lastPlace - 1); draw&3 == 0 {
				st.pg.heldUntil = time.Now().Add(time.Duration(draw>>2) % (15 * time.Second))
			}
		}
		st.end(errDead)
		st.poke()
	}
}

// start starts a process.
func (w *world) start() *process {
	w.mu.Lock()
	p := &process{w: w, n: len(w.procs) + 1, refused: map[*event]bool{}, prefix: map[*event]bool{}, overtaken: map[*event]bool{}, placement: w.kafka.now, dead: make(chan struct{}), over: make(chan struct{}), idle: time.Now()}
	w.procs = append(w.procs, p)
	w.see(p, "starts", 0, 0)
	w.mu.Unlock()
	cfg := w.cfg
	if w.holding {
		cfg.Poison.Letters = w.lettersOf(p)
	}
	p.relay = New(cfg, &simSource{p}, &simBrokers{p}, w.router(p.placement.routes), w.met, slog.New(&simLog{p}))
	p.relay.jitter = rand.New(rand.NewPCG(w.seed, uint64(p.n)<<32)).Int64N
	var ctx context.Context
	ctx, p.cancel = context.WithCancel(context.Background())
	go func() {
		defer close(p.over)
		defer func() {
			if broken := recover(); broken != nil {
				p.err = fmt.Errorf("panic: %v", broken)
				w.mu.Lock()
				defer w.mu.Unlock()
				w.fail("Run panics: %v", broken)
			}
		}()
		p.err = p.relay.Run(ctx)
	}()
	synctest.Wait()
	return p
}

// router returns the router of a process. Columns are texts here, so that the setting for the commit's time stands
// for one that names a column.
func (w *world) router(routes map[string]string) *router.Router {
	if w.stamped {
		return simRouter(routes, router.TimestampCommit)
	}
	return simRouter(routes, router.TimestampProduce)
}

func simRouter(routes map[string]string, timestamp string) *router.Router {
	cfg := router.DefaultConfig()
	cfg.Timestamp = timestamp
	cfg.Topic, cfg.Topics = "{aggregate_type}", routes
	messages := cfg
	messages.Messages = true
	r, err := router.New(cfg, messages)
	if err != nil {
		panic(err)
	}
	return r
}

// ended reports whether Run has returned.
func (p *process) ended() bool {
	select {
	case <-p.over:
		return true
	default:
		return false
	}
}

// alive returns the processes that were not killed and have not ended.
func (w *world) alive() []*process {
	var out []*process
	for _, p := range w.procs {
		if !p.gone && !p.isDead {
			out = append(out, p)
		}
	}
	return out
}

// simLog handles the relay's log: changes of state go into the trace, other lines set marks.
type simLog struct{ p *process }

func (l *simLog) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo || l.p.w.story != nil
}
func (l *simLog) WithAttrs([]slog.Attr) slog.Handler { return l }
func (l *simLog) WithGroup(string) slog.Handler      { return l }

func (l *simLog) Handle(_ context.Context, r slog.Record) error {
	w := l.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if l.p.isDead {
		return nil
	}
	if r.Level >= slog.LevelInfo {
		what := r.Message
		if what == "state" {
			r.Attrs(func(a slog.Attr) bool { // the first attribute is the state
				what = a.Value.String()
				return false
			})
		}
		w.spoken(l.p, what)
		w.see(l.p, what, 0, 0)
	}
	if w.story != nil {
		fmt.Fprintf(w.story, "%11s  %s says: %s", w.now().Truncate(time.Microsecond), l.p, r.Message)
		r.Attrs(func(a slog.Attr) bool { fmt.Fprintf(w.story, " %s=%v", a.Key, a.Value); return true })
		w.story.WriteByte('\n')
	}
	return nil
}

func (p *process) String() string {
	if p == nil {
		return "  "
	}
	return fmt.Sprintf("#%d", p.n)
}

// digest returns a hash of a record's content.
func digest(rec *router.Record) uint64 {
	h := fnv.New64a()
	add := func(b []byte) {
		_, _ = h.Write(b)
		_, _ = h.Write([]byte{0xFF, byte(len(b))})
	}
	add(rec.Key)
	add(rec.Value)
	for _, x := range rec.Headers {
		if x.Name == HeaderTopic || x.Name == router.HeaderPosition {
			continue // the destination is compared with the settings, and the position in wrong and headerOf
		}
		add([]byte(x.Name))
		add(x.Value)
	}
	return h.Sum64()
}
