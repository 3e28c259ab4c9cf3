package replication

import (
	"errors"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const testInterval = 5 * time.Millisecond

// socket is a connection with a buffer, like those of the kernel and unlike net.Pipe. It records when it was read.
type socket struct {
	mu       sync.Mutex
	cond     *sync.Cond
	in       []byte
	err      error // returned when in is empty
	together bool  // err is returned together with the last bytes of in
	deadline time.Time
	closed   bool
	reads    []time.Time // when reads returned bytes
	written  []byte
}

func newSocket() *socket {
	s := &socket{}
	s.cond = sync.NewCond(&s.mu)
	return s
}

func (s *socket) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.closed:
			return 0, net.ErrClosed
		case !s.deadline.IsZero() && !time.Now().Before(s.deadline):
			return 0, os.ErrDeadlineExceeded
		case len(s.in) > 0:
			n := copy(p, s.in)
			s.in = s.in[n:]
			s.reads = append(s.reads, time.Now())
			if err := s.err; s.together && len(s.in) == 0 {
				s.err = errors.New("read after the end")
				return n, err
			}
			return n, nil
		case s.err != nil:
			return 0, s.err
		}
		s.cond.Wait()
	}
}

func (s *socket) arrive(p []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.in = append(s.in, p...)
	s.cond.Broadcast()
}

func (s *socket) SetReadDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deadline = t
	s.cond.Broadcast()
	if !t.IsZero() {
		time.AfterFunc(time.Until(t), s.cond.Broadcast)
	}
	return nil
}

func (s *socket) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.cond.Broadcast()
	return nil
}

func (s *socket) Write(p []byte) (int, error) {
	s.written = append(s.written, p...)
	return len(p), nil
}

func (s *socket) SetDeadline(time.Time) error      { panic("not used") }
func (s *socket) SetWriteDeadline(time.Time) error { return nil }
func (s *socket) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (s *socket) RemoteAddr() net.Addr             { return &net.TCPAddr{} }

// tryRead reads without waiting, as tryReader's function does.
func (s *socket) tryRead(p []byte) (int, error, bool) {
	s.mu.Lock()
	empty := len(s.in) == 0 && s.err == nil && !s.closed
	s.mu.Unlock()
	if empty {
		return 0, nil, true
	}
	n, err := s.Read(p)
	return n, err, false
}

// withPacedConn runs f in fake time with a new connection. The longest pause is testInterval.
func withPacedConn(t *testing.T, f func(t *testing.T, s *socket, c *pacedConn)) {
	synctest.Test(t, func(t *testing.T) {
		s := newSocket()
		c := newPacedConn(s, 0, &readTap{})
		c.tryRead, c.longest = s.tryRead, testInterval
		f(t, s, c)
	})
}

// setAge sets the age of the events that were read last.
func (c *pacedConn) setAge(d time.Duration) { c.tap.age.Store(int64(d)) }

// onDrained sets the function that is called before a wait.
func (c *pacedConn) onDrained(f func()) { c.tap.drained.Store(&f) }

// backlog is an age at which the pauses are testInterval.
const backlog = ageShare * testInterval
