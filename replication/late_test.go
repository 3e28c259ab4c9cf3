package replication

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const testInterval = 5 * time.Millisecond

// socket is a connection with a buffer, as the kernel's are and net.Pipe's are not. It notes when it was read.
type socket struct {
	mu       sync.Mutex
	cond     *sync.Cond
	in       []byte
	err      error // once in is empty, or together with its last bytes
	together bool
	deadline time.Time
	closed   bool
	reads    []time.Time // when they returned with something
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
			if s.together && len(s.in) == 0 {
				return n, s.err
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

// late runs f in fake time with a socket that nothing was read from for long.
func late(t *testing.T, f func(t *testing.T, s *socket, c *lateConn)) {
	synctest.Test(t, func(t *testing.T) {
		s := newSocket()
		f(t, s, newLateConn(s, testInterval))
	})
}

// arrival is one byte and when it comes.
type arrival struct{ at, got time.Duration }

// deliver lets bytes arrive at their times and notes when a reader that is never busy gets them.
func deliver(s *socket, c *lateConn, at []time.Duration) []arrival {
	start := time.Now()
	go func() {
		for i, d := range at {
			time.Sleep(time.Until(start.Add(d)))
			s.arrive([]byte{byte(i)})
		}
	}()
	var out []arrival
	p := make([]byte, 1<<10)
	for len(out) < len(at) {
		n, err := c.Read(p)
		if err != nil {
			panic(err)
		}
		for range n {
			out = append(out, arrival{at[len(out)], time.Since(start)})
		}
	}
	return out
}

func TestLateLeadingEdge(t *testing.T) {
	const us, ms = time.Microsecond, time.Millisecond
	for _, test := range []struct {
		name  string
		at    []time.Duration
		got   []time.Duration
		reads int
	}{
		{"lone messages are read at once", []time.Duration{ms, 20 * ms, 40 * ms}, []time.Duration{ms, 20 * ms, 40 * ms}, 3},
		{"one interval apart is lone", []time.Duration{ms, 7 * ms, 13 * ms}, []time.Duration{ms, 7 * ms, 13 * ms}, 3},
		{
			"the messages of a lone transaction do not wait for each other",
			[]time.Duration{20 * ms, 20*ms + 40*us, 20*ms + 80*us, 20*ms + 299*us},
			[]time.Duration{20 * ms, 20*ms + 40*us, 20*ms + 80*us, 20*ms + 299*us}, 4,
		},
		{
			"what follows piles up until the interval is over",
			[]time.Duration{20 * ms, 21 * ms, 22 * ms, 24 * ms, 27 * ms, 29 * ms, 31 * ms},
			[]time.Duration{20 * ms, 25 * ms, 25 * ms, 25 * ms, 30 * ms, 30 * ms, 35 * ms}, 4,
		},
		{
			"the pause is over with the interval, read or not",
			[]time.Duration{20 * ms, 26 * ms, 26*ms + 50*us, 28 * ms, 50 * ms},
			[]time.Duration{20 * ms, 26 * ms, 26*ms + 50*us, 31 * ms, 50 * ms}, 5,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			late(t, func(t *testing.T, s *socket, c *lateConn) {
				var got []time.Duration
				for _, a := range deliver(s, c, test.at) {
					got = append(got, a.got)
				}
				if !slices.Equal(got, test.got) || len(s.reads) != test.reads {
					t.Errorf("%d reads, got at %v\nwant %d, %v", len(s.reads), got, test.reads, test.got)
				}
			})
		})
	}
}

// The promise itself, for any arrivals: who waits, waits for less than an interval, and the socket was read less than one
// interval before.
func TestLateLeadingEdgeRandom(t *testing.T) {
	for seed := range uint64(200) {
		late(t, func(t *testing.T, s *socket, c *lateConn) {
			rnd := rand.New(rand.NewPCG(seed, 0))
			start, now := time.Now(), time.Duration(0)
			var at []time.Duration
			for range 200 {
				scale := []time.Duration{20 * time.Microsecond, 200 * time.Microsecond, 2 * time.Millisecond, 20 * time.Millisecond}[rnd.IntN(4)]
				now += time.Duration(rnd.Int64N(int64(scale)))
				at = append(at, now)
			}
			for i, a := range deliver(s, c, at) {
				if a.got == a.at {
					continue
				}
				before := slices.IndexFunc(s.reads, func(r time.Time) bool { return r.Sub(start) <= a.at && r.Sub(start) > a.at-testInterval })
				if before < 0 || a.got-a.at > testInterval {
					t.Fatalf("seed %d: byte %d came at %s, was got at %s, reads %v", seed, i, a.at, a.got, s.reads)
				}
			}
		})
	}
}

// Under a steady load there is one read per interval, and nobody is late by more.
func TestLateUnderLoad(t *testing.T) {
	late(t, func(t *testing.T, s *socket, c *lateConn) {
		var at []time.Duration
		for d := time.Duration(0); d < time.Second; d += 100 * time.Microsecond {
			at = append(at, time.Second+d)
		}
		for _, a := range deliver(s, c, at) {
			if a.got-a.at > testInterval {
				t.Fatalf("came at %s, got at %s", a.at, a.got)
			}
		}
		if n := len(s.reads); n < 200 || n > 205 {
			t.Errorf("%d reads in a second of load", n)
		}
	})
}

// While reads are full there is no pause, whatever the caller takes at a time.
func TestLateFullReadsFollowAtOnce(t *testing.T) {
	for _, take := range []int{8 << 10, lateBuffer - 1, lateBuffer, 4 << 20} {
		late(t, func(t *testing.T, s *socket, c *lateConn) {
			want := make([]byte, 3*lateBuffer+fullRead)
			_, _ = rand.NewChaCha8([32]byte{}).Read(want)
			s.arrive(want)
			start := time.Now()
			got := make([]byte, len(want))
			for n := 0; n < len(got); {
				m, err := c.Read(got[n:min(n+take, len(got))])
				if err != nil {
					t.Fatal(err)
				}
				n += m
			}
			if d := time.Since(start); d != 0 || !bytes.Equal(got, want) {
				t.Errorf("%d at a time: took %s", take, d)
			}
			// One byte less than full ends it.
			s.arrive(make([]byte, fullRead-1))
			_, _ = c.Read(make([]byte, lateBuffer))
			s.arrive([]byte{1})
			start = time.Now()
			if _, _ = c.Read(make([]byte, 1)); time.Since(start) != testInterval {
				t.Errorf("%d at a time: the next read after %s", take, time.Since(start))
			}
		})
	}
}

// paused gives a connection that will pause for a whole interval, with a byte waiting in the socket.
func paused(s *socket, c *lateConn) {
	s.arrive(make([]byte, 10))
	_, _ = c.Read(make([]byte, 10)) // they were there: no leading edge
	s.arrive([]byte{42})
}

func isDeadline(err error) bool {
	var ne interface {
		net.Error
		Temporary() bool // crypto/tls gives a connection up for any other timeout
	}
	return errors.Is(err, os.ErrDeadlineExceeded) && errors.As(err, &ne) && ne.Timeout() && ne.Temporary() && isTimeout(err)
}

func TestLateDeadlineEndsPause(t *testing.T) {
	const ms = time.Millisecond
	for _, test := range []struct {
		name string
		set  func(c *lateConn)
		want time.Duration
	}{
		{"set before", func(c *lateConn) { _ = c.SetReadDeadline(time.Now().Add(2 * ms)) }, 2 * ms},
		{"set for all before", func(c *lateConn) { _ = c.SetDeadline(time.Now().Add(3 * ms)) }, 3 * ms},
		{"in the past", func(c *lateConn) { _ = c.SetReadDeadline(time.Unix(1, 0)) }, 0},
		{"moved into the past meanwhile", func(c *lateConn) {
			time.AfterFunc(ms, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
		}, ms},
		{"moved nearer meanwhile", func(c *lateConn) {
			_ = c.SetReadDeadline(time.Now().Add(time.Second))
			time.AfterFunc(ms, func() { _ = c.SetReadDeadline(time.Now().Add(ms)) })
		}, 2 * ms},
	} {
		t.Run(test.name, func(t *testing.T) {
			late(t, func(t *testing.T, s *socket, c *lateConn) {
				paused(s, c)
				start := time.Now()
				test.set(c)
				p := make([]byte, 10)
				n, err := c.Read(p)
				if d := time.Since(start); n != 0 || !isDeadline(err) || d != test.want {
					t.Fatalf("%d bytes, %v after %s, want a timeout after %s", n, err, d, test.want)
				}
				_ = c.SetReadDeadline(time.Time{})
				if n, err := c.Read(p); n != 1 || err != nil || p[0] != 42 || time.Since(start) != testInterval {
					t.Errorf("then %d bytes, %v, after %s", n, err, time.Since(start))
				}
			})
		})
	}
}

// As with a socket, what is buffered is not handed out when the deadline has passed, and not lost: the session looks
// after its status updates between two reads.
func TestLateDeadlineWithBytesBuffered(t *testing.T) {
	late(t, func(t *testing.T, s *socket, c *lateConn) {
		s.arrive([]byte("abc"))
		p := make([]byte, 1)
		_, _ = c.Read(p)
		_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
		if n, err := c.Read(p); n != 1 || err != nil || p[0] != 'b' {
			t.Fatalf("before the deadline: %d %v", n, err)
		}
		time.Sleep(time.Millisecond)
		if n, err := c.Read(p); n != 0 || !isDeadline(err) {
			t.Fatalf("after it: %d %v", n, err)
		}
		_ = c.SetReadDeadline(time.Time{})
		if n, err := c.Read(p); n != 1 || err != nil || p[0] != 'c' {
			t.Fatalf("without one: %d %v", n, err)
		}
	})
}

// The end of the window after a leading edge is ours: the deadline is still where our user set it.
func TestLateWindowKeepsDeadline(t *testing.T) {
	for _, again := range []time.Duration{0, edgeWindow / 2, testInterval} {
		late(t, func(t *testing.T, s *socket, c *lateConn) {
			p := make([]byte, 10)
			time.AfterFunc(time.Millisecond, func() { s.arrive([]byte{1}) })
			start := time.Now()
			_ = c.SetReadDeadline(start.Add(time.Second))
			if n, err := c.Read(p); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			if again > 0 { // the relay sets it anew each turn
				time.AfterFunc(again, func() { _ = c.SetReadDeadline(start.Add(2 * time.Second)) })
			}
			n, err := c.Read(p)
			if want := time.Second * time.Duration(1+min(again, 1)); n != 0 || !isDeadline(err) || time.Since(start) != want {
				t.Errorf("again after %s: %d bytes, %v after %s", again, n, err, time.Since(start))
			}
			// A timeout is no read that brought something.
			_ = c.SetReadDeadline(time.Time{})
			at := time.Now()
			time.AfterFunc(time.Millisecond, func() { s.arrive([]byte{1}) })
			if _, err := c.Read(p); err != nil || time.Since(at) != time.Millisecond {
				t.Errorf("again after %s: after the timeout %v, %s", again, err, time.Since(at))
			}
		})
	}
}

func TestLateCloseEndsPause(t *testing.T) {
	late(t, func(t *testing.T, s *socket, c *lateConn) {
		paused(s, c)
		start := time.Now()
		time.AfterFunc(time.Millisecond, func() { _ = c.Close() })
		n, err := c.Read(make([]byte, 10))
		if n != 0 || !errors.Is(err, net.ErrClosed) || isTimeout(err) || time.Since(start) != time.Millisecond {
			t.Errorf("%d bytes, %v after %s", n, err, time.Since(start))
		}
		if _, err := c.Read(make([]byte, 10)); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
}

// What comes after a request is its answer.
func TestLateWriteEndsPause(t *testing.T) {
	late(t, func(t *testing.T, s *socket, c *lateConn) {
		for _, after := range []time.Duration{0, time.Millisecond} {
			paused(s, c)
			start := time.Now()
			time.AfterFunc(after, func() { _, _ = c.Write([]byte("Q")) })
			if _, err := c.Read(make([]byte, 10)); err != nil || time.Since(start) != after {
				t.Errorf("%v after %s, want %s", err, time.Since(start), after)
			}
		}
		if string(s.written) != "QQ" {
			t.Errorf("written %q", s.written)
		}
	})
}

func TestLateErrors(t *testing.T) {
	broken := errors.New("broken")
	for _, together := range []bool{false, true} {
		for _, take := range []int{1, 10, lateBuffer} {
			late(t, func(t *testing.T, s *socket, c *lateConn) {
				s.err, s.together = broken, together
				s.arrive([]byte("abc"))
				var got []byte
				var err error
				for p := make([]byte, take); err == nil; {
					var n int
					n, err = c.Read(p)
					got = append(got, p[:n]...)
				}
				if string(got) != "abc" || err != broken {
					t.Errorf("%v, %d at a time: %q, %v", together, take, got, err)
				}
			})
		}
	}
}
