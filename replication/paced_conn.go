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

// pacedDialer returns a dialer whose connections are pacedConns, beneath TLS.
func (c *Config) pacedDialer(dial pgconn.DialFunc, tap *readTap) pgconn.DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		paced := newPacedConn(conn, c.ReadInterval, tap)
		if paced.longest > 0 {
			paced.buffer.narrow = bufferSetter(conn, c.ReceiveBuffer)
		}
		return paced, nil
	}
}

const (
	// maxRead is the maximum size of one read of the socket. After a read of at least fullRead bytes, the next read
	// takes what has arrived meanwhile, because the server sends as fast as we read.
	maxRead  = 256 << 10
	fullRead = 8 << 10
	// quietBytes is the low watermark of the socket during a pause. With more, the kernel would enlarge the buffer.
	quietBytes = 64 << 10
	// A pause is a tenth of the age of the events, so reading late makes no event arrive more than a tenth later. The
	// minimum is shortPause. Go's poller waits for whole milliseconds, so a pause may take longer.
	ageShare   = 10
	shortPause = 1300 * time.Microsecond
	// followTime is how long there are no short pauses after the first bytes of a stream that was quiet, which means
	// that a read waited for shortPause or longer. The walsender sends a lone event as three or more messages (Begin,
	// Insert, Commit), microseconds apart, and the first must not delay the rest.
	followTime = 300 * time.Microsecond
)

// pacedConn is a net.Conn that reads its socket at once while little arrives, and seldom and in large pieces during a
// backlog. The walsender sends each message by itself. A reader that waits in read is woken by each message, and on
// one machine or a fast network the sender spends half of its time on these wake-ups (docs/adr/0014). So pacedConn
// pauses between two reads, while messages accumulate in the socket's buffers.
//
// The pause is proportional to the age of the events that are read: the time from the commit to the sending, both by
// the server's clock. During a backlog it is longest. Without a backlog it is shortPause if the messages are dense,
// and there is none if they are not. The answer to a write (startup, TLS, queries, a status update that requests a
// reply) is read at once. A pause ends at once when the deadline passes or is moved into the past, and on Close. So
// the session's status updates are on time; a keepalive that requests one waits for one pause at most.
//
// pacedConn is beneath TLS, because a read above TLS returns only one TLS record.
type pacedConn struct {
	net.Conn
	longest time.Duration // the longest pause; 0: no pauses
	tap     *readTap

	reading       sync.Mutex // held by Read; guards the following
	buf           []byte     // buf[r:w] was read from the socket and not returned yet
	r, w          int
	err           error // returned by the socket together with the bytes in buf
	timer         *time.Timer
	pendingBytes  int                                             // bytes read since the last call of the tap's drained
	setLowat      func(bytes int)                                 // nil: the connection has no low watermark
	tryRead       func(p []byte) (n int, err error, nothing bool) // reads available bytes without waiting; nil: not possible
	watermarkHigh bool                                            // the low watermark is quietBytes: no read waits
	full          bool                                            // the last read was full, so the next one does not wait
	edge          time.Time                                       // when the first bytes of a quiet stream arrived
	buffer        receiveBuffer

	mu       sync.Mutex // guards the following
	roundEnd time.Time  // when the last bytes were read: a pause begins; zero: no pause
	deadline time.Time  // read deadline of the user
	closed   bool
	changed  chan struct{} // wakes a pause
}

func newPacedConn(conn net.Conn, longest time.Duration, tap *readTap) *pacedConn {
	c := &pacedConn{Conn: conn, longest: longest, tap: tap, buf: make([]byte, maxRead), changed: make(chan struct{}, 1)}
	c.timer = time.NewTimer(time.Hour)
	c.timer.Stop()
	c.setLowat, c.tryRead = lowatSetter(conn), tryReader(conn)
	if c.tryRead == nil { // after a pause each read would wait
		c.longest = 0
	}
	return c
}

// Read returns buffered bytes. If there are none, it reads the socket.
func (c *pacedConn) Read(p []byte) (n int, err error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	switch {
	case c.r < c.w:
		if _, err := c.delay(); err != nil {
			return 0, err
		}
	case c.err != nil:
		err, c.err = c.err, nil
		return 0, err
	case len(p) >= len(c.buf): // read into p directly
		return c.fill(p)
	default:
		if n, err = c.fill(c.buf); n == 0 {
			return 0, err
		}
		c.r, c.w, c.err = 0, n, err
	}
	n = copy(p, c.buf[c.r:c.w])
	c.r += n
	c.tap.more.Store(c.r < c.w)
	return n, nil
}

