package replication

import (
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"
)

// startPause prepares a connection that pauses at its next read, with one byte available in the socket.
func startPause(s *socket, c *pacedConn) {
	s.arrive(make([]byte, 10))
	_, _ = c.Read(make([]byte, 10)) // does not wait, so these bytes are not the first ones after a quiet time
	s.arrive([]byte{42})
}

func isDeadline(err error) bool {
	var ne interface {
		net.Error
		Temporary() bool // crypto/tls gives a connection up for any other timeout
	}
	return errors.Is(err, os.ErrDeadlineExceeded) && errors.As(err, &ne) && ne.Timeout() && ne.Temporary() && isTimeout(err)
}

func TestPacedDeadlineEndsPause(t *testing.T) {
	const ms = time.Millisecond
	for _, test := range []struct {
		name string
		set  func(c *pacedConn)
		want time.Duration
	}{
		{"set before", func(c *pacedConn) { _ = c.SetReadDeadline(time.Now().Add(2 * ms)) }, 2 * ms},
		{"set for all before", func(c *pacedConn) { _ = c.SetDeadline(time.Now().Add(3 * ms)) }, 3 * ms},
		{"in the past", func(c *pacedConn) { _ = c.SetReadDeadline(time.Unix(1, 0)) }, 0},
		{"moved into the past during the pause", func(c *pacedConn) {
			time.AfterFunc(ms, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
		}, ms},
		{"moved nearer during the pause", func(c *pacedConn) {
			_ = c.SetReadDeadline(time.Now().Add(time.Second))
			time.AfterFunc(ms, func() { _ = c.SetReadDeadline(time.Now().Add(ms)) })
		}, 2 * ms},
	} {
		t.Run(test.name, func(t *testing.T) {
			withPacedConn(t, func(t *testing.T, s *socket, c *pacedConn) {
				c.setAge(backlog)
				startPause(s, c)
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

// Like a socket, a pacedConn returns no buffered bytes after the deadline, and does not lose them: the session sends
// status updates between two reads.
func TestPacedDeadlineWithBytesBuffered(t *testing.T) {
	withPacedConn(t, func(t *testing.T, s *socket, c *pacedConn) {
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

// A deadline ends a read that waits. The first bytes after it are read at once.
func TestPacedDeadlineEndsWait(t *testing.T) {
	for _, again := range []time.Duration{0, followTime / 2, testInterval} {
		withPacedConn(t, func(t *testing.T, s *socket, c *pacedConn) {
			p := make([]byte, 10)
			time.AfterFunc(time.Millisecond, func() { s.arrive([]byte{1}) })
			start := time.Now()
			_ = c.SetReadDeadline(start.Add(time.Second))
			if n, err := c.Read(p); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			if again > 0 { // the relay sets the deadline before each read
				time.AfterFunc(again, func() { _ = c.SetReadDeadline(start.Add(2 * time.Second)) })
			}
			n, err := c.Read(p)
			if want := time.Second * time.Duration(1+min(again, 1)); n != 0 || !isDeadline(err) || time.Since(start) != want {
				t.Errorf("again after %s: %d bytes, %v after %s", again, n, err, time.Since(start))
			}
			_ = c.SetReadDeadline(time.Time{})
			at := time.Now()
			time.AfterFunc(time.Millisecond, func() { s.arrive([]byte{1}) })
			if _, err := c.Read(p); err != nil || time.Since(at) != time.Millisecond {
				t.Errorf("again after %s: after the timeout %v, %s", again, err, time.Since(at))
			}
		})
	}
}

// The low watermark is quietBytes except while a read waits, which otherwise could wait for ever.
func TestPacedLowWatermark(t *testing.T) {
	withPacedConn(t, func(t *testing.T, s *socket, c *pacedConn) {
		var mu sync.Mutex
		var marks []int
		c.setLowat = func(n int) {
			mu.Lock()
			defer mu.Unlock()
			marks = append(marks, n)
		}
		check := func(during string, want ...int) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(marks, want) {
				t.Errorf("%s: marks %v, want %v", during, marks, want)
			}
			marks = nil
		}
		c.setAge(backlog)
		startPause(s, c)
		check("a read of available bytes")
		_, _ = c.Read(make([]byte, 10))
		check("a pause and a read", quietBytes)
		s.arrive([]byte{1})
		_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
		_, _ = c.Read(make([]byte, 10))
		check("a pause that the deadline ends")
		_ = c.SetReadDeadline(time.Time{})
		_, _ = c.Read(make([]byte, 10))
		check("bytes that arrived during the pause")
		time.AfterFunc(time.Second, func() { check("waiting", 1); s.arrive([]byte{1}) })
		_, _ = c.Read(make([]byte, 10))
		check("the first bytes after quiet")
	})
}

func TestPacedReadersTakeTurns(t *testing.T) {
	withPacedConn(t, func(t *testing.T, s *socket, c *pacedConn) {
		const readers, each = 8, 20_000
		s.arrive(make([]byte, readers*each))
		var wg sync.WaitGroup
		for range readers {
			wg.Go(func() {
				for p, left := make([]byte, 7), each; left > 0; {
					n, err := c.Read(p[:min(len(p), left)])
					if err != nil {
						panic(err)
					}
					left -= n
				}
			})
		}
		wg.Wait()
		if c.r != c.w || len(s.in) != 0 {
			t.Errorf("%d and %d bytes left over", c.w-c.r, len(s.in))
		}
	})
}

func TestPacedCloseEndsPause(t *testing.T) {
	withPacedConn(t, func(t *testing.T, s *socket, c *pacedConn) {
		c.setAge(backlog)
		startPause(s, c)
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

// The bytes after a request may be its answer.
func TestPacedWriteEndsPause(t *testing.T) {
	withPacedConn(t, func(t *testing.T, s *socket, c *pacedConn) {
		c.setAge(backlog)
		for _, after := range []time.Duration{0, time.Millisecond} {
			startPause(s, c)
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

func TestPacedErrors(t *testing.T) {
	broken := errors.New("broken")
	for _, together := range []bool{false, true} {
		for _, take := range []int{1, 10, maxRead} {
			withPacedConn(t, func(t *testing.T, s *socket, c *pacedConn) {
				s.err, s.together = broken, together
				s.arrive([]byte("abc"))
				var got []byte
				var err error
				for p := make([]byte, take); err == nil; {
					var n int
					n, err = c.Read(p)
					got = append(got, p[:n]...)
				}
				if string(got) != "abc" || !errors.Is(err, broken) {
					t.Errorf("%v, %d at a time: %q, %v", together, take, got, err)
				}
			})
		}
	}
}
