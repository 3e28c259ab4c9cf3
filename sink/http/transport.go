package httpsink

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/lane"
)

// transport sends requests: it is the [lane.Transport] of one session.
type transport struct {
	receiver *Receiver
	target   *Target
	secrets  []string // texts that errors must not have: see secretsOf
	http     *http.Transport
	calls    lane.Pool
	life     context.Context // ends when the connections are closed
	cut      context.CancelFunc
}

func newTransport(r *Receiver, target *Target) *transport {
	t := &transport{receiver: r, target: target, secrets: secretsOf(target), calls: lane.NewPool()}
	t.life, t.cut = context.WithCancel(context.Background())
	var only http.Protocols
	only.SetHTTP1(true)
	t.http = &http.Transport{
		Protocols: &only, DialContext: t.dial, TLSClientConfig: target.TLS, TLSHandshakeTimeout: r.cfg.Timeout, DisableCompression: true,
		MaxIdleConnsPerHost: r.cfg.Lanes, MaxResponseHeaderBytes: 64 << 10, IdleConnTimeout: time.Minute,
	}
	return t
}

// dial opens a connection that is closed with the session.
func (t *transport) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &conn{c, context.AfterFunc(t.life, func() { _ = c.Close() })}, nil
}

type conn struct {
	net.Conn
	forget func() bool
}

func (c *conn) Close() error {
	c.forget()
	return c.Conn.Close()
}

// Check accepts every record. What a record may be is known only to the receiver.
func (t *transport) Check(*router.Record) *router.Poison { return nil }

// Healthy returns nil: a request has a connection of its own, and shows whether it can be opened.
func (t *transport) Healthy() error { return nil }

func (t *transport) Close() {
	t.cut()
	t.http.CloseIdleConnections()
}

// Deliver has a goroutine wait for the answer.
func (t *transport) Deliver(ctx context.Context, items []*lane.Item, done func(stored int, why *lane.Failure)) {
	t.calls.Go(ctx, func() { done(t.deliver(ctx, items)) })
}

// deliver sends one request.
func (t *transport) deliver(ctx context.Context, items []*lane.Item) (stored int, why *lane.Failure) {
	ctx, cancel := context.WithTimeout(ctx, t.receiver.cfg.Timeout)
	defer cancel()
	first := items[0].Record
	op := "send event " + string(first.ID) + " of topic " + first.Topic
	if more := len(items) - 1; more > 0 {
		op += fmt.Sprintf(" and %d more", more)
	}
	to, err := t.target.at(first.Topic)
	if err != nil {
		return 0, &lane.Failure{Op: op, Code: lane.CodeSecret, Err: err}
	}
	req, err := t.request(ctx, to, newMessage(items, t.receiver.cfg.Batch > 1), time.Now())
	if err != nil {
		return 0, &lane.Failure{Op: op, Code: lane.CodeSecret, Err: errors.New("the address is invalid")}
	}
	op += " to " + to.Host
	res, err := t.http.RoundTrip(req)
	if err != nil {
		code := lane.CodeOf(err)
		err = errors.New(t.withoutSecrets(err.Error())) // it may quote what was answered
		if code == lane.CodeTimeout {
			err = fmt.Errorf("no answer within %s (receiver.timeout)", t.receiver.cfg.Timeout)
		}
		return 0, &lane.Failure{Op: op, Code: code, Err: err}
	}
	defer res.Body.Close() // unless the answer was read to its end, it closes the connection
	defer time.AfterFunc(restTime, cancel).Stop()
	if !isAck(res.StatusCode) {
		why = t.answerError(op, res)
	} else {
		stored = len(items)
	}
	discard(res)
	return stored, why
}

// maxDiscarded is how much of an answer is read so that the connection can be used again, and restTime how long that
// may take: the status has said what the answer means.
const (
	maxDiscarded = 4 << 10
	restTime     = 100 * time.Millisecond
)

// discard reads a short answer to its end. The length of a long one is known or not: it is not waited for.
func discard(res *http.Response) {
	if res.ContentLength > maxDiscarded {
		return
	}
	buf := make([]byte, 512)
	for range maxDiscarded / len(buf) {
		if _, err := res.Body.Read(buf); err != nil {
			return
		}
	}
}
