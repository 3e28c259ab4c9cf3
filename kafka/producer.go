package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"

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

// Producer is one session with Kafka. Ready, Check and Send are for one goroutine, the relay's; the rest is for any.
type Producer struct {
	cluster *Cluster
	metrics *metrics
	dialer  *dialer
	control *control
	client  sarama.Client
	began   time.Time

	// The sender's.
	byName map[string]*topic
	last   *topic
	huge   *lane
	alone  bool // what is in flight, if anything, is one record in the huge lane

	mu     sync.Mutex // guards topics and lanes
	topics []*topic
	lanes  []*lane
	asked  chan struct{}

	inflight atomic.Int64 // sent and without a result
	unsent   atomic.Int64 // of these, the ones that will never have one: not handed to sarama before the end
	free     sync.Pool    // *message

	answered atomic.Int64 // when Kafka last answered a look-up, counted from began
	trouble  atomic.Pointer[error]

	stopOnce   sync.Once
	stopped    chan struct{} // closed at the first failure, or by Close: nothing more is handed to sarama
	background sync.WaitGroup
	feeders    sync.WaitGroup
	takers     sync.WaitGroup

	cbMu   sync.Mutex // held during callbacks
	cb     Callbacks
	silent bool
	told   bool // Failed was called

	closeOnce sync.Once
	closeErr  error
}

func newProducer(c *Cluster, cb Callbacks) *Producer {
	d := newDialer(c.cfg.DialTimeout, c.metrics.connections)
	return &Producer{
		cluster: c, metrics: c.metrics, dialer: d, control: c.newControl(d), began: time.Now(), cb: cb,
		byName: map[string]*topic{}, asked: make(chan struct{}, 1), stopped: make(chan struct{}),
	}
}

// connect finds a broker that answers and opens the lane that nearly all records take.
func (p *Producer) connect(ctx context.Context) error {
	if err := p.control.ping(ctx); err != nil {
		return &failure{doing: "connect to kafka", err: err}
	}
	p.noteAnswer(nil)
	// Sarama asks for a producer id at its first seed only, dead or alive; so it gets the one that just answered.
	client, err := sarama.NewClient([]string{p.control.addr}, p.cluster.saramaConfig(p.dialer))
	if err != nil {
		return &failure{doing: "open a kafka client", err: err}
	}
	p.client = client
	l := p.newLane(p.cluster.cfg.BatchLimit)
	if err := l.open(); err != nil {
		return err
	}
	p.lanes = append(p.lanes, l)
	return nil
}

func (p *Producer) start() {
	p.background.Add(1)
	go p.watch()
	l := p.lanes[0]
	l.take()
	p.feeders.Add(1)
	go l.feed()
}

// abandon undoes a connect that failed.
func (p *Producer) abandon() {
	p.dialer.cut()
	p.control.hangUp()
	for _, l := range p.lanes {
		_ = l.async.Close()
	}
	if p.client != nil {
		_ = p.client.Close()
	}
}

// laneFor returns the lane of a batch limit, making it if need be; its producer id is asked for by its own goroutine.
func (p *Producer) laneFor(limit int) *lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lanes {
		if l.limit == limit {
			return l
		}
	}
	l := p.newLane(limit)
	p.lanes = append(p.lanes, l)
	p.feeders.Add(1)
	go l.feed()
	return l
}

func (p *Producer) allLanes() []*lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.lanes)
}

// topic finds a topic or, at its first use, asks for its look-up.
func (p *Producer) topic(name string) *topic {
	if p.last != nil && p.last.name == name {
		return p.last
	}
	t := p.byName[name]
	if t == nil {
		t = &topic{name: strings.Clone(name)}
		p.byName[t.name] = t
		p.mu.Lock()
		p.topics = append(p.topics, t)
		p.mu.Unlock()
		select {
		case p.asked <- struct{}{}:
		default:
		}
	}
	p.last = t
	return t
}

// Ready says whether records for the topic can be sent. It never blocks: the first call for a topic starts a look-up
// in the background, which goes on until the topic is there, and Wake tells when the answer is another one. An error
// means that waiting alone will not help; it goes away too if somebody grants the right.
func (p *Producer) Ready(name string) (bool, error) {
	v := p.topic(name).verdict.Load()
	if v == nil {
		return false, nil
	}
	return v.ready, v.err
}

