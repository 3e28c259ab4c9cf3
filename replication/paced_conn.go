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

// pacedDialer returns a dialer whose connections are pacedConns, beneath TLS. drained is called before a connection waits for its
// socket.
func (c *Config) pacedDialer(dial pgconn.DialFunc, drained func()) pgconn.DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		if c.ReadInterval <= 0 {
			return &promptConn{conn, drained}, nil
		}
		paced := newPacedConn(conn, c.ReadInterval, drained)
		paced.buffer.narrow = bufferSetter(conn, c.ReceiveBuffer)
		return paced, nil
	}
}

const (
	// maxRead is the maximum size of one read of the socket. After a read of at least fullRead bytes, the next read follows without a
	// pause, because the server sends as fast as we read.
	maxRead  = 256 << 10
	fullRead = 8 << 10
	// quietBytes is the low watermark of the socket during a pause. With more, the kernel would enlarge the buffer.
	quietBytes = 64 << 10
	// aheadBytes is how many bytes read between two pauses mean that the server is ahead of us. These bytes then go to Kafka together
	// with those of the next read: half as many requests, each twice as large.
	aheadBytes = 32 << 10
	// edgeWindow is how long reads follow each other without a pause after the first bytes of a quiet stream. The walsender sends a
	// lone event as three or more messages (Begin, Insert, Commit), microseconds apart, and the first one must not delay the rest.
	// Bytes are the first ones if the read waited for edgeWait.
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

// pacedConn is a net.Conn that reads its socket seldom and in large pieces. The walsender sends each message by itself. A reader that
// waits in read is woken by each message, and on one machine or a fast network the sender spends half of its time on these wake-ups
// (docs/adr/0014). So pacedConn pauses for one interval between two small reads, while messages accumulate in the socket's buffers.
//
// A byte waits only if the socket was read less than one interval before. Bytes that arrive after a quiet interval are read at once,
// and so is the answer to a write (startup, TLS, queries, a status update that requests a reply). A pause ends at once when the
// deadline passes or is moved into the past, and on Close. So the session's status updates are on time; a keepalive that requests one
// waits for one interval at most.
//
// pacedConn is beneath TLS, because a read above TLS returns only one TLS record.
type pacedConn struct {
	net.Conn
	interval time.Duration

	reading         sync.Mutex // held by Read; guards the following
	buf             []byte     // buf[r:w] was read from the socket and not returned yet
	r, w            int
	err             error // returned by the socket together with the bytes in buf
	timer           *time.Timer
	drained         func()                                          // called before a wait, when all bytes that were read have been returned
	pendingBytes    int                                             // bytes read since the last call of drained
	serverAhead     bool                                            // the current or last pause begins without a call of drained
	setLowat        func(bytes int)                                 // nil: the connection has no low watermark
	lowWatermarkSet bool                                            // the low watermark is quietBytes
	tryRead         func(p []byte) (n int, err error, nothing bool) // reads available bytes without waiting; nil: not possible
	fullReadAt      time.Time                                       // when the last read ended, if it was full: then the next one does not wait
	windowOpen      bool                                            // a leading edge was less than edgeWindow ago
	buffer          receiveBuffer

	mu        sync.Mutex // guards the following
	due       time.Time  // when the socket may be read; zero: at once
	windowEnd time.Time  // end of the open window; zero: no window is open
	deadline  time.Time  // read deadline of the user
	closed    bool
	changed   chan struct{} // wakes a pause
}

func newPacedConn(conn net.Conn, interval time.Duration, drained func()) *pacedConn {
	c := &pacedConn{
		Conn: conn, interval: interval, drained: drained, buf: make([]byte, maxRead), changed: make(chan struct{}, 1),
	}
	c.timer = time.NewTimer(time.Hour)
	c.timer.Stop()
	c.setLowat, c.tryRead = lowatSetter(conn), tryReader(conn)
	return c
}

// Read returns buffered bytes. If there are none, it reads the socket when due.
func (c *pacedConn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if c.r == c.w {
		if err := c.err; err != nil {
			c.err = nil
			return 0, err
		}
		if len(p) >= len(c.buf) { // read into p directly
			return c.fill(p)
		}
		n, err := c.fill(c.buf)
		if n == 0 {
			return 0, err
		}
		c.r, c.w, c.err = 0, n, err
	} else if _, err := c.delay(); err != nil {
		return 0, err
	}
	n := copy(p, c.buf[c.r:c.w])
	c.r += n
	return n, nil
}

// fill reads the socket once, when due.
func (c *pacedConn) fill(p []byte) (int, error) {
	if c.pendingBytes >= maxRead {
		c.notifyDrained()
	}
	for {
		if err := c.pause(); err != nil {
			return 0, err
		}
		c.buffer.beforeRead()
		start := time.Now()
		n, err, nothing := c.readAvailable(p)
		switch {
		case nothing && !c.fullReadAt.IsZero():
			// Waiting here would mean a wake-up for each of the next messages.
			c.setDue(c.fullReadAt.Add(c.interval))
			c.fullReadAt = time.Time{}
			c.serverAhead = !c.serverAhead && c.pendingBytes >= aheadBytes // not for two pauses in a row, so an event waits for one additional pause at most
			continue
		case nothing:
			c.notifyDrained()
			c.setLowWatermark(false)
			n, err = c.Conn.Read(p)
		}
		c.pendingBytes += n
		c.serverAhead = c.serverAhead && n >= fullRead
		if again := c.schedule(n, err, start, time.Now()); !again {
			return n, err
		}
	}
}

// readAvailable reads the available bytes without waiting. nothing means that fill must wait: no bytes are available, reading without
// waiting is not possible, or more bytes are expected soon (windowOpen).
func (c *pacedConn) readAvailable(p []byte) (n int, err error, nothing bool) {
	if c.tryRead == nil {
		c.fullReadAt = time.Time{}
		return 0, nil, true
	}
	if c.windowOpen {
		return 0, nil, true
	}
	return c.tryRead(p)
}

// pause returns when the socket may be read.
func (c *pacedConn) pause() error {
	for {
		wait, err := c.delay()
		if wait <= 0 || err != nil {
			return err
		}
		if !c.serverAhead {
			c.notifyDrained()
		}
		c.setLowWatermark(true)
		c.timer.Reset(wait)
		select {
		case <-c.timer.C:
		case <-c.changed:
		}
	}
}

// notifyDrained calls drained if bytes were read since its last call.
func (c *pacedConn) notifyDrained() {
	if c.pendingBytes > 0 {
		c.pendingBytes = 0
		c.drained()
	}
}

// setLowWatermark sets the low watermark of the socket to quietBytes, or to 1. With quietBytes the kernel does not wake the runtime for
// every message; with 1 a read can wait for the next message.
func (c *pacedConn) setLowWatermark(on bool) {
	if c.setLowat == nil || c.lowWatermarkSet == on {
		return
	}
	c.lowWatermarkSet = on
	if on {
		c.setLowat(quietBytes)
	} else {
		c.setLowat(1)
	}
}

// delay returns the time until the socket is due or until the deadline, the shorter of both. It returns an error after Close and
// after the deadline, even if bytes are available, as a socket does.
func (c *pacedConn) delay() (time.Duration, error) {
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

// schedule sets when the next read is due, after a read that took from start to now. again means that the read must be repeated,
// because only the end of the window after a leading edge ended it.
func (c *pacedConn) schedule(n int, err error, start, now time.Time) (again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	open := !c.windowEnd.IsZero()
	c.fullReadAt = time.Time{}
	switch {
	case n >= fullRead:
		c.due, c.fullReadAt = time.Time{}, now
		c.setLowWatermark(true)
	case open && n > 0 && now.Before(c.windowEnd):
		return false
	case open && n == 0 && isTimeout(err) && (c.deadline.IsZero() || now.Before(c.deadline)):
		again = true
		c.due = c.windowEnd.Add(c.interval - edgeWindow)
	case n == 0: // no bytes: the next ones are a leading edge
	case n > 0 && !open && now.Sub(start) >= edgeWait:
		c.windowEnd, c.due, c.windowOpen = now.Add(edgeWindow), time.Time{}, true
		c.setSocketDeadline()
		return false
	default:
		c.due = now.Add(c.interval)
		c.setLowWatermark(true)
	}
	if open {
		c.windowEnd, c.windowOpen = time.Time{}, false
		c.setSocketDeadline()
	}
	return again
}

// setDue sets when the socket may be read.
func (c *pacedConn) setDue(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.due = t
}

// setSocketDeadline sets the deadline of the socket to the earlier of the end of the window and the deadline of the user.
func (c *pacedConn) setSocketDeadline() {
	t := c.deadline
	if !c.windowEnd.IsZero() && (t.IsZero() || c.windowEnd.Before(t)) {
		t = c.windowEnd
	}
	_ = c.Conn.SetReadDeadline(t) // fails on a closed connection, as the read will
}

// wake ends a wait in pause, which then computes the delay again.
func (c *pacedConn) wake() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// Write writes at once. The next read does not pause, because it may receive the answer.
func (c *pacedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.mu.Lock()
	c.due = time.Time{}
	c.mu.Unlock()
	c.wake()
	return n, err
}

func (c *pacedConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *pacedConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	err := c.Conn.SetReadDeadline(t)
	if !c.windowEnd.IsZero() {
		c.setSocketDeadline()
	}
	c.wake()
	return err
}

func (c *pacedConn) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.wake()
	c.buffer.stop()
	return c.Conn.Close()
}

// opError returns err as a TCP connection would.
func (c *pacedConn) opError(err error) error {
	return &net.OpError{Op: "read", Net: c.LocalAddr().Network(), Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}
