package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"

	"github.com/outboxcdc/outboxcdc/internal/brokerauth"
	"github.com/outboxcdc/outboxcdc/router"
)

// Callbacks are called from goroutines of the session, one at a time, and none after Close has returned. They must
// return at once: above all they must not wait for the goroutine that calls Send or Close.
type Callbacks struct {
	// Acked: Kafka has stored this event. Per partition in the order of Send and without holes.
	Acked func(n uint64)
	// Failed: the session is over; at most once, and it says why. Acks of other partitions may still follow it.
	Failed func(err error)
	// Wake: what Ready answers has changed for some topic.
	Wake func()
}

// Producer is one session with Kafka. Ready, Missing, Check and Send are for one goroutine, the relay's; the rest is for any.
//
// It has one producer id and epoch; a record becomes part of its partition's batch at once (partition.go), and each broker has a
// goroutine that sends what has gathered (node.go). Who leads a partition is the watch's to find out (leaders.go).
type Producer struct {
	cluster *Cluster
	metrics *metrics
	dialer  *dialer
	control *control
	produce *sarama.Config // of the connections that records take
	secured brokerauth.Config
	id      identity // except for the sequence
	began   time.Time

	// The sender's.
	byName map[string]*topic
	last   *topic
	keys   *partitioner
	alone  bool // what is in flight, if anything, is one record that has Kafka for itself

	mu         sync.Mutex // guards what follows, partitions and nodes; no goroutine waits for anything while holding it
	gathering  bool       // records were sent since the last Flush
	topics     []*topic
	nodes      map[int32]*node
	open       int      // requests without an answer, one with a position record included
	done       []*batch // acknowledged, in the order in which the callbacks are to hear of it
	bad        error    // the failure, until it is reported
	asked      chan struct{}
	savings    []saving // oldest first
	toSave     chan struct{}
	savingOver bool      // save has ended
	heldSince  time.Time // since when something waits for the lease; zero: nothing does
	heldKnown  bool      // the log says so
	ends       *ends     // nil: ends are not read
	unsaved    error     // why the position record that is being saved is not yet

	positionsMu sync.Mutex   // held while the topic is read or written; never taken with mu held
	positions   *positionLog // of a cluster with a position topic

	lease    atomic.Pointer[time.Time] // when the slot was last seen to be this session's
	inflight atomic.Int64              // records sent and without a result
	free     sync.Pool                 // *batch

	stale   atomic.Bool  // leaders are asked for
	heard   atomic.Int64 // when Kafka last answered a look-up, counted from began
	trouble atomic.Pointer[error]

	stopOnce   sync.Once
	stopped    chan struct{} // closed at the first failure, or by Close: no request is made any more
	background sync.WaitGroup
	senders    sync.WaitGroup

	cbMu   sync.Mutex // held during callbacks; never taken with mu held
	cb     Callbacks
	spare  []*batch
	silent bool
	told   bool // Failed was called

	closeOnce sync.Once
	closeErr  error
}

func newProducer(c *Cluster, cb Callbacks, s brokerauth.Config) *Producer {
	d := newDialer(c.cfg.DialTimeout, c.metrics.connections)
	p := &Producer{
		cluster: c, metrics: c.metrics, dialer: d, control: c.newControl(d, s), produce: c.saramaConfig(d, s), secured: s, began: time.Now(), cb: cb,
		byName: map[string]*topic{}, keys: newPartitioner(), nodes: map[int32]*node{}, asked: make(chan struct{}, 1), toSave: make(chan struct{}, 1), stopped: make(chan struct{}),
	}
	p.produce.Net.Proxy.Dialer = leasedDialer{p}
	return p
}

// connect finds a broker that answers and gets a producer id from it.
func (p *Producer) connect(ctx context.Context) error {
	if err := p.control.ping(ctx); err != nil {
		return &failure{doing: "connect to kafka", err: err}
	}
	p.noteAnswer(nil)
	var err error
	if p.id, err = p.cluster.identify(ctx, p.control); err != nil {
		return &failure{doing: "get a producer id", err: err}
	}
	return nil
}

func (p *Producer) start() {
	p.background.Add(1)
	go p.watch()
	if p.cluster.cfg.FenceWait > 0 {
		p.background.Add(1)
		go p.watchLease()
	}
	if p.cluster.cfg.PositionTopic != "" {
		p.positions = p.newPositionLog()
		p.background.Add(1)
		go p.save()
	}
}

// abandon undoes a connect that failed.
func (p *Producer) abandon() {
	p.dialer.cut()
	p.control.hangUp()
}

// Check finds out before sending whether Kafka can take the record; its topic must be ready. alone means: wait until
// nothing is in flight, send it, and wait for its ack. poison lacks the event's id and position, which only the caller
// knows.
func (p *Producer) Check(rec *router.Record) (alone bool, poison *router.Poison) {
	t := p.topic(rec.Topic)
	if rec.OwnPartition && t.most != 0 && int(rec.Partition) >= len(t.parts) {
		return false, &router.Poison{
			Cause: router.BadPartition, Topic: t.name,
			Message: fmt.Sprintf("the row asks for partition %d, but topic %s has %d, as far as this process counts them", rec.Partition, t.name, len(t.parts)),
		}
	}
	rough := roughSize(rec)
	if t.most == 0 || rough <= t.most {
		return false, nil
	}
	if rough+reserve(rough) <= t.limit {
		return true, nil
	}
	size := rough
	if rough <= hugeLimit {
		exact, err := exactSize(rec, p.cluster.codec)
		if err == nil && exact <= t.limit {
			return true, nil
		}
		size = exact
	}
	return false, &router.Poison{
		Cause: router.TooLarge, Topic: t.name,
		Message: fmt.Sprintf("the record takes %d bytes (%d before compression), but max.message.bytes of topic %s is %d",
			size, rough, t.name, t.limit),
	}
}

