package kafka

import (
	"fmt"
	"slices"
	"time"

	"github.com/IBM/sarama"
)

// node is one broker as a leader of partitions, with one goroutine that sends to it. There is no linger time: the
// records between two calls of Flush, or during an open request, become one request. When Config.BatchLimit bytes
// have gathered, they do not wait for Flush, and another request may be sent, up to Config.Requests.
//
// Sarama does the connection: dialling, TLS, the protocol version, request and answer. After an error the connection
// is closed, and all its requests get an answer or an error, before the next one is opened.
type node struct {
	p      *Producer
	id     int32
	wakeup chan struct{}

	// Guarded by Producer.mu.
	addr        string
	listed      []*partition // partitions with something to send
	newBytes    int          // bytes passed to Send since the last request
	open        int          // requests without an answer
	woken       bool
	connErr     error     // the connection must be closed
	pausedUntil time.Time // no request is sent earlier, because of throttling or a failed connection
	downSince   time.Time // when the first attempt to connect failed; zero: connected, or not needed
	connectErr  error     // error of the last attempt to connect

	// Used only by the goroutine.
	broker   *sarama.Broker
	failures int
	records  wireRecords
}

// request is a produce request and its batches.
type request struct {
	batches []*batch
	wire    *sarama.ProduceRequest
}

// maxRequestBytes is the maximum size of a request, unless a single record is larger. The broker has the whole
// request in memory, and answers when the last partition is replicated.
const maxRequestBytes = 4 << 20

func (p *Producer) newNode(id int32, addr string) *node {
	n := &node{p: p, id: id, addr: addr, wakeup: make(chan struct{}, 1)}
	p.senders.Add(1)
	go n.run()
	return n
}

// wake wakes the goroutine. mu is held.
func (n *node) wake() {
	if n.woken {
		return
	}
	n.woken = true
	select {
	case n.wakeup <- struct{}{}:
	default:
	}
}

// canSend reports whether a request may be sent now.
func (n *node) canSend() bool {
	return n.open == 0 && !n.p.gathering || n.open < n.p.cluster.cfg.Requests && n.newBytes >= n.p.cluster.cfg.BatchLimit
}

func (n *node) unlist(part *partition) {
	part.listed = false
	if i := slices.Index(n.listed, part); i >= 0 {
		n.listed = slices.Delete(n.listed, i, i+1)
	}
}

// run sends requests until the session's connections are cut. After a failure of the session it sends nothing.
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
		case <-n.wakeup:
		case <-timer.C:
		case <-n.p.dialer.ctx.Done():
		}
	}
}

// step returns a request to send, or how long to wait before the next step.
func (n *node) step() (*request, time.Duration) {
	p := n.p
	p.mu.Lock()
	defer p.mu.Unlock()
	n.woken = false
	now := time.Now()
	switch {
	case n.connErr != nil:
		p.unlocked(n.hangUp) // returns when all its requests are answered
		n.noteFailure(now)
		n.connErr = nil
		return nil, 0
	case p.ended() || len(n.listed) == 0 || !n.canSend():
		return nil, time.Hour
	case now.Before(n.pausedUntil):
		return nil, n.pausedUntil.Sub(now)
	case !p.mayStart(now):
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

// unlocked runs f without the lock, because f may wait for goroutines that need it.
func (p *Producer) unlocked(f func()) {
	p.mu.Unlock()
	defer p.mu.Lock()
	f()
}

// connect opens a connection. mu is held, except while connect waits.
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
		n.broker, n.downSince, n.connectErr = b, time.Time{}, nil
		return
	}
	now := time.Now()
	if n.downSince.IsZero() {
		n.downSince = now
	}
	n.connectErr = &failure{op: fmt.Sprintf("reach broker %d at %s", n.id, addr), err: err}
	n.noteFailure(now)
	if now.Sub(n.downSince) > p.cluster.cfg.AwayBudget {
		p.failLocked(n.connectErr)
		p.unlocked(p.deliver)
	}
}

// noteFailure delays the next attempt after a lost or failed connection, and requests the leaders, which have often
// changed.
func (n *node) noteFailure(now time.Time) {
	cfg := &n.p.cluster.cfg
	n.pausedUntil = now.Add(doubling(cfg.RetryMin, cfg.RetryMax, n.failures))
	n.failures++
	n.p.askForLeaders()
}

// hangUp closes the connection. It returns when every open request has an answer or an error.
func (n *node) hangUp() {
	if n.broker != nil {
		_ = n.broker.Close()
	}
	n.broker = nil
}

// gather makes a request with one batch of each listed partition.
func (n *node) gather(now time.Time) *request {
	p := n.p
	req := &request{wire: p.produceRequest()}
	size, rest := 0, n.listed[:0]
	for _, part := range n.listed {
		room := maxRequestBytes - size
		if size == 0 {
			room = hugeLimit // the first batch may be larger
		}
		if b := p.nextBatch(part, room, now); b != nil {
			req.batches = append(req.batches, b)
			req.wire.AddBatch(part.topic.name, part.id, &b.wire)
			size += b.size
		}
		if part.listed = part.sendable(); part.listed {
			rest = append(rest, part)
		}
	}
	clear(n.listed[len(rest):])
	n.listed, n.newBytes = rest, 0
	if len(req.batches) == 0 {
		return nil
	}
	if len(rest) > 0 {
		n.newBytes = p.cluster.cfg.BatchLimit // the remaining batches do not wait for Flush
	}
	n.open++
	p.open++
	return req
}

// produceRequest returns a request without batches.
func (p *Producer) produceRequest() *sarama.ProduceRequest {
	return &sarama.ProduceRequest{Version: 9, RequiredAcks: sarama.WaitForAll, Timeout: int32(p.cluster.cfg.ProduceTimeout / time.Millisecond)}
}

// send sends a request through sarama, which returns after writing it. Sarama does not wait for a free slot or for a
// throttling pause here, because step has waited for both.
func (n *node) send(req *request) {
	n.records.set(req.batches)
	defer n.records.release()
	err := n.broker.AsyncProduce(req.wire, func(res *sarama.ProduceResponse, err error) { n.answer(req, res, err) })
	if err != nil {
		n.answer(req, nil, err)
	}
}

// answer handles the answer or error of a request. It is called once per request, by sarama's reader or by send.
func (n *node) answer(req *request, res *sarama.ProduceResponse, err error) {
	p := n.p
	p.mu.Lock()
	n.open--
	p.open--
	if err != nil {
		if kindOf(err).reason == reasonOther { // the answer cannot be decoded
			err = fmt.Errorf("%w (%w)", errLost, err)
		}
		n.connErr = err
	} else {
		n.failures = 0
		n.throttle(res.ThrottleTime)
	}
	for _, b := range req.batches {
		v := err
		if v == nil {
			v = verdictOn(res, b.part.topic.name, b.part.id)
		}
		b.maybeStored = b.maybeStored || maybeStored(v)
		p.handleAnswer(b, v)
	}
	if n.connErr != nil || n.canSend() && len(n.listed) > 0 {
		n.wake()
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

// throttle delays the next request as requested by the broker. Sarama's own pause could not be interrupted.
func (n *node) throttle(d time.Duration) {
	if d <= 0 {
		return
	}
	n.p.metrics.throttle.Add(d.Seconds())
	if until := time.Now().Add(d); until.After(n.pausedUntil) {
		n.pausedUntil = until
	}
}
