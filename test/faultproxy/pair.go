package faultproxy

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// dialTimeout bounds connecting to the server, which is on this machine.
const dialTimeout = 5 * time.Second

// kernelBuffer is how much the kernel may buffer per connection and direction: a real link does not buffer megabytes.
const kernelBuffer = 128 << 10

// pair is a client's connection and, once dialled, the one to the server.
type pair struct {
	p      *Proxy
	client *net.TCPConn
	done   chan struct{} // closed when nothing passes any more
	passed atomic.Int64  // when something last did: nanoseconds of Unix
	over   atomic.Int32  // directions that have ended

	swallowing atomic.Int32 // directions that have swallowed something
	upLost     atomic.Bool  // the way to the server is one of them

	mu     sync.Mutex
	server *net.TCPConn
	ended  bool // done is closed
	closed bool // both connections are closed
}

// serve handles one connection of a client from beginning to end.
func (p *Proxy) serve(client *net.TCPConn) {
	if p.isFiller(client) {
		client.Close()
		return
	}
	c := &pair{p: p, client: client, done: make(chan struct{})}
	if !p.add(c) {
		client.Close()
		return
	}
	defer p.remove(c)
	defer c.close()
	p.accepted.Add(1)
	switch {
	case !c.await():
		// A black hole. In a real one the handshake would not have completed.
		_, _ = io.Copy(io.Discard, client)
	case c.dial():
		c.run()
	default:
		c.end(true)
	}
}

// await returns false when a new connection does not get through to the server.
func (c *pair) await() bool {
	for {
		f, changed := c.p.look()
		switch {
		case f.Up.Drop || f.Down.Drop:
			return false
		case !f.Up.Hold && !f.Down.Hold:
			return true
		}
		select {
		case <-changed:
		case <-c.done:
			return false
		}
	}
}

// dial connects to the server.
func (c *pair) dial() bool {
	c.p.mu.Lock()
	target := c.p.target
	c.p.mu.Unlock()
	conn, err := net.DialTimeout("tcp4", target, dialTimeout)
	if err != nil {
		return false
	}
	server := conn.(*net.TCPConn)
	for _, tcp := range []*net.TCPConn{c.client, server} {
		_ = tcp.SetReadBuffer(kernelBuffer) // as near as the kernel allows
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		server.Close()
		return false
	}
	c.server = server
	return true
}

// finWait is how long both sides have, after a FIN, to end by themselves: closing a socket with unread data sends a
// RST.
const finWait = time.Second

// run copies data until the connection ends.
func (c *pair) run() {
	up := &pump{c: c, from: c.client, to: c.server, link: &c.p.up, way: func(f Faults) Way { return f.Up }}
	down := &pump{c: c, from: c.server, to: c.client, link: &c.p.down, way: func(f Faults) Way { return f.Down }}
	up.back, down.back = down, up
	c.passed.Store(time.Now().UnixNano())
	read := make(chan struct{}, 2)
	var all sync.WaitGroup
	for _, m := range []*pump{up, down} {
		m.queue = make(chan chunk, queueLength)
		all.Go(func() { m.read(); read <- struct{}{} })
		all.Go(m.write)
	}
	<-c.done
	wait := time.NewTimer(finWait)
	defer wait.Stop()
	for range 2 {
		select {
		case <-read:
		case <-wait.C:
		}
	}
	c.close()
	all.Wait()
}

// end stops the copying: with a RST at once, or with a FIN to both sides, to which they may answer.
func (c *pair) end(reset bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stop(reset)
}

// cut ends the connection as a fault.
func (c *pair) cut(how Cut) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		c.p.cuts.Add(1)
	}
	c.stop(how == Reset)
}

func (c *pair) stop(reset bool) {
	if !c.ended {
		c.ended = true
		close(c.done)
	}
	if c.closed {
		return
	}
	for _, tcp := range []*net.TCPConn{c.client, c.server} {
		switch {
		case tcp == nil:
		case reset:
			_ = tcp.SetLinger(0)
			tcp.Close()
			c.closed = true
		default:
			_ = tcp.CloseWrite()
		}
	}
}

// close closes both connections. The kernel still sends what it has buffered.
func (c *pair) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.client.Close()
	if c.server != nil {
		c.server.Close()
	}
}
