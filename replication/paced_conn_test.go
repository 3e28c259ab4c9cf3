package replication

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// arrival is when one byte arrived in the socket, and when the reader received it.
type arrival struct{ arrived, received time.Duration }

// deliver lets bytes arrive at given times and records when a reader receives them.
func deliver(s *socket, c *pacedConn, at []time.Duration) []arrival {
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

func TestPacedLeadingEdge(t *testing.T) {
	const us, ms = time.Microsecond, time.Millisecond
	for _, test := range []struct {
		name  string
		at    []time.Duration
		got   []time.Duration
		reads int
	}{
		{"lone messages do not wait", []time.Duration{ms, 20 * ms, 40 * ms}, []time.Duration{ms, 20 * ms, 40 * ms}, 3},
		{"messages more than one interval apart do not wait", []time.Duration{ms, 7 * ms, 13 * ms}, []time.Duration{ms, 7 * ms, 13 * ms}, 3},
		{
			"the messages of a lone transaction do not wait for each other",
			[]time.Duration{20 * ms, 20*ms + 40*us, 20*ms + 80*us, 20*ms + 299*us},
			[]time.Duration{20 * ms, 20*ms + 40*us, 20*ms + 80*us, 20*ms + 299*us},
			4,
		},
		{
			"later messages wait until the interval is over",
			[]time.Duration{20 * ms, 21 * ms, 22 * ms, 24 * ms, 27 * ms, 29 * ms, 31 * ms},
			[]time.Duration{20 * ms, 25 * ms, 25 * ms, 25 * ms, 30 * ms, 30 * ms, 35 * ms},
			4,
		},
		{
			"a pause ends after the interval even without a read",
			[]time.Duration{20 * ms, 26 * ms, 26*ms + 50*us, 28 * ms, 50 * ms},
			[]time.Duration{20 * ms, 26 * ms, 26*ms + 50*us, 31 * ms, 50 * ms},
			5,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			withPacedConn(t, func(t *testing.T, s *socket, c *pacedConn) {
				var got []time.Duration
				for _, a := range deliver(s, c, test.at) {
					got = append(got, a.received)
				}
				if !slices.Equal(got, test.got) || len(s.reads) != test.reads {
					t.Errorf("%d reads, got at %v\nwant %d, %v", len(s.reads), got, test.reads, test.got)
				}
			})
		})
	}
}

// For random arrivals: a byte waits only if the socket was read less than one interval before, and waits for less than an interval.
func TestPacedLeadingEdgeRandom(t *testing.T) {
	for seed := range uint64(200) {
		withPacedConn(t, func(t *testing.T, s *socket, c *pacedConn) {
			rnd := rand.New(rand.NewPCG(seed, 0))
			start, now := time.Now(), time.Duration(0)
			var at []time.Duration
			for range 200 {
				scale := []time.Duration{20 * time.Microsecond, 200 * time.Microsecond, 2 * time.Millisecond, 20 * time.Millisecond}[rnd.IntN(4)]
				now += time.Duration(rnd.Int64N(int64(scale)))
				at = append(at, now)
			}
			for i, a := range deliver(s, c, at) {
				if a.received == a.arrived {
					continue
				}
				before := slices.IndexFunc(s.reads, func(r time.Time) bool { return r.Sub(start) <= a.arrived && r.Sub(start) > a.arrived-testInterval })
				if before < 0 || a.received-a.arrived > testInterval {
					t.Fatalf("seed %d: byte %d came at %s, was got at %s, reads %v", seed, i, a.arrived, a.received, s.reads)
				}
			}
		})
	}
}

// Under a steady load there is one read per interval, and no byte waits for longer.
func TestPacedUnderLoad(t *testing.T) {
	withPacedConn(t, func(t *testing.T, s *socket, c *pacedConn) {
		var at []time.Duration
		for d := time.Duration(0); d < time.Second; d += 100 * time.Microsecond {
			at = append(at, time.Second+d)
		}
		for _, a := range deliver(s, c, at) {
			if a.received-a.arrived > testInterval {
				t.Fatalf("came at %s, got at %s", a.arrived, a.received)
			}
		}
		if n := len(s.reads); n < 200 || n > 205 {
			t.Errorf("%d reads in a second of load", n)
		}
	})
}

// There is no pause after a full read, for any size of the caller's buffer.
func TestPacedFullReadsFollowAtOnce(t *testing.T) {
	for _, take := range []int{8 << 10, maxRead - 1, maxRead, 4 << 20} {
		withPacedConn(t, func(t *testing.T, s *socket, c *pacedConn) {
			want := make([]byte, 3*maxRead+fullRead)
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
			// After a read that is one byte smaller there is a pause.
			s.arrive(make([]byte, fullRead-1))
			_, _ = c.Read(make([]byte, maxRead))
			s.arrive([]byte{1})
			start = time.Now()
			if _, _ = c.Read(make([]byte, 1)); time.Since(start) != testInterval {
				t.Errorf("%d at a time: the next read after %s", take, time.Since(start))
			}
		})
	}
}

