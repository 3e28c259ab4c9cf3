package replication

import (
	"bytes"
	"math/rand/v2"
	"net"
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

// Without a backlog the first bytes after a quiet time are read at once, and so are those that follow within
// followTime. Bytes that are dense wait until shortPause is over.
func TestPacedFollowsTheStream(t *testing.T) {
	const us, ms, pause = time.Microsecond, time.Millisecond, shortPause
	for _, test := range []struct {
		name  string
		at    []time.Duration
		got   []time.Duration
		reads int
	}{
		{"lone messages do not wait", []time.Duration{5 * ms, 20 * ms, 40 * ms}, []time.Duration{5 * ms, 20 * ms, 40 * ms}, 3},
		{
			"messages that are shortPause apart do not wait",
			[]time.Duration{20 * ms, 20*ms + pause, 20*ms + 2*pause},
			[]time.Duration{20 * ms, 20*ms + pause, 20*ms + 2*pause},
			3,
		},
		{
			"the messages of a lone transaction do not wait for each other",
			[]time.Duration{20 * ms, 20*ms + 40*us, 20*ms + 80*us, 20*ms + followTime - us},
			[]time.Duration{20 * ms, 20*ms + 40*us, 20*ms + 80*us, 20*ms + followTime - us},
			4,
		},
		{
			"later messages wait until the pause is over",
			[]time.Duration{20 * ms, 20*ms + 200*us, 20*ms + 400*us, 20*ms + 600*us, 20*ms + 300*us + pause, 20*ms + 500*us + pause},
			[]time.Duration{20 * ms, 20*ms + 200*us, 20*ms + 400*us, 20*ms + 400*us + pause, 20*ms + 400*us + pause, 20*ms + 400*us + 2*pause},
			5,
		},
		{
			"after a pause without bytes a read waits, and another pause follows unless it waited for shortPause",
			[]time.Duration{20 * ms, 20*ms + 400*us, 21*ms + 400*us + pause, 21*ms + 450*us + pause, 50 * ms, 50*ms + 50*us},
			[]time.Duration{20 * ms, 20*ms + 400*us, 21*ms + 400*us + pause, 21*ms + 400*us + 2*pause, 50 * ms, 50*ms + 50*us},
			6,
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

// A pause is a tenth of the age of the events, and not longer than the configured one.
func TestPacedPauseFollowsAge(t *testing.T) {
	const ms = time.Millisecond
	for age, want := range map[time.Duration]time.Duration{
		-time.Hour: shortPause, 0: shortPause, ageShare*shortPause - 1: shortPause, 20 * ms: 2 * ms, 49 * ms: 4900 * time.Microsecond, 50 * ms: 5 * ms, time.Hour: 5 * ms,
	} {
		withPacedConn(t, func(t *testing.T, s *socket, c *pacedConn) {
			time.Sleep(time.Second)
			c.setAge(age)
			startPause(s, c)
			start := time.Now()
			if _, err := c.Read(make([]byte, 1)); err != nil || time.Since(start) != want {
				t.Errorf("age %s: %v, a pause of %s, want %s", age, err, time.Since(start), want)
			}
		})
	}
}

// Pauses of 0 mean that every read waits for its bytes, at any age.
func TestPacedWithoutPauses(t *testing.T) {
	withPacedConn(t, func(t *testing.T, s *socket, c *pacedConn) {
		c.longest = 0
		c.setAge(time.Hour)
		var at []time.Duration
		for d := time.Millisecond; d < 100*time.Millisecond; d += 50 * time.Microsecond {
			at = append(at, d)
		}
		for _, a := range deliver(s, c, at) {
			if a.received != a.arrived {
				t.Fatalf("came at %s, got at %s", a.arrived, a.received)
			}
		}
	})
}

// A connection without a socket has no pauses, because a read after a pause would wait.
func TestPacedWithoutSocket(t *testing.T) {
	client, server := net.Pipe()
	defer client.Close()
	defer server.Close()
	tap := &readTap{}
	c := newPacedConn(client, time.Hour, tap)
	c.setAge(time.Hour * 1000)
	for range 3 {
		go func() { _, _ = server.Write([]byte("x")) }()
		if n, err := c.Read(make([]byte, 1)); n != 1 || err != nil || !tap.received.Swap(false) {
			t.Fatal(n, err, "or the stream does not know that bytes have arrived")
		}
	}
}

// For random arrivals: a byte waits only if the socket was read less than one pause before, and waits for less than a
// pause.
func TestPacedRandom(t *testing.T) {
	for seed := range uint64(200) {
		withPacedConn(t, func(t *testing.T, s *socket, c *pacedConn) {
			rnd := rand.New(rand.NewPCG(seed, 0))
			pause := shortPause
			if seed%2 == 1 {
				c.setAge(backlog)
				pause = testInterval
			}
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
				before := slices.IndexFunc(s.reads, func(r time.Time) bool { return r.Sub(start) <= a.arrived && r.Sub(start) > a.arrived-pause })
				if before < 0 || a.received-a.arrived > pause {
					t.Fatalf("seed %d: byte %d came at %s, was got at %s, reads %v", seed, i, a.arrived, a.received, s.reads)
				}
			}
		})
	}
}

// Under a steady load there is one read per pause, and no byte waits for longer.
func TestPacedUnderLoad(t *testing.T) {
	for age, pause := range map[time.Duration]time.Duration{0: shortPause, backlog: testInterval} {
		withPacedConn(t, func(t *testing.T, s *socket, c *pacedConn) {
			c.setAge(age)
			var at []time.Duration
			for d := time.Duration(0); d < time.Second; d += 100 * time.Microsecond {
				at = append(at, time.Second+d)
			}
			for _, a := range deliver(s, c, at) {
				if a.received-a.arrived > pause {
					t.Fatalf("came at %s, got at %s", a.arrived, a.received)
				}
			}
			if n, want := len(s.reads), int(time.Second/pause); n < want || n > want+5 {
				t.Errorf("%d reads in a second of load, want %d", n, want)
			}
		})
	}
}

// There is no pause after a full read, for any size of the caller's buffer.
func TestPacedFullReadsFollowAtOnce(t *testing.T) {
	for _, take := range []int{8 << 10, maxRead - 1, maxRead, 4 << 20} {
		withPacedConn(t, func(t *testing.T, s *socket, c *pacedConn) {
			want := make([]byte, 3*maxRead+fullRead)
			_, _ = rand.NewChaCha8([32]byte{}).Read(want)
			s.arrive(want)
			c.setAge(backlog)
			start := time.Now()
			got := make([]byte, len(want))
			for n := 0; n < len(got); {
				m, err := c.Read(got[n:min(n+take, len(got))])
				must(t, err)
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
		c.setAge(backlog)
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

// drained is called before a wait and before a pause, when all bytes that were read have been returned, and every
// maxRead bytes during a backlog.
func TestPacedDrained(t *testing.T) {
	withPacedConn(t, func(t *testing.T, s *socket, c *pacedConn) {
		handed, calls := 0, []int(nil)
		c.onDrained(func() { calls = append(calls, handed) })
		time.AfterFunc(time.Second, func() { s.arrive(make([]byte, 100)) })
		time.AfterFunc(2*time.Second, func() { s.arrive(make([]byte, 30)) })
		for handed < 130 {
			n, err := c.Read(make([]byte, 10))
			must(t, err)
			handed += n
		}
		if !slices.Equal(calls, []int{100}) {
			t.Errorf("called after so many bytes were returned: %v", calls)
		}
	})
	withPacedConn(t, func(t *testing.T, s *socket, c *pacedConn) {
		c.setAge(backlog)
		startPause(s, c)
		start, calls := time.Now(), []time.Duration(nil)
		c.onDrained(func() { calls = append(calls, time.Since(start)) })
		if _, err := c.Read(make([]byte, 1)); err != nil || time.Since(start) != testInterval {
			t.Fatal(err, time.Since(start))
		}
		if !slices.Equal(calls, []time.Duration{0}) {
			t.Errorf("a pause: called %v after its begin", calls)
		}
	})
	withPacedConn(t, func(t *testing.T, s *socket, c *pacedConn) {
		handed, calls := 0, []int(nil)
		c.onDrained(func() { calls = append(calls, handed) })
		c.tryRead = func(p []byte) (int, error, bool) { n, err := s.Read(p[:min(len(p), 2*fullRead)]); return n, err, false }
		s.arrive(make([]byte, 2*maxRead))
		for handed < 2*maxRead {
			n, err := c.Read(make([]byte, maxRead-1))
			must(t, err)
			handed += n
		}
		if !slices.Equal(calls, []int{maxRead}) {
			t.Errorf("a backlog: called after so many bytes were returned: %v", calls)
		}
	})
}
