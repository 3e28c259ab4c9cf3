package walsendertest

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"
)

// NewInMemory starts a server without a listener: only [Server.Dial] reaches it. It never waits for the network, so
// that it can be used in a bubble of testing/synctest.
func NewInMemory(tb testing.TB, cat Catalog) *Server {
	s := newServer(tb, cat)
	s.addr = memoryAddr
	tb.Cleanup(s.Close)
	return s
}

// memoryAddr is never dialled; it is an IP address so that no name is looked up.
const memoryAddr = "127.0.0.1:5432"

// Dial connects to the server in memory; it is a pgconn.DialFunc.
func (s *Server) Dial(context.Context, string, string) (net.Conn, error) {
	a, b := &half{changed: make(chan struct{})}, &half{changed: make(chan struct{})}
	if !s.serve(&memConn{in: a, out: b}) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", errRefused)}
	}
	return &memConn{in: b, out: a}, nil
}

// half is one direction of a connection: writes never block, as with an unlimited socket buffer.
type half struct {
	mu      sync.Mutex
	buf     []byte
	closed  bool          // by its reader or its writer
	changed chan struct{} // closed and replaced at every change
}

func (h *half) change(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
	close(h.changed)
	h.changed = make(chan struct{})
}

type memConn struct {
	in, out *half
	until   time.Time // read deadline; in.mu guards it
	mine    bool      // closed by this end; out.mu guards it
}

func (c *memConn) Read(p []byte) (int, error) {
	for {
		c.in.mu.Lock()
		if !c.until.IsZero() && !time.Now().Before(c.until) {
			c.in.mu.Unlock()
			return 0, os.ErrDeadlineExceeded
		}
		if len(c.in.buf) > 0 {
			n := copy(p, c.in.buf)
			c.in.buf = c.in.buf[n:]
			c.in.mu.Unlock()
			return n, nil
		}
		closed, changed, until := c.in.closed, c.in.changed, c.until
		c.in.mu.Unlock()
		if closed {
			return 0, io.EOF
		}
		var due <-chan time.Time
		if !until.IsZero() {
			timer := time.NewTimer(time.Until(until))
			defer timer.Stop()
			due = timer.C
		}
		select {
		case <-changed:
		case <-due:
		}
	}
}

func (c *memConn) Write(p []byte) (n int, err error) {
	c.out.change(func() {
		if c.mine {
			err = net.ErrClosed
			return
		}
		// As with TCP, writing to a closed end fails one round trip later at the earliest.
		if !c.out.closed {
			c.out.buf = append(c.out.buf, p...)
		}
		n = len(p)
	})
	return n, err
}

func (c *memConn) Close() error {
	c.in.change(func() { c.in.closed = true })
	c.out.change(func() { c.out.closed, c.mine = true, true })
	return nil
}

func (c *memConn) SetReadDeadline(t time.Time) error {
	c.in.change(func() { c.until = t })
	return nil
}

func (c *memConn) SetWriteDeadline(time.Time) error { return nil }
func (c *memConn) SetDeadline(t time.Time) error    { return c.SetReadDeadline(t) }
func (c *memConn) LocalAddr() net.Addr              { return memAddr{} }
func (c *memConn) RemoteAddr() net.Addr             { return memAddr{} }

type memAddr struct{}

func (memAddr) Network() string { return "tcp" }
func (memAddr) String() string  { return memoryAddr }
