package kafka

import (
	"fmt"
	"slices"
	"time"

	"github.com/IBM/sarama"
)

// node is one broker as a leader of partitions, with one goroutine that sends to it. There is no linger: what gathers
// between two Flush is one request, and so is what gathers while one is open. Once Config.BatchLimit has gathered, it
// does not wait for Flush, and a further request may leave, up to Config.Requests.
//
// Sarama's part is the connection: dialling, TLS, the protocol version, request and answer. A connection is used once:
// after an error it is closed, with everything in it answered, before the next is opened.
type node struct {
	p    *Producer
	id   int32
	wake chan struct{}

	// Guarded by Producer.mu.
	addr   string
	work   []*partition // those with something to send
	fresh  int          // bytes handed to Send since the last request
	open   int          // requests without an answer
	kicked bool
	broken error     // the connection is of no use any more
	pause  time.Time // nothing is sent before: the broker asked for it, or the connection failed
	down   time.Time // since when there is no connection; zero: there is, or none was needed
	why    error     // what the last try to connect met

	// The goroutine's own.
	broker   *sarama.Broker
	failures int
}

// request is what is open at a broker.
type request struct {
	batches []*batch
	wire    *sarama.ProduceRequest
}

// mostPerRequest bounds the bytes of a request, unless a single record is larger: the broker holds all of it in memory,
// and answers when its last partition is replicated.
const mostPerRequest = 4 << 20

func (p *Producer) newNode(id int32, addr string) *node {
	n := &node{p: p, id: id, addr: addr, wake: make(chan struct{}, 1)}
	p.senders.Add(1)
	go n.run()
	return n
}

