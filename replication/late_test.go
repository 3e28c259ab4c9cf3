package replication

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

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
			[]time.Duration{20 * ms, 20*ms + 40*us, 20*ms + 80*us, 20*ms + 299*us},
			4,
		},
		{
			"what follows piles up until the interval is over",
			[]time.Duration{20 * ms, 21 * ms, 22 * ms, 24 * ms, 27 * ms, 29 * ms, 31 * ms},
			[]time.Duration{20 * ms, 25 * ms, 25 * ms, 25 * ms, 30 * ms, 30 * ms, 35 * ms},
			4,
		},
		{
			"the pause is over with the interval, read or not",
			[]time.Duration{20 * ms, 26 * ms, 26*ms + 50*us, 28 * ms, 50 * ms},
			[]time.Duration{20 * ms, 26 * ms, 26*ms + 50*us, 31 * ms, 50 * ms},
			5,
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

// After a full read the next one only takes what is there: with nothing there the pause begins, and is one interval long.
func TestLateFullReadDoesNotWait(t *testing.T) {
	late(t, func(t *testing.T, s *socket, c *lateConn) {
		takeWhatIsThere(s, c)
		s.arrive(make([]byte, fullRead))
		if n, err := c.Read(make([]byte, lateBuffer)); n != fullRead || err != nil {
			t.Fatal(n, err)
		}
		start := time.Now()
		time.AfterFunc(time.Millisecond, func() { s.arrive([]byte("x")) })
		if _, err := c.Read(make([]byte, 10)); err != nil || time.Since(start) != testInterval {
			t.Errorf("%v after %s, want %s", err, time.Since(start), testInterval)
		}
		// What is there is taken at once.
		s.arrive(make([]byte, fullRead))
		time.Sleep(testInterval)
		_, _ = c.Read(make([]byte, lateBuffer))
		s.arrive([]byte("y"))
		start = time.Now()
		if _, err := c.Read(make([]byte, 10)); err != nil || time.Since(start) != 0 {
			t.Errorf("%v after %s, want at once", err, time.Since(start))
		}
	})
}

// drained is called before the socket is waited for, once all that was read has been handed out; and during a backlog every
// lateBuffer bytes.
func TestLateDrained(t *testing.T) {
	late(t, func(t *testing.T, s *socket, c *lateConn) {
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
			t.Errorf("called when so many bytes had been handed out: %v", calls)
		}
	})
	late(t, func(t *testing.T, s *socket, c *lateConn) {
		handed, calls := 0, []int(nil)
		c.drained = func() { calls = append(calls, handed) }
		c.try = func(p []byte) (int, error, bool) { n, err := s.Read(p[:min(len(p), 2*fullRead)]); return n, err, false }
		s.arrive(make([]byte, 2*lateBuffer))
		for handed < 2*lateBuffer {
			n, err := c.Read(make([]byte, lateBuffer-1))
			if err != nil {
				t.Fatal(err)
			}
			handed += n
		}
		if !slices.Equal(calls, []int{lateBuffer}) {
			t.Errorf("a backlog: called when so many bytes had been handed out: %v", calls)
		}
	})
}

// While the server is ahead, every second pause goes without a call, and none otherwise: what was read waits for one
// interval at most.
func TestLateAhead(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name   string
		arrive []int           // so many bytes at 1 ms, and then in the middle of each pause
		calls  []time.Duration // the socket is read at 1 ms, 6 ms, 11 ms, ...
	}{
		{"full reads, not ahead", []int{aheadBytes - 1, aheadBytes - 1, aheadBytes - 1, aheadBytes - 1}, []time.Duration{1 * ms, 6 * ms, 11 * ms, 16 * ms}},
		{"ahead", []int{aheadBytes, aheadBytes, aheadBytes, aheadBytes}, []time.Duration{6 * ms, 16 * ms}},
		{"ahead, and then quiet", []int{aheadBytes, aheadBytes, aheadBytes}, []time.Duration{6 * ms, 16 * ms}},
		{"ahead, and then little", []int{aheadBytes, 100, 100}, []time.Duration{6 * ms, 11 * ms}},
	} {
		late(t, func(t *testing.T, s *socket, l *lateConn) {
			takeWhatIsThere(s, l)
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
				n, err := l.Read(make([]byte, lateBuffer-1))
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

// takeWhatIsThere lets c read s without waiting, as it can read a TCP connection.
func takeWhatIsThere(s *socket, c *lateConn) {
	c.try = func(p []byte) (int, error, bool) {
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

// Without pauses each read of the socket is preceded by a call.
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