// Send takes a copy of the record and returns; it never waits for Kafka. The record leaves with the next Flush, if not
// before. n is what Acked will be called with. The
// caller bounds what is unacknowledged, and with that the memory. An error is a broken promise of the caller's; that
// the session has failed is told by Failed alone, and a record sent after that counts among those left.
func (p *Producer) Send(rec *router.Record, n uint64) error {
	t := p.topic(rec.Topic)
	if v := t.verdict.Load(); v == nil || t.most == 0 {
		return fmt.Errorf("send event %d: internal error: topic %s is not ready", n, t.name)
	}
	alone := roughSize(rec) > t.most
	if (alone || p.alone) && p.inflight.Load() > 0 {
		return fmt.Errorf("send event %d: internal error: a record that must go alone (or the one after it) while others are in flight", n)
	}
	p.alone = alone
	id := rec.Partition
	if !rec.OwnPartition {
		id = p.keys.of(rec.PartitionBy, int32(len(t.parts)))
	}
	if int(id) >= len(t.parts) {
		return fmt.Errorf("send event %d: internal error: topic %s has no partition %d", n, t.name, id)
	}
	part := &t.parts[id]
	p.inflight.Add(1)
	p.mu.Lock()
	defer p.mu.Unlock()
	part.sent++
	if p.over() {
		return nil
	}
	p.gathering = true
	size := p.add(part, rec, n)
	part.list(p)
	if l := part.leader; l != nil {
		if l.fresh += size; l.free() {
			l.kick()
		}
	}
	return nil
}

// Flush says that no more is coming for now, so that what has gathered leaves. Without it records may wait for ever. Any
// goroutine may call it.
func (p *Producer) Flush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.gathering {
		return
	}
	p.gathering = false
	for _, n := range p.nodes {
		if len(n.work) > 0 && n.free() {
			n.kick()
		}
	}
}

// deliver calls back for what has been acknowledged, in order, and for the failure.
func (p *Producer) deliver() {
	p.cbMu.Lock()
	defer p.cbMu.Unlock()
	for {
		p.mu.Lock()
		done, bad := p.done, p.bad
		p.done, p.bad = p.spare, nil
		p.mu.Unlock()
		for _, b := range done {
			p.acked(b)
		}
		clear(done)
		p.spare = done[:0]
		if bad != nil && !p.told && !p.silent {
			p.told = true
			p.cb.Failed(bad)
		}
		if len(done) == 0 && bad == nil {
			return
		}
	}
}

// acked calls back for a batch that Kafka has stored.
func (p *Producer) acked(b *batch) {
	// Before the callback: it may wake a sender that waits for nothing to be in flight.
	p.inflight.Add(-int64(len(b.entries)))
	if p.silent {
		return
	}
	b.part.acked.Add(uint64(len(b.entries)))
	p.metrics.acked(b)
	for _, e := range b.entries {
		p.cb.Acked(e.n)
	}
	if cap(b.bytes) <= 2*p.cluster.cfg.batchMost() {
		b.reset()
		p.free.Put(b)
	}
}

// stop ends the sending. It is true for the first who calls it.
func (p *Producer) stop() (first bool) {
	p.stopOnce.Do(func() {
		first = true
		close(p.stopped)
	})
	return first
}

func (p *Producer) over() bool {
	select {
	case <-p.stopped:
		return true
	default:
		return false
	}
}

// failLocked ends the session; mu is held, and deliver must follow. Only the first failure is told.
func (p *Producer) failLocked(err error) {
	if p.stop() {
		p.bad = err
	}
}

func (p *Producer) wake() {
	p.cbMu.Lock()
	defer p.cbMu.Unlock()
	if !p.silent {
		p.cb.Wake()
	}
}

// Healthy is nil when a broker has answered a look-up lately, and every broker that records wait for can be reached.
func (p *Producer) Healthy() error {
	if err := p.trouble.Load(); err != nil {
		return &failure{doing: "ask kafka", err: *err}
	}
	if err := p.unreachable(); err != nil {
		return err
	}
	ago := time.Since(p.began) - time.Duration(p.heard.Load())
	if limit := 2*p.cluster.cfg.Refresh + p.cluster.cfg.AskTimeout; ago > limit {
		return fmt.Errorf("kafka has not answered for %s", ago.Round(time.Second))
	}
	return nil
}

func (p *Producer) unreachable() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.heldTrouble(time.Now()); err != nil {
		return err
	}
	for _, n := range p.nodes {
		if n.why != nil && len(n.work) > 0 {
			return n.why
		}
	}
	if p.unsaved != nil {
		return &failure{doing: "write the position record to topic " + p.cluster.cfg.PositionTopic, topic: p.cluster.cfg.PositionTopic, err: p.unsaved}
	}
	return p.endsTrouble()
}

// Waiting lists the topics that were asked for and cannot be used yet.
func (p *Producer) Waiting() []string {
	var out []string
	for _, t := range p.topicsToLookUp(false) {
		if t.verdict.Load() != nil {
			out = append(out, t.name)
		}
	}
	slices.Sort(out)
	return out
}

// errLeft is how Close says that events were sent whose fate is unknown.
var errLeft = errors.New("not acknowledged")

// Close ends the session: no request is made after it was called. It waits until open requests have their answers, or ctx ends, and
// then cuts every connection. An error says how many events are not acknowledged; a restart may find some of them in Kafka. A second
// Close returns what the first did.
func (p *Producer) Close(ctx context.Context) error {
	p.closeOnce.Do(func() { p.closeErr = p.close(ctx) })
	return p.closeErr
}