func (n *node) kick() {
	if n.kicked {
		return
	}
	n.kicked = true
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// free: a request may leave now.
func (n *node) free() bool {
	return n.open == 0 && !n.p.gathering || n.open < n.p.cluster.cfg.Requests && n.fresh >= n.p.cluster.cfg.BatchLimit
}

func (n *node) unlist(part *partition) {
	part.listed = false
	if i := slices.Index(n.work, part); i >= 0 {
		n.work = slices.Delete(n.work, i, i+1)
	}
}

// run sends until the session's connections are cut. After a failure it only waits for open answers.
func (n *node) run() {
	defer n.p.senders.Done()
	defer n.hangUp()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for n.p.dialer.ctx.Err() == nil {
		req, wait := n.step()
		if req != nil {
			n.send(req)
			continue
		}
		if wait == 0 {
			continue
		}
		timer.Reset(wait)
		select {
		case <-n.wake:
		case <-timer.C:
		case <-n.p.dialer.ctx.Done():
		}
	}
}

// step finds out what is to be done: send a request, look again at once (0), or wait.
func (n *node) step() (*request, time.Duration) {
	p := n.p
	p.mu.Lock()
	defer p.mu.Unlock()
	n.kicked = false
	now := time.Now()
	switch {
	case n.broken != nil:
		p.unlocked(n.hangUp) // all its requests are answered then
		n.failed(now)
		n.broken = nil
		return nil, 0
	case p.over() || len(n.work) == 0 || !n.free():
		return nil, time.Hour
	case now.Before(n.pause):
		return nil, n.pause.Sub(now)
	case !p.leased(now):
		return nil, time.Hour // until it is renewed
	case n.broker == nil:
		n.connect()
		return nil, 0
	}
	req := n.gather(now)
	if req == nil {
		return nil, time.Hour
	}
	return req, 0
}

// unlocked runs what may wait for goroutines that take the lock.
func (p *Producer) unlocked(f func()) {
	p.mu.Unlock()
	defer p.mu.Lock()
	f()
}

// connect is called with the lock held, and gives it back while it waits.
func (n *node) connect() {
	p, addr := n.p, n.addr
	b := sarama.NewBroker(addr)
	var err error
	p.unlocked(func() {
		if err = b.Open(p.produce); err == nil {
			_, err = b.Connected()
		}
	})
	if err == nil {
		n.broker, n.down, n.why = b, time.Time{}, nil
		return
	}
	now := time.Now()
	if n.down.IsZero() {
		n.down = now
	}
	n.why = &failure{doing: fmt.Sprintf("reach broker %d at %s", n.id, addr), err: err}
	n.failed(now)
	if now.Sub(n.down) > p.cluster.cfg.AwayBudget {
		p.failLocked(n.why)
		p.unlocked(p.deliver)
	}
}

// failed notes that the connection was lost or not had, which often means that others lead now.
func (n *node) failed(now time.Time) {
	cfg := &n.p.cluster.cfg
	n.pause = now.Add(doubling(cfg.RetryMin, cfg.RetryMax, n.failures))
	n.failures++
	n.p.askForLeaders()
}

// hangUp returns when every open request has its answer, if only an error.
func (n *node) hangUp() {
	if n.broker != nil {
		_ = n.broker.Close()
	}
	n.broker = nil
}

// gather makes a request of one batch of each partition that has something to send.
func (n *node) gather(now time.Time) *request {
	p := n.p
	req := &request{wire: p.produceRequest()}
	size, rest := 0, n.work[:0]
	for _, part := range n.work {
		room := mostPerRequest - size
		if size == 0 {
			room = hugeLimit // a large record goes all the same, when it is the first
		}
		if b := p.next(part, room, now); b != nil {
			req.batches = append(req.batches, b)
			req.wire.AddBatch(part.topic.name, part.id, &b.wire)
			size += b.size
		}
		if part.listed = part.sendable(); part.listed {
			rest = append(rest, part)
		}
	}
	clear(n.work[len(rest):])
	n.work, n.fresh = rest, 0
	if len(req.batches) == 0 {
		return nil
	}
	if len(rest) > 0 {
		n.fresh = p.cluster.cfg.BatchLimit // what is left need not wait for more
	}
	n.open++
	p.open++
	return req
}

// produceRequest returns a request without batches.
func (p *Producer) produceRequest() *sarama.ProduceRequest {
	return &sarama.ProduceRequest{Version: 9, RequiredAcks: sarama.WaitForAll, Timeout: int32(p.cluster.cfg.ProduceTimeout / time.Millisecond)}
}

// send hands the request to sarama, which writes it before it returns. What can make that wait longer than the network
// does has been waited for: a free slot in the connection, and the broker's wish for a pause.
func (n *node) send(req *request) {
	err := n.broker.AsyncProduce(req.wire, func(res *sarama.ProduceResponse, err error) { n.answer(req, res, err) })
	if err != nil {
		n.answer(req, nil, err)
	}
}

// answer is called once for each request, by sarama's reader of the connection or by send.
func (n *node) answer(req *request, res *sarama.ProduceResponse, err error) {
	p := n.p
	p.mu.Lock()
	n.open--
	p.open--
	if err != nil {
		if kindOf(err).reason == reasonOther { // nonsense instead of an answer
			err = fmt.Errorf("%w (%w)", errLost, err)
		}
		n.broken = err
	} else {
		n.failures = 0
		n.throttle(res.ThrottleTime)
	}
	for _, b := range req.batches {
		v := err
		if v == nil {
			v = verdictOn(res, b.part.topic.name, b.part.id)
		}
		b.doubtful = b.doubtful || doubtful(v)
		p.answered(b, v)
	}
	if n.broken != nil || n.free() && len(n.work) > 0 {
		n.kick()
	}
	p.mu.Unlock()
	p.deliver()
}

// verdictOn returns a broker's answer for one partition; nil: the batch is stored.
func verdictOn(res *sarama.ProduceResponse, topic string, id int32) error {
	block := res.GetBlock(topic, id)
	switch {
	case block == nil:
		return errUnanswered
	case block.Err == sarama.ErrNoError:
		return nil
	}
	return block.Err
}

// throttle: sarama would sleep too, but deaf to everything.
func (n *node) throttle(d time.Duration) {
	if d <= 0 {
		return
	}
	n.p.metrics.throttle.Add(d.Seconds())
	if until := time.Now().Add(d); until.After(n.pause) {
		n.pause = until
	}
}
