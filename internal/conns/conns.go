// Package conns limits the number of open connections of a listener. Beyond the limit, a new connection replaces the
// connection that has been idle for longest.
//
// If new connections had to wait or were refused, clients that connect and do nothing could use up the limit. Here
// their connections are closed first. A client that keeps an idle connection open loses it only while the limit is
// reached, and can connect again.
package conns

import (
	"net"
	"sync"
	"time"
)

// Limit returns a listener that has at most n connections of l open.
func Limit(l net.Listener, n int) net.Listener {
	return &listener{Listener: l, limit: n, open: map[*conn]struct{}{}}
}

type listener struct {
	net.Listener
	limit int

	mu   sync.Mutex
	open map[*conn]struct{}
}

func (l *listener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: nc, listener: l, last: time.Now()}
	l.mu.Lock()
	var replaced *conn
	if len(l.open) >= l.limit {
		replaced = l.longestIdle()
		delete(l.open, replaced)
	}
	l.open[c] = struct{}{}
	l.mu.Unlock()
	if replaced != nil {
		replaced.abort()
	}
	return c, nil
}

// longestIdle is the connection that has been idle for longest.
func (l *listener) longestIdle() *conn {
	var found *conn
	var since time.Time
	for c := range l.open {
		if t := c.idleSince(); found == nil || t.Before(since) {
			found, since = c, t
		}
	}
	return found
}

func (l *listener) forget(c *conn) {
	l.mu.Lock()
	delete(l.open, c)
	l.mu.Unlock()
}

// conn notes when it last read or wrote bytes.
type conn struct {
	net.Conn
	listener *listener

	mu   sync.Mutex
	last time.Time
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.note(n)
	return n, err
}

// Write may block until the peer reads. Only its return counts as activity.
func (c *conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.note(n)
	return n, err
}

func (c *conn) Close() error {
	c.listener.forget(c)
	return c.Conn.Close()
}

func (c *conn) note(n int) {
	if n == 0 {
		return
	}
	c.mu.Lock()
	c.last = time.Now()
	c.mu.Unlock()
}

func (c *conn) idleSince() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// abort closes the connection and discards unsent data, which the kernel would otherwise keep for minutes.
func (c *conn) abort() {
	if t, ok := c.Conn.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = c.Conn.Close()
}
