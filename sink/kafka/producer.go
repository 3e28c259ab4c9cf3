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
	"github.com/outboxcdc/outboxcdc/sink"
)

// Callbacks are those of every sink. They must not wait for the goroutine that calls Send or Close. Acknowledgements of
// other partitions may follow Failed. Wake is also called when the result of EndsRead may have changed.
type Callbacks = sink.Callbacks

// Producer is one session with Kafka. Ready, Missing, Check, Lane and Send must be called from one goroutine;
// the other methods may be called from any.
//
// A session has one producer id and epoch. Send adds a record to its partition's batch (partition.go). Each broker
// has a goroutine that sends batches (node.go). Another goroutine, the watch, looks up topics and leaders (topic.go,
// leaders.go).
type Producer struct {
	cluster *Cluster
	metrics *metrics
	dialer  *dialer
	control *control
	produce *sarama.Config // of the connections for records
	secured brokerauth.Config
	id      identity // without a sequence number
	began   time.Time

	// Used only by the goroutine that calls Send.
	byName      map[string]*topic
	last        *topic
	partitioner Partitioner
	sentAlone   bool // the record in flight, if any, must be alone in flight

	mu           sync.Mutex // guards the following, partitions and nodes; no goroutine waits while holding it
	gathering    bool       // records were sent since the last Flush
	topics       []*topic
	nodes        map[int32]*node
	open         int      // requests without an answer, including one with a position record
	ackedBatches []*batch // acknowledged batches, in the order of the callbacks
	failErr      error    // failure that is not reported yet
	lookUpWanted chan struct{}
	saveRequests []saveRequest // oldest first
	saverWakeup  chan struct{}
	saverDone    bool      // runSaver has ended
	heldSince    time.Time // since when records wait for the lease; zero: none wait
	heldLogged   bool      // the wait was logged
	ends         *ends     // nil: ReadEnds was not called
	unsaved      error     // last error of the current position record

	positionsMu sync.Mutex   // held during reads and writes of the topic; never locked with mu held
	positions   *positionLog // nil without a position topic

	lease    atomic.Pointer[time.Time] // when the slot was last seen to be this session's
	inflight atomic.Int64              // records that were sent and not acknowledged
	free     sync.Pool                 // *batch

	leadersStale atomic.Bool  // leaders must be looked up
	lastAnswer   atomic.Int64 // when Kafka last answered a look-up, since began
	lookUpErr    atomic.Pointer[error]

	stopOnce   sync.Once
	stopped    chan struct{} // closed at the first failure, or by Close: no more requests are sent
	background sync.WaitGroup
	senders    sync.WaitGroup

	cbMu            sync.Mutex // held during callbacks; never locked with mu held
	cb              Callbacks
	spareBatches    []*batch
	callbacksOff    bool
	failureReported bool // Failed was called

	closeOnce sync.Once
	closeErr  error
}

func newProducer(c *Cluster, cb Callbacks, s brokerauth.Config) *Producer {
	d := newDialer(c.cfg.DialTimeout, c.metrics.connections)
	p := &Producer{
		cluster: c, metrics: c.metrics, dialer: d, control: c.newControl(d, s), produce: c.saramaConfig(d, s), secured: s, began: time.Now(), cb: cb,
		byName: map[string]*topic{}, partitioner: NewPartitioner(), nodes: map[int32]*node{}, lookUpWanted: make(chan struct{}, 1), saverWakeup: make(chan struct{}), stopped: make(chan struct{}),
	}
	p.produce.Net.Proxy.Dialer = leasedDialer{p}
	return p
}

// connect finds a broker that answers and gets a producer id from it.
func (p *Producer) connect(ctx context.Context) error {
	if err := p.control.ping(ctx); err != nil {
		return &failure{op: "connect to kafka", err: err}
	}
	p.noteAnswer(nil)
	var err error
	if p.id, err = p.cluster.identify(ctx, p.control); err != nil {
		return &failure{op: "get a producer id", err: err}
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
		go p.runSaver()
	}
}

// abandon cuts the connections after connect has failed.
func (p *Producer) abandon() {
	p.dialer.cut()
	p.control.hangUp()
}

