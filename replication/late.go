package replication

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// dialLate replaces the dialer of a replication connection: everything above it (TLS, cancellation, errors) stays
// pgconn's and sees an ordinary net.Conn. drained is called before the socket is waited for.
func (c *Config) dialLate(dial pgconn.DialFunc, drained func()) pgconn.DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		if c.ReadInterval <= 0 {
			return &promptConn{conn, drained}, nil
		}
		late := newLateConn(conn, c.ReadInterval, drained)
		late.buffer.narrow = narrow(conn, c.ReceiveBuffer)
		return late, nil
	}
}

const (
	// lateBuffer is what one read of the socket takes at most, fullRead what it must bring for another one to take at once
	// what has come since: while the server keeps up with us, there is no reason to wait.
	lateBuffer = 256 << 10
	fullRead   = 8 << 10
	// quietBytes in the socket's buffer end the silence of a pause, though not the pause. More would make the kernel
	// enlarge the buffer.
	quietBytes = 64 << 10
	// aheadBytes read from one pause to the next mean that the server is ahead of us. What was read then goes to Kafka
	// together with what the next read brings: half as many requests, each twice as large.
	aheadBytes = 32 << 10
	// edgeWindow is for how long reads follow each other after the first bytes of a quiet stream: the walsender sends a
	// lone event as three messages and more (Begin, Insert, Commit), microseconds apart, and the first must not make the
	// others wait. edgeWait is how long a read must have waited for bytes to count as the first.
	edgeWindow = 300 * time.Microsecond
	edgeWait   = 100 * time.Microsecond
)

// promptConn is a connection without pauses.
type promptConn struct {
	net.Conn
	drained func()
}

func (c *promptConn) Read(p []byte) (int, error) {
	c.drained()
	return c.Conn.Read(p)
}

// lateConn is a net.Conn that reads late and much. The walsender sends every message by itself; a reader that sleeps in
// read is woken by each of them, and on one machine or a fast network it is the sender that pays for the waking: half
// of its time (docs/adr/0014). So between two reads that bring little there is a pause of one interval, in which the
// messages pile up in the socket's buffers.
//
// Leading edge: no byte waits unless the socket was read less than one interval before. What arrives after a quiet
// interval is read at once, and so is the answer to anything that was written (startup, TLS, queries, a status update
// that asks). A deadline that passes, is moved into the past, or a Close ends a pause at once. With the deadline the
// session's status updates are on time; a keepalive that asks for one waits in the socket for an interval at most.
//
// It is beneath TLS: there one read takes many records, above it each read gets one.
type lateConn struct {
	net.Conn
	interval time.Duration

	reading sync.Mutex // held by the one Read that runs; guards the following
	buf     []byte     // buf[r:w] has been read from the socket and not handed out
	r, w    int
	err     error // came with the bytes in buf
	timer   *time.Timer
	drained func()                                          // called before a wait: all that was read has been handed out
	unsaid  int                                             // bytes read since
	ahead   bool                                            // the server is: the pause that begins, or began last, goes without a call
	lowat   func(bytes int)                                 // nil: not on this connection
	hushed  bool                                            // lowat is set
	try     func(p []byte) (n int, err error, nothing bool) // reads what is there without waiting; nil: cannot
	full    time.Time                                       // of the last read, if it was full: the next one only takes what is there already
	open    bool                                            // the window is
	buffer  buffer

	mu       sync.Mutex // guards the following
	due      time.Time  // the socket is not read before; zero: at once
	edge     time.Time  // end of the window that is open; zero: none
	deadline time.Time  // of reads, as set by our user
	closed   bool
	changed  chan struct{} // wakes a pause
}

func newLateConn(conn net.Conn, interval time.Duration, drained func()) *lateConn {
	c := &lateConn{
		Conn: conn, interval: interval, drained: drained, buf: make([]byte, lateBuffer), changed: make(chan struct{}, 1),
	}
	c.timer = time.NewTimer(time.Hour)
	c.timer.Stop()
	c.lowat, c.try = lowat(conn), try(conn)
	return c
}

// Read hands out what is buffered, else reads the socket, at its time.
func (c *lateConn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if c.r == c.w {
		if err := c.err; err != nil {
			c.err = nil
			return 0, err
		}
		if len(p) >= len(c.buf) { // the rest of a large message
			return c.fill(p)
		}
		n, err := c.fill(c.buf)
		if n == 0 {
			return 0, err
		}
		c.r, c.w, c.err = 0, n, err
	} else if _, err := c.wait(); err != nil {
		return 0, err
	}
	n := copy(p, c.buf[c.r:c.w])
	c.r += n
	return n, nil
}