// fill reads the socket once. It pauses before, unless more bytes are available after a full read.
func (c *pacedConn) fill(p []byte) (n int, err error) {
	if c.pendingBytes >= maxRead {
		c.notifyDrained()
	}
	nothing := true
	if c.full {
		n, err, nothing = c.readAvailable(p)
	}
	if nothing {
		if err := c.pause(); err != nil {
			return 0, err
		}
		n, err, nothing = c.readAvailable(p)
	}
	if nothing {
		n, err = c.await(p)
	}
	if n > 0 {
		c.pendingBytes += n
		c.tap.received.Store(true)
		c.endRound()
	}
	if c.full = n >= fullRead && c.longest > 0; c.full {
		c.setLowWatermark(true)
	}
	return n, err
}

// readAvailable reads the available bytes. With the low watermark at 1 it reads nothing, because a read that waits
// returns them, too.
func (c *pacedConn) readAvailable(p []byte) (n int, err error, nothing bool) {
	c.buffer.beforeRead()
	if !c.watermarkHigh {
		return 0, nil, true
	}
	return c.tryRead(p)
}

// await waits for bytes and reads them.
func (c *pacedConn) await(p []byte) (int, error) {
	c.notifyDrained()
	c.setLowWatermark(false)
	start := time.Now()
	n, err := c.Conn.Read(p)
	if now := time.Now(); now.Sub(start) >= shortPause {
		c.edge = now
	}
	return n, err
}

// pause returns when the socket may be read.
func (c *pacedConn) pause() error {
	for {
		wait, err := c.delay()
		if wait <= 0 || err != nil {
			return err
		}
		c.notifyDrained()
		c.setLowWatermark(true)
		c.timer.Reset(wait)
		select {
		case <-c.timer.C:
		case <-c.changed:
		}
	}
}

// notifyDrained calls the tap's drained if bytes were read since its last call.
func (c *pacedConn) notifyDrained() {
	if c.pendingBytes > 0 {
		c.pendingBytes = 0
		c.tap.onDrained()
	}
}

// setLowWatermark sets the low watermark of the socket to quietBytes, or to 1. With quietBytes the kernel does not
// wake the runtime for every message; with 1 a read can wait for the next message.
func (c *pacedConn) setLowWatermark(high bool) {
	if c.watermarkHigh == high {
		return
	}
	c.watermarkHigh = high
	switch {
	case c.setLowat == nil:
	case high:
		c.setLowat(quietBytes)
	default:
		c.setLowat(1)
	}
}

// delay returns the time until the end of the pause or until the deadline, the shorter of both. It returns an error
// after Close and after the deadline, even if bytes are available, as a socket does.
func (c *pacedConn) delay() (time.Duration, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	switch {
	case c.closed:
		return 0, c.opError(net.ErrClosed)
	case !c.deadline.IsZero() && !now.Before(c.deadline):
		return 0, c.opError(os.ErrDeadlineExceeded)
	}
	wait := c.roundEnd.Add(c.pauseLength(now)).Sub(now)
	if !c.deadline.IsZero() {
		wait = min(wait, c.deadline.Sub(now))
	}
	return wait, nil
}

// pauseLength returns the time between the last read and the next one.
func (c *pacedConn) pauseLength(now time.Time) time.Duration {
	length := time.Duration(c.tap.age.Load()) / ageShare
	if length < shortPause {
		if now.Sub(c.edge) < followTime {
			return 0
		}
		length = shortPause
	}
	return min(length, c.longest)
}

// endRound begins a pause. Whether there is one is decided by the next read.
func (c *pacedConn) endRound() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.roundEnd = time.Now()
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
	c.roundEnd = time.Time{}
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
	c.wake()
	return c.Conn.SetReadDeadline(t)
}

func (c *pacedConn) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.wake()
	return c.Conn.Close()
}

// opError returns err as a TCP connection would.
func (c *pacedConn) opError(err error) error {
	return &net.OpError{Op: "read", Net: c.LocalAddr().Network(), Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}