// Check checks before Send whether Kafka can store the record; its topic must be ready. alone means that the caller
// must wait until nothing is in flight, send the record, and wait for its ack. poison has no event id and no
// position.
func (p *Producer) Check(rec *router.Record) (alone bool, poison *router.Poison) {
	t := p.topic(rec.Topic)
	if rec.OwnPartition && t.aloneAbove != 0 && int(rec.Partition) >= len(t.parts) {
		count := p.cluster.lastCount(t.name)
		if rec.Partition < count {
			p.fail(&failure{op: fmt.Sprintf("send a record to partition %d of topic %s", rec.Partition, t.name), topic: t.name, err: errMorePartitions})
			return false, nil
		}
		return false, &router.Poison{
			Cause: router.BadPartition, Topic: t.name,
			Message: fmt.Sprintf("the row requests partition %d, but topic %s has %d partitions, as counted at the last look-up", rec.Partition, t.name, count),
		}
	}
	rough := roughSize(rec)
	if t.aloneAbove == 0 || rough <= t.aloneAbove {
		return false, nil
	}
	size, is := tooLarge(rec, t.limit, p.cluster.codec)
	if !is {
		return true, nil
	}
	return false, &router.Poison{
		Cause: router.TooLarge, Topic: t.name,
		Message: fmt.Sprintf("the record takes %d bytes (%d before compression), but max.message.bytes of topic %s is %d",
			size, rough, t.name, t.limit),
	}
}

// Send copies the record and returns; it never waits for Kafka. The record is sent with the next Flush, if not
// before. n is the number for Acked. The caller limits the number of unacknowledged events, and so the memory. An
// error means that the caller broke a rule. A failure of the session is only reported by Failed; a record sent after
// that counts as unacknowledged.
func (p *Producer) Send(rec *router.Record, n uint64) error {
	t := p.topic(rec.Topic)
	if v := t.verdict.Load(); v == nil || t.aloneAbove == 0 {
		return fmt.Errorf("send event %d: internal error: topic %s is not ready", n, t.name)
	}
	alone := roughSize(rec) > t.aloneAbove
	if (alone || p.sentAlone) && p.inflight.Load() > 0 {
		return fmt.Errorf("send event %d: internal error: a record that must be alone in flight (or the next one) while other records are in flight", n)
	}
	p.sentAlone = alone
	id := p.partitionOf(t, rec)
	if int(id) >= len(t.parts) {
		if p.ended() { // see Check
			return nil
		}
		return fmt.Errorf("send event %d: internal error: topic %s has no partition %d", n, t.name, id)
	}
	part := &t.parts[id]
	p.inflight.Add(1)
	p.mu.Lock()
	defer p.mu.Unlock()
	part.sent++
	t.sentUntil = n + 1
	if p.ended() {
		return nil
	}
	p.gathering = true
	size := p.add(part, rec, n)
	part.enlist(p)
	if l := part.leader; l != nil {
		if l.newBytes += size; l.canSend() {
			l.wake()
		}
	}
	return nil
}

// Lane returns the partition that Send sends the record to; its topic must be ready.
func (p *Producer) Lane(rec *router.Record) int32 { return p.partitionOf(p.topic(rec.Topic), rec) }

func (p *Producer) partitionOf(t *topic, rec *router.Record) int32 {
	if rec.OwnPartition {
		return rec.Partition
	}
	return p.partitioner.Of(rec.PartitionBy, t.hashed)
}

// Flush sends the records that have gathered. Without a Flush, records may wait for ever.
func (p *Producer) Flush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.gathering {
		return
	}
	p.gathering = false
	for _, n := range p.nodes {
		if len(n.listed) > 0 && n.canSend() {
			n.wake()
		}
	}
}

// deliver calls the callbacks for acknowledged batches, in order, and for the failure.
func (p *Producer) deliver() {
	p.cbMu.Lock()
	defer p.cbMu.Unlock()
	for {
		p.mu.Lock()
		done, bad := p.ackedBatches, p.failErr
		p.ackedBatches, p.failErr = p.spareBatches, nil
		p.mu.Unlock()
		for _, b := range done {
			p.acked(b)
		}
		clear(done)
		p.spareBatches = done[:0]
		if bad != nil && !p.failureReported && !p.callbacksOff {
			p.failureReported = true
			p.cb.Failed(bad)
		}
		if len(done) == 0 && bad == nil {
			return
		}
	}
}

