// Package conns bounds how many connections a listener has open without letting those that are there keep others out: a
// newcomer takes the place of the one that has stood still for longest.
//
// A limit that makes newcomers wait or turns them away could be used up by clients that connect and do nothing. Here those
// are the first to go. A client that keeps its connection for later loses it only while there is a crowd, and connects again.
package conns

import (
	"net"
	"sync"
	"time"
)

// Limit makes l hold at most n connections.
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
	c := &conn{Conn: nc, from: l, moved: time.Now()}
	l.mu.Lock()
	var gone *conn
	if len(l.open) >= l.limit {
		gone = l.stalest()
		delete(l.open, gone)
	}
	l.open[c] = struct{}{}
	l.mu.Unlock()
	if gone != nil {
		gone.cut()
	}
	return c, nil
}

// stalest is the connection on which nothing has moved for longest.
func (l *listener) stalest() *conn {
	var found *conn
	var since time.Time
	for c := range l.open {
		if t := c.lastMoved(); found == nil || t.Before(since) {
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

// conn notes when bytes last went either way.
type conn struct {
	net.Conn
	from *listener

	mu    sync.Mutex
	moved time.Time
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.note(n)
	return n, err
}

// Write can take as long as the peer lets it: only its end counts as a move.
func (c *conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.note(n)
	return n, err
}

func (c *conn) Close() error {
	c.from.forget(c)
	return c.Conn.Close()
}

func (c *conn) note(n int) {
	if n == 0 {
		return
	}
	c.mu.Lock()
	c.moved = time.Now()
	c.mu.Unlock()
}

func (c *conn) lastMoved() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.moved
}

// cut closes without waiting for what the peer has not taken: the kernel would hold that for minutes.
func (c *conn) cut() {
	if t, ok := c.Conn.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = c.Conn.Close()
}