// fill reads the socket once, when that is due.
func (c *lateConn) fill(p []byte) (int, error) {
	if c.unsaid >= lateBuffer {
		c.say()
	}
	for {
		if err := c.pause(); err != nil {
			return 0, err
		}
		c.buffer.read()
		start := time.Now()
		n, err, nothing := c.take(p)
		switch {
		case nothing && !c.full.IsZero():
			// To wait for the next message now would be to be woken by it, and by each one that follows.
			c.later(c.full.Add(c.interval))
			c.full = time.Time{}
			c.ahead = !c.ahead && c.unsaid >= aheadBytes // never two pauses in a row: an event waits for one more at most
			continue
		case nothing:
			c.say()
			c.hush(false)
			n, err = c.Conn.Read(p)
		}
		c.unsaid += n
		c.ahead = c.ahead && n >= fullRead
		if again := c.plan(n, err, start, time.Now()); !again {
			return n, err
		}
	}
}

// take reads what is there, if that can be done without waiting and makes sense: in the window more is expected.
func (c *lateConn) take(p []byte) (n int, err error, nothing bool) {
	if c.try == nil {
		c.full = time.Time{}
		return 0, nil, true
	}
	if c.open {
		return 0, nil, true
	}
	return c.try(p)
}

// pause returns when the socket may be read.
func (c *lateConn) pause() error {
	for {
		wait, err := c.wait()
		if wait <= 0 || err != nil {
			return err
		}
		if !c.ahead {
			c.say()
		}
		c.hush(true)
		c.timer.Reset(wait)
		select {
		case <-c.timer.C:
		case <-c.changed:
		}
	}
}

// say tells that all that was read has been handed out and no more is there, or that it was much.
func (c *lateConn) say() {
	if c.unsaid > 0 {
		c.unsaid = 0
		c.drained()
	}
}

// hush keeps the kernel from telling the runtime of every message, at all times but when the next one is waited for.
func (c *lateConn) hush(yes bool) {
	if c.lowat == nil || c.hushed == yes {
		return
	}
	c.hushed = yes
	if yes {
		c.lowat(quietBytes)
	} else {
		c.lowat(1)
	}
}

// wait is how long the socket must not be read yet, or until the deadline if that is nearer; an error if nothing may be
// read at all any more: like a socket's, a deadline that has passed also bars bytes that are there.
func (c *lateConn) wait() (time.Duration, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	switch {
	case c.closed:
		return 0, c.opError(net.ErrClosed)
	case c.deadline.IsZero():
		return c.due.Sub(now), nil
	case !now.Before(c.deadline):
		return 0, c.opError(os.ErrDeadlineExceeded)
	}
	return min(c.due.Sub(now), c.deadline.Sub(now)), nil
}

// plan decides from a read that took from start to now when the next one is due. It reports whether the read itself has
// to be repeated, because nothing but the window after a leading edge ended it.
func (c *lateConn) plan(n int, err error, start, now time.Time) (again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	open := !c.edge.IsZero()
	c.full = time.Time{}
	switch {
	case n >= fullRead:
		c.due, c.full = time.Time{}, now
		c.hush(true)
	case open && n > 0 && now.Before(c.edge):
		return false
	case open && n == 0 && isTimeout(err) && (c.deadline.IsZero() || now.Before(c.deadline)):
		again = true
		c.due = c.edge.Add(c.interval - edgeWindow)
	case n == 0: // nothing was there: what comes is new
	case n > 0 && !open && now.Sub(start) >= edgeWait:
		c.edge, c.due, c.open = now.Add(edgeWindow), time.Time{}, true
		c.arm()
		return false
	default:
		c.due = now.Add(c.interval)
		c.hush(true)
	}
	if open {
		c.edge, c.open = time.Time{}, false
		c.arm()
	}
	return again
}

// later sets when the socket is read next.
func (c *lateConn) later(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.due = t
}

// arm gives the socket the deadline of the window or that of our user, the earlier one.
func (c *lateConn) arm() {
	t := c.deadline
	if !c.edge.IsZero() && (t.IsZero() || c.edge.Before(t)) {
		t = c.edge
	}
	_ = c.Conn.SetReadDeadline(t) // fails on a closed connection, as the read will
}

// wake ends a pause, so that it looks again.
func (c *lateConn) wake() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// Write writes at once; what comes after it may be an answer, so the next read does not wait.
func (c *lateConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.mu.Lock()
	c.due = time.Time{}
	c.mu.Unlock()
	c.wake()
	return n, err
}

func (c *lateConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *lateConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	err := c.Conn.SetReadDeadline(t)
	if !c.edge.IsZero() {
		c.arm()
	}
	c.wake()
	return err
}

func (c *lateConn) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.wake()
	c.buffer.forget()
	return c.Conn.Close()
}

// opError looks as the same error of a TCP connection does.
func (c *lateConn) opError(err error) error {
	return &net.OpError{Op: "read", Net: c.LocalAddr().Network(), Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}