// acked calls Acked for the events of a batch.
func (p *Producer) acked(b *batch) {
	// Before the callback, which may wake a sender that waits until nothing is in flight.
	p.inflight.Add(-int64(len(b.numbers)))
	if p.callbacksOff {
		return
	}
	b.part.acked.Add(uint64(len(b.numbers)))
	p.metrics.acked(b)
	p.cb.Acked(b.numbers)
	if cap(b.bytes) <= 2*p.cluster.cfg.maxBatch() {
		b.reset()
		p.free.Put(b)
	}
}

// stop ends the sending. first is true for the first call.
func (p *Producer) stop() (first bool) {
	p.stopOnce.Do(func() {
		first = true
		close(p.stopped)
	})
	return first
}

func (p *Producer) ended() bool {
	select {
	case <-p.stopped:
		return true
	default:
		return false
	}
}

// failLocked ends the session; mu is held, and the caller must call deliver afterwards. Only the first failure is
// reported.
func (p *Producer) failLocked(err error) {
	if p.stop() {
		p.failErr = err
	}
}

func (p *Producer) wake() {
	p.cbMu.Lock()
	defer p.cbMu.Unlock()
	if !p.callbacksOff {
		p.cb.Wake()
	}
}

// Healthy returns nil if a broker has answered a look-up recently, and every broker for which records wait can be
// reached.
func (p *Producer) Healthy() error {
	if err := p.lookUpErr.Load(); err != nil {
		return &failure{op: "ask kafka", err: *err}
	}
	if err := p.unreachable(); err != nil {
		return err
	}
	ago := time.Since(p.began) - time.Duration(p.lastAnswer.Load())
	if limit := 2*p.cluster.cfg.Refresh + p.cluster.cfg.AskTimeout; ago > limit {
		return fmt.Errorf("kafka has not answered for %s", ago.Round(time.Second))
	}
	return nil
}

func (p *Producer) unreachable() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.heldReason(time.Now()); err != nil {
		return err
	}
	for _, n := range p.nodes {
		if n.connectErr != nil && len(n.listed) > 0 {
			return n.connectErr
		}
	}
	if err := p.failingPartition(time.Now()); err != nil {
		return err
	}
	if p.unsaved != nil {
		return &failure{op: "write the position record to topic " + p.cluster.cfg.PositionTopic, topic: p.cluster.cfg.PositionTopic, err: p.unsaved}
	}
	return p.endsTrouble()
}

// troubleAfter is how long a partition may take no batch before Healthy says so. An election takes less.
const troubleAfter = 2 * time.Second

// failingPartition returns why a partition takes no batch; p.mu is held.
func (p *Producer) failingPartition(now time.Time) error {
	for _, t := range p.topics {
		for i := range t.parts {
			part, why := &t.parts[i], error(nil)
			switch {
			case part.failing != nil && now.Sub(part.failingSince) >= troubleAfter:
				why = part.failing
			case !part.leaderlessSince.IsZero() && now.Sub(part.leaderlessSince) >= troubleAfter:
				why = sarama.ErrLeaderNotAvailable
				if v := t.verdict.Load(); v != nil && v.missing {
					why = sarama.ErrUnknownTopicOrPartition
				}
			default:
				continue
			}
			return &failure{op: fmt.Sprintf("deliver to partition %d of topic %s", part.id, t.name), topic: t.name, err: why}
		}
	}
	return nil
}

// Waiting lists the requested topics that cannot be used yet.
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

// errUnacked is the error of Close if events are not acknowledged.
var errUnacked = errors.New("not acknowledged")

// Close ends the session. No request begins after the call. Close waits until open requests have answers or ctx ends,
// and then cuts every connection. The error has the number of unacknowledged events, some of which may be in Kafka. A
// second Close returns the same error.
func (p *Producer) Close(ctx context.Context) error {
	p.closeOnce.Do(func() { p.closeErr = p.close(ctx) })
	return p.closeErr
}