// After a full read the next one does not wait. If no bytes are available, a pause of one interval begins.
func TestPacedFullReadDoesNotWait(t *testing.T) {
	withPacedConn(t, func(t *testing.T, s *socket, c *pacedConn) {
		readWithoutWaiting(s, c)
		s.arrive(make([]byte, fullRead))
		if n, err := c.Read(make([]byte, maxRead)); n != fullRead || err != nil {
			t.Fatal(n, err)
		}
		start := time.Now()
		time.AfterFunc(time.Millisecond, func() { s.arrive([]byte("x")) })
		if _, err := c.Read(make([]byte, 10)); err != nil || time.Since(start) != testInterval {
			t.Errorf("%v after %s, want %s", err, time.Since(start), testInterval)
		}
		// Available bytes are read at once.
		s.arrive(make([]byte, fullRead))
		time.Sleep(testInterval)
		_, _ = c.Read(make([]byte, maxRead))
		s.arrive([]byte("y"))
		start = time.Now()
		if _, err := c.Read(make([]byte, 10)); err != nil || time.Since(start) != 0 {
			t.Errorf("%v after %s, want at once", err, time.Since(start))
		}
	})
}

// drained is called before a wait, when all bytes that were read have been returned, and every maxRead bytes during a backlog.
func TestPacedDrained(t *testing.T) {
	withPacedConn(t, func(t *testing.T, s *socket, c *pacedConn) {
		handed, calls := 0, []int(nil)
		c.drained = func() { calls = append(calls, handed) }
		time.AfterFunc(time.Second, func() { s.arrive(make([]byte, 100)) })
		time.AfterFunc(2*time.Second, func() { s.arrive(make([]byte, 30)) })
		for handed < 130 {
			n, err := c.Read(make([]byte, 10))
			if err != nil {
				t.Fatal(err)
			}
			handed += n
		}
		if !slices.Equal(calls, []int{100}) {
			t.Errorf("called after so many bytes were returned: %v", calls)
		}
	})
	withPacedConn(t, func(t *testing.T, s *socket, c *pacedConn) {
		handed, calls := 0, []int(nil)
		c.drained = func() { calls = append(calls, handed) }
		c.tryRead = func(p []byte) (int, error, bool) { n, err := s.Read(p[:min(len(p), 2*fullRead)]); return n, err, false }
		s.arrive(make([]byte, 2*maxRead))
		for handed < 2*maxRead {
			n, err := c.Read(make([]byte, maxRead-1))
			if err != nil {
				t.Fatal(err)
			}
			handed += n
		}
		if !slices.Equal(calls, []int{maxRead}) {
			t.Errorf("a backlog: called after so many bytes were returned: %v", calls)
		}
	})
}

// While the server is ahead, every second pause happens without a call, so bytes that were read wait for one additional interval at
// most.
func TestPacedAhead(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name   string
		arrive []int           // number of bytes that arrive at 1 ms, and then during each pause
		calls  []time.Duration // the socket is read at 1 ms, 6 ms, 11 ms, ...
	}{
		{"full reads, not ahead", []int{aheadBytes - 1, aheadBytes - 1, aheadBytes - 1, aheadBytes - 1}, []time.Duration{1 * ms, 6 * ms, 11 * ms, 16 * ms}},
		{"ahead", []int{aheadBytes, aheadBytes, aheadBytes, aheadBytes}, []time.Duration{6 * ms, 16 * ms}},
		{"ahead, and then quiet", []int{aheadBytes, aheadBytes, aheadBytes}, []time.Duration{6 * ms, 16 * ms}},
		{"ahead, and then little", []int{aheadBytes, 100, 100}, []time.Duration{6 * ms, 11 * ms}},
	} {
		withPacedConn(t, func(t *testing.T, s *socket, l *pacedConn) {
			readWithoutWaiting(s, l)
			start := time.Now()
			var calls []time.Duration
			l.drained = func() { calls = append(calls, time.Since(start)) }
			total := 0
			for i, n := range c.arrive {
				total += n
				time.AfterFunc(max(ms, time.Duration(i)*testInterval-ms), func() { s.arrive(make([]byte, n)) })
			}
			time.AfterFunc(time.Second, func() { s.arrive([]byte{0}) })
			for handed := 0; handed < total+1; {
				n, err := l.Read(make([]byte, maxRead-1))
				if err != nil {
					t.Fatal(err)
				}
				handed += n
			}
			if !slices.Equal(calls, c.calls) {
				t.Errorf("%s: called at %v, want %v", c.name, calls, c.calls)
			}
		})
	}
}

// readWithoutWaiting enables reads of s without waiting, as for a TCP connection.
func readWithoutWaiting(s *socket, c *pacedConn) {
	c.tryRead = func(p []byte) (int, error, bool) {
		s.mu.Lock()
		empty := len(s.in) == 0
		s.mu.Unlock()
		if empty {
			return 0, nil, true
		}
		n, err := s.Read(p)
		return n, err, false
	}
}

// Without pauses, drained is called before each read of the socket.
func TestPromptDrained(t *testing.T) {
	s := newSocket()
	calls := 0
	c := &promptConn{s, func() { calls++ }}
	s.arrive([]byte("ab"))
	for want := 1; want <= 2; want++ {
		if n, err := c.Read(make([]byte, 1)); n != 1 || err != nil || calls != want {
			t.Errorf("%d %v, %d calls, want %d", n, err, calls, want)
		}
	}
}