// Check finds out before sending whether Kafka can take the record; its topic must be ready. alone means: wait until
// nothing is in flight, send it, and wait for its ack. poison lacks the event's id and position, which only the caller
// knows.
func (p *Producer) Check(rec *router.Record) (alone bool, poison *router.Poison) {
	t := p.topic(rec.Topic)
	rough := roughSize(rec)
	if t.lane == nil || rough <= t.lane.limit {
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

// Send takes a copy of the record and returns; it never waits for Kafka. n is what Acked will be called with. The
// caller bounds what is unacknowledged, and with that the memory. An error is a broken promise of the caller's; that
// the session has failed is told by Failed alone, and a record sent after that counts among those left.
func (p *Producer) Send(rec *router.Record, n uint64) error {
	t := p.topic(rec.Topic)
	if v := t.verdict.Load(); v == nil || t.lane == nil {
		return fmt.Errorf("send event %d: internal error: topic %s is not ready", n, t.name)
	}
	l := t.lane
	alone := roughSize(rec) > l.limit
	if (alone || p.alone) && p.inflight.Load() > 0 {
		return fmt.Errorf("send event %d: internal error: a record that must go alone (or the one after it) while others are in flight", n)
	}
	p.alone = alone
	if alone {
		if p.huge == nil {
			p.huge = p.laneFor(hugeLimit)
		}
		l = p.huge
	}
	part := &t.parts[partitionFor(rec.PartitionBy, int32(len(t.parts)))]
	m, _ := p.free.Get().(*message)
	if m == nil {
		m = new(message)
	}
	m.fill(rec, part, n)
	part.sent++
	p.inflight.Add(1)
	l.enqueue(m)
	return nil
}

// acked deals with a record that Kafka has stored. That it is the partition's next one is not taken from sarama on
// trust: with anything else the session is over.
func (p *Producer) acked(m *message) {
	// Before the callback: it may wake a sender that waits for nothing to be in flight.
	p.inflight.Add(-1)
	part := m.part
	if next := part.acked.Load(); m.seq != next {
		if p.stop() { // nothing had failed: sarama lost or re-ordered a record
			p.report(&failure{
				doing: fmt.Sprintf("deliver event %d to partition %d of topic %s", m.n, part.id, part.topic.name),
				topic: part.topic.name, err: fmt.Errorf("internal error: acknowledged as record %d of the partition, %d was next", m.seq, next),
			})
		}
		return
	}
	part.acked.Store(m.seq + 1)
	part.topic.delivered.Inc()
	n := m.n
	if cap(m.buf) <= keptBuffer {
		p.free.Put(m)
	}
	p.cbMu.Lock()
	defer p.cbMu.Unlock()
	if !p.silent {
		p.cb.Acked(n)
	}
}

// stop ends the feeding. It is true for the first who calls it: the one that reports.
func (p *Producer) stop() (first bool) {
	p.stopOnce.Do(func() {
		first = true
		close(p.stopped)
	})
	return first
}

// fail is for failures that no record tells of.
func (p *Producer) fail(err error) {
	if p.stop() {
		p.report(err)
	}
}

func (p *Producer) report(err error) {
	p.cbMu.Lock()
	defer p.cbMu.Unlock()
	if p.told || p.silent {
		return
	}
	p.told = true
	p.cb.Failed(err)
}

func (p *Producer) wake() {
	p.cbMu.Lock()
	defer p.cbMu.Unlock()
	if !p.silent {
		p.cb.Wake()
	}
}

// Healthy is nil when a broker has answered a look-up lately.
func (p *Producer) Healthy() error {
	if err := p.trouble.Load(); err != nil {
		return &failure{doing: "ask kafka", err: *err}
	}
	ago := time.Since(p.began) - time.Duration(p.answered.Load())
	if limit := 2*p.cluster.cfg.Refresh + p.cluster.cfg.AskTimeout; ago > limit {
		return fmt.Errorf("kafka has not answered for %s", ago.Round(time.Second))
	}
	return nil
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

// Close ends the session: it waits until everything sent is acknowledged, or ctx ends, and then cuts every connection.
// A session that has failed waits for outstanding acks only briefly. An error says how many events are left; a restart
// will find some of them in Kafka. A second Close returns what the first did.
func (p *Producer) Close(ctx context.Context) error {
	p.closeOnce.Do(func() { p.closeErr = p.close(ctx) })
	return p.closeErr
}
