package httpsink

import (
	"context"
	"fmt"
	"hash/fnv"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink"
)

// Producer is one session with a receiver: see [sink.Producer] for the methods. Each lane has a goroutine that sends
// the lane's records, one request at a time.
type Producer struct {
	receiver  *Receiver
	target    *Target
	secrets   []string // texts that errors must not have
	transport *http.Transport
	life      context.Context // ends when the connections are cut
	cut       context.CancelFunc
	stopped   chan struct{} // closed at the first failure, or by Close: no more requests are sent
	lanes     []lane
	senders   sync.WaitGroup

	addresses map[string]*address // used only by the goroutine that calls Send

	mu      sync.Mutex // guards the following, and the lanes; no goroutine waits while holding it
	ended   bool       // stopped is closed
	open    int        // requests without an answer, or whose answer is being reported
	idle    *sync.Cond // open has become 0
	unacked int

	cbMu         sync.Mutex // held during callbacks; never locked with mu held
	cb           sink.Callbacks
	callbacksOff bool

	closeOnce sync.Once
	closeErr  error
}

// address is where the events of a topic are sent.
type address struct {
	topic, url string
	missing    atomic.Bool // the receiver does not know it
}

func newProducer(r *Receiver, target *Target, cb sink.Callbacks) *Producer {
	p := &Producer{receiver: r, target: target, cb: cb, stopped: make(chan struct{}), lanes: make([]lane, r.cfg.Lanes), addresses: map[string]*address{}}
	p.idle = sync.NewCond(&p.mu)
	p.life, p.cut = context.WithCancel(context.Background())
	for i := range p.lanes {
		p.lanes[i].wake = make(chan struct{}, 1)
	}
	var only http.Protocols
	only.SetHTTP1(true)
	p.transport = &http.Transport{
		Protocols: &only, DialContext: p.dial, TLSClientConfig: target.TLS, TLSHandshakeTimeout: r.cfg.Timeout, DisableCompression: true,
		MaxIdleConnsPerHost: r.cfg.Lanes, MaxResponseHeaderBytes: 64 << 10, IdleConnTimeout: time.Minute,
	}
	p.secrets = secretsOf(target)
	return p
}

// secretsOf returns the parts of the settings that a receiver may repeat in an answer, and that errors must not have.
func secretsOf(t *Target) (all []string) {
	u, err := url.Parse(t.URL)
	if err != nil {
		return nil
	}
	if password, ok := u.User.Password(); ok && password != "" {
		all = append(all, password)
	}
	for _, values := range u.Query() {
		all = append(all, values...)
	}
	if u.RawQuery != "" {
		all = append(all, u.RawQuery)
	}
	all = slices.DeleteFunc(all, func(s string) bool { return s == "" || s == topicInURL })
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) }) // a secret may be a part of another one
	return all
}

// dial opens a connection that is closed when the session's connections are cut.
func (p *Producer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &conn{c, context.AfterFunc(p.life, func() { _ = c.Close() })}, nil
}

type conn struct {
	net.Conn
	forget func() bool
}

func (c *conn) Close() error {
	c.forget()
	return c.Conn.Close()
}

// Ready always reports true: a receiver cannot be asked whether it takes the events of a topic. Records wait in their
// lanes while it does not know the address.
func (p *Producer) Ready(topic string) (bool, error) {
	_, err := p.addressOf(topic)
	return err == nil, err
}

// Missing reports false, because every topic is ready.
func (p *Producer) Missing(string) bool { return false }

// Why returns "".
func (p *Producer) Why(string) string { return "" }

// Recount does nothing: lanes do not depend on the topic.
func (p *Producer) Recount(string) {}

// Check accepts every record. What a record may be is known only to the receiver.
func (p *Producer) Check(*router.Record) (alone bool, poison *router.Poison) { return false, nil }

// Flush does nothing: a lane that has no request in flight sends at once.
func (p *Producer) Flush() {}

// Partition returns the lane of the record: that of its key, whatever the topic is.
func (p *Producer) Partition(rec *router.Record) int32 {
	h := fnv.New32a()
	_, _ = h.Write(rec.PartitionBy) // it returns no error
	return int32(h.Sum32() % uint32(len(p.lanes)))
}

func (p *Producer) addressOf(topic string) (*address, error) {
	if a := p.addresses[topic]; a != nil {
		return a, nil
	}
	u, err := p.target.at(topic)
	if err != nil {
		return nil, &failure{op: "send to topic " + topic, reason: reasonSecret, err: err}
	}
	a := &address{topic: topic, url: u.String()}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addresses[topic] = a
	return a, nil
}

// Send copies the record and returns.
func (p *Producer) Send(rec *router.Record, n uint64) error {
	to, err := p.addressOf(rec.Topic)
	if err != nil {
		return err
	}
	l := &p.lanes[p.Partition(rec)]
	it := newItem(rec, n, to)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unacked++
	if p.ended {
		return nil // it counts as unacknowledged
	}
	l.queue = append(l.queue, it)
	if !l.started {
		l.started = true
		p.senders.Go(func() { p.run(l) })
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return nil
}

// fail ends the session.
func (p *Producer) fail(err *failure) {
	if p.stop() {
		p.cbMu.Lock()
		defer p.cbMu.Unlock()
		if !p.callbacksOff {
			p.cb.Failed(err)
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
	close(p.stopped)
	return true
}

// troubleAfter is how long a lane may not be taken before Healthy says so.
const troubleAfter = 2 * time.Second

// Healthy returns nil unless the receiver has asked for silence, or has not taken the first record of a lane for a
// time.
func (p *Producer) Healthy() error {
	if _, err := p.receiver.silence(); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.lanes {
		if l := &p.lanes[i]; l.failing != nil && time.Since(l.since) >= troubleAfter {
			return l.failing
		}
	}
	return nil
}

// Waiting lists the topics whose address the receiver does not know.
func (p *Producer) Waiting() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for _, a := range p.addresses {
		if a.missing.Load() {
			out = append(out, a.topic)
		}
	}
	slices.SortFunc(out, strings.Compare)
	return out
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
	p.mu.Lock()
	for p.open > 0 && ctx.Err() == nil {
		p.idle.Wait()
	}
	p.mu.Unlock()
	p.cut()
	p.senders.Wait() // a request ends at once with its connection
	p.transport.CloseIdleConnections()
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
