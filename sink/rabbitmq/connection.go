package rabbitmq

import (
	"context"
	"net"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outboxcdc/outboxcdc/router"
)

// connection is one connection to the broker.
type connection struct {
	amqp    *amqp.Connection
	raw     net.Conn
	timeout time.Duration
	lanes   int

	opening  sync.Mutex // guards the following; held while a channel is opened
	channels map[string]*channel

	mu      sync.Mutex // guards the following; not held for long
	flights map[*flight]struct{}
	blocked string // why the broker takes nothing now; "": it does
	free    chan struct{}
	waited  time.Time // when it was last seen blocked
	over    bool      // no further message is sent
}

func newConnection(ac *amqp.Connection, raw net.Conn, cfg *Config) *connection {
	c := &connection{amqp: ac, raw: raw, timeout: cfg.Timeout, lanes: cfg.Lanes, channels: map[string]*channel{}, flights: map[*flight]struct{}{}}
	blocks := ac.NotifyBlocked(make(chan amqp.Blocking, 16))
	go c.listen(blocks)
	return c
}

// listen notes when the broker blocks the connection, and cuts it when a message is not answered in time, until it is
// closed.
func (c *connection) listen(blocks chan amqp.Blocking) {
	tick := time.NewTicker(c.timeout / 10)
	defer tick.Stop()
	for {
		select {
		case b, open := <-blocks:
			c.setBlocked(b)
			if !open {
				return
			}
		case now := <-tick.C:
			if c.expire(now) {
				c.cut()
			}
		}
	}
}

func (c *connection) setBlocked(b amqp.Blocking) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case b.Active && c.blocked == "":
		c.blocked, c.free = "it has blocked the connection: "+b.Reason, make(chan struct{})
	case !b.Active && c.blocked != "":
		c.blocked, c.waited = "", time.Now()
		close(c.free)
	}
}

// isBlocked returns why the broker takes nothing now, and what is closed when it does again; "": it does.
func (c *connection) isBlocked() (why string, free <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.blocked, c.free
}

// expire reports whether a message has had no answer for the timeout, and marks those. A broker that has said that it
// takes nothing now is given time.
func (c *connection) expire(now time.Time) (any bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.blocked != "" {
		return false
	}
	for f := range c.flights {
		since := f.began
		if c.waited.After(since) {
			since = c.waited
		}
		if now.Sub(since) >= c.timeout {
			f.expired, any = true, true
		}
	}
	return any
}

// cut closes the connection at once. What is not sent yet is dropped.
func (c *connection) cut() {
	if tcp, ok := c.raw.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.raw.Close()
}

// closeTime is how long the broker may take to agree to the end of a connection.
const closeTime = time.Second

// close says goodbye.
func (c *connection) close() {
	_ = c.amqp.CloseDeadline(time.Now().Add(closeTime))
	_ = c.raw.Close()
}

// Closed reports whether the connection has ended.
func (c *connection) Closed() bool { return c.amqp.IsClosed() }

// End closes the connection at once if a message is not answered. No further message is sent.
func (c *connection) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over = true; len(c.flights) > 0 {
		c.cut()
	}
}

// flight is a message that is not answered.
type flight struct {
	rec      *router.Record
	began    time.Time
	confirm  *amqp.DeferredConfirmation
	landed   func(acked bool, returned string, closed error) // is called once, with the result: see channel.result
	expired  bool                                            // guarded by connection.mu
	returned string                                          // what the broker said when it returned the message; guarded by channel.mu
}

// takeOff returns nil if the connection has ended.
func (c *connection) takeOff(rec *router.Record) *flight {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return nil
	}
	f := &flight{rec: rec, began: time.Now()}
	c.flights[f] = struct{}{}
	return f
}

// land returns whether the message was not answered in time.
func (c *connection) land(f *flight) (expired bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.flights, f)
	return f.expired
}

// awaitFree waits while the broker takes nothing, but not longer than the timeout. It returns why it takes nothing.
func (c *connection) awaitFree(ctx context.Context) (why string) {
	why, free := c.isBlocked()
	if why == "" {
		return ""
	}
	timer := time.NewTimer(c.timeout)
	defer timer.Stop()
	select {
	case <-free:
		return ""
	case <-timer.C:
	case <-ctx.Done():
	}
	return why
}
