// Package lane is the session of a sink whose receiver answers requests: HTTP, RabbitMQ, Redis, NATS. It has the rules
// of package sink; a [Transport] has the protocol. Each lane has one call of Deliver at a time: later records wait
// behind it, also while it is repeated. A lane has no goroutine: thousands of them would fill the memory with their
// stacks, and the garbage collector would work all the time.
package lane

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink"
)

// Transport is the protocol of one session with a receiver.
type Transport interface {
	// Deliver sends records of one lane and one topic once, in their order. It calls done once, before or after it
	// returns, with how many of them, from the first on, the receiver itself has answered to have stored, and if that is
	// not all, why: it is nil only if all are stored. No record may be stored after one that is not, unless what became
	// of both is unknown: then both are sent again. ctx ends when the session's connections are cut; done is then called
	// at once, and nothing is sent afterwards. One goroutine calls Deliver, for all lanes: it does not wait for the
	// answer, and waits only for what all lanes need.
	Deliver(ctx context.Context, items []*Item, done func(stored int, why *Failure))
	// Check recognises a record that the receiver would refuse.
	Check(rec *router.Record) *router.Poison
	// Healthy returns an error if the receiver is known to take nothing now. It does not block.
	Healthy() error
	// Close closes the connections. No Deliver runs any more.
	Close()
}

// Config has the settings of a session.
type Config struct {
	Settings
	Metrics *Metrics
	Silence *Silence // of the receiver, in all of its sessions; nil: it has no such answer
}

// Item is a record that is not acknowledged. It is valid until the call of done; its texts do not change.
type Item struct {
	N      uint64 // event number
	Record *router.Record
}

// key identifies a lane. Topic is empty if lanes have all topics.
type key struct {
	topic string
	n     int32
}

// Producer is one session: see [sink.Producer] for the methods.
type Producer struct {
	cfg       Config
	transport Transport
	life      context.Context // ends when the connections are cut
	cut       context.CancelFunc
	running   sync.WaitGroup

	mu      sync.Mutex        // guards the following, and the lanes; no goroutine waits while holding it
	lanes   map[key]*lane     // those with records
	names   map[string]string // of headers
	due     []*lane           // those that Deliver is to be called for
	some    *sync.Cond        // due is not empty, or the session has ended
	ended   bool              // by the first failure, or by Close: no more requests are sent
	open    int               // calls of Deliver without a result, or whose result is being reported
	idle    *sync.Cond        // open has become 0
	unacked int

	cbMu         sync.Mutex // held during callbacks; never locked with mu held
	cb           sink.Callbacks
	callbacksOff bool

	closeOnce sync.Once
	closeErr  error
}

// New begins a session, which owns the transport.
func New(cfg Config, t Transport, cb sink.Callbacks) *Producer {
	p := &Producer{cfg: cfg, transport: t, cb: cb, lanes: map[key]*lane{}, names: map[string]string{}}
	if p.cfg.Silence == nil {
		p.cfg.Silence = &Silence{} // receivers of this kind do not ask for it
	}
	p.idle, p.some = sync.NewCond(&p.mu), sync.NewCond(&p.mu)
	p.life, p.cut = context.WithCancel(context.Background())
	p.running.Go(p.run)
	return p
}

// Ready always reports true: records wait in their lanes while the receiver does not know their topic.
func (p *Producer) Ready(string) (bool, error) { return true, nil }

// Missing reports false, because every topic is ready.
func (p *Producer) Missing(string) bool { return false }

// Why returns "".
func (p *Producer) Why(string) string { return "" }

// LookAgain does nothing: lanes do not depend on the receiver.
func (p *Producer) LookAgain(string) {}

// Check asks the transport.
func (p *Producer) Check(rec *router.Record) (alone bool, poison *router.Poison) {
	return false, p.transport.Check(rec)
}

// Flush does nothing: a lane without a request in flight sends at once.
func (p *Producer) Flush() {}

// Lane returns the lane of the record.
func (p *Producer) Lane(rec *router.Record) int32 {
	if p.cfg.Lanes == 0 {
		return 0
	}
	h := fnv.New32a()
	_, _ = h.Write(rec.PartitionBy) // it returns no error
	return int32(h.Sum32() % uint32(p.cfg.Lanes))
}

// Send copies the record and returns.
func (p *Producer) Send(rec *router.Record, n uint64) error {
	at := key{n: p.Lane(rec)}
	if p.cfg.Lanes == 0 {
		at.topic = rec.Topic
	}
	w := pack(rec, n)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unacked++
	if p.ended {
		return nil // it counts as unacknowledged
	}
	l := p.lanes[at]
	if l == nil {
		l = &lane{at: at}
		p.lanes[at] = l
		p.wake(l)
	}
	l.queue = append(l.queue, w)
	return nil
}

// fail ends the session.
func (p *Producer) fail(why *Failure) {
	if p.stop() {
		p.cbMu.Lock()
		defer p.cbMu.Unlock()
		if !p.callbacksOff {
			p.cb.Failed(why)
		}
	}
}

// stop ends the sending. first is true for the first call.
func (p *Producer) stop() (first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return false
	}
	p.ended = true
	p.some.Broadcast()
	for _, l := range p.lanes {
		if l.again != nil {
			l.again.Stop()
		}
	}
	return true
}

// troubleAfter is how long a lane may not be taken before Healthy says so.
const troubleAfter = 2 * time.Second

// Healthy returns nil unless the receiver has asked for silence, or has not taken the first record of a lane for a
// time.
func (p *Producer) Healthy() error {
	if _, err := p.cfg.Silence.Left(); err != nil {
		return err
	}
	if err := p.transport.Healthy(); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lanes {
		if l.failing != nil && time.Since(l.since) >= troubleAfter {
			return l.failing
		}
	}
	return nil
}

// Waiting lists the topics that the receiver does not know, as its newest answers say.
func (p *Producer) Waiting() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for _, l := range p.lanes {
		if l.failing != nil && l.failing.Meaning == Missing {
			out = append(out, l.queue[0].topic)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Close ends the session. The error has the number of unacknowledged events, some of which the receiver may have.
func (p *Producer) Close(ctx context.Context) error {
	p.closeOnce.Do(func() { p.closeErr = p.close(ctx) })
	return p.closeErr
}

func (p *Producer) close(ctx context.Context) error {
	p.stop()
	wakeUp := context.AfterFunc(ctx, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.idle.Broadcast()
	})
	defer wakeUp()
	p.awaitIdle(ctx)
	p.cut()
	p.running.Wait()
	p.awaitIdle(context.Background())
	p.transport.Close()
	p.cbMu.Lock()
	p.callbacksOff = true
	p.cbMu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unacked > 0 {
		return fmt.Errorf("close the session with the receiver: %d events not acknowledged", p.unacked)
	}
	return nil
}

// awaitIdle waits until no call of Deliver is without a result. The end of ctx wakes it.
func (p *Producer) awaitIdle(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.open > 0 && ctx.Err() == nil {
		p.idle.Wait()
	}
}

// pause returns how long to wait before the next try: a random time up to a ceiling that doubles (full jitter).
func (c *Config) pause(attempt int) time.Duration {
	ceiling := c.BackoffMax
	if attempt < 16 {
		ceiling = min(ceiling, c.BackoffMin<<attempt)
	}
	return rand.N(cmp.Or(ceiling, time.Millisecond) + 1)
}
