package faultproxy

import (
	"errors"
	"net"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"
)

func TestBlackHole(t *testing.T) {
	s := newServer(t)
	p := start(t, s)
	client, server := connectBoth(t, p, s)
	other, otherServer := connectBoth(t, p, s)
	must(t, p.Set(BlackHole()))
	send(t, client, "lost")
	send(t, server, "lost")
	eventually(t, "the bytes to be swallowed", func() bool { return countLost(p) == 2 })
	if n := p.Intact(); n != 1 { // the other one
		t.Fatalf("%d connections are intact, want 1", n)
	}
	during := dial(t, p)
	send(t, during, "lost")
	expectNothing(t, client, server, during)
	if s.next(quiet) != nil {
		t.Fatal("a connection got through")
	}
	must(t, p.Set(Faults{}))
	// A connection that has lost bytes never recovers.
	send(t, client, "more")
	send(t, server, "more")
	send(t, during, "more")
	expectNothing(t, client, server, during)
	// An intact connection continues, and new ones work.
	send(t, other, "well")
	expect(t, otherServer, "well")
	client, server = connectBoth(t, p, s)
	send(t, server, "well")
	expect(t, client, "well")
}

// countLost counts the directions of open connections that have swallowed something.
func countLost(p *Proxy) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.pairs {
		n += int(c.swallowing.Load())
	}
	return n
}

// An end sent into a black hole is lost too: the other side never receives it.
func TestEndInABlackHole(t *testing.T) {
	s := newServer(t)
	p := start(t, s)
	client, server := connectBoth(t, p, s)
	must(t, p.Set(BlackHole()))
	send(t, server, "lost")
	eventually(t, "the bytes to be swallowed", func() bool { return countLost(p) == 1 })
	if n := p.Intact(); n != 1 {
		t.Errorf("%d connections are intact, want 1: nothing was lost on the way to the server", n)
	}
	must(t, client.Close())
	eventually(t, "the end to be swallowed", func() bool { return p.Intact() == 0 })
	must(t, p.Set(Faults{}))
	expectNothing(t, server)
}

func TestOneWay(t *testing.T) {
	s := newServer(t)
	p := start(t, s)
	for _, up := range []bool{true, false} {
		must(t, p.Set(Faults{}))
		client, server := connectBoth(t, p, s)
		from, to := server, client
		f := Faults{Down: Way{Drop: true}}
		if up {
			from, to, f = client, server, Faults{Up: Way{Drop: true}}
		}
		must(t, p.Set(f))
		send(t, from, "lost")
		expectNothing(t, to)
		send(t, to, "well")
		expect(t, from, "well")
	}
}

func TestHalfOpen(t *testing.T) {
	s := newServer(t)
	p := start(t, s)
	client, server := connectBoth(t, p, s)
	must(t, p.Set(BlackHole()))
	must(t, client.Close())
	eventually(t, "the end to be swallowed", func() bool { return countLost(p) == 1 })
	must(t, p.Set(Faults{}))
	// The server does not find out, not even by writing to a client that is gone.
	for range 3 {
		send(t, server, "are you there?")
		expectNothing(t, server)
	}
	if n := p.Connections(); n != 1 {
		t.Errorf("%d connections", n)
	}
	must(t, server.Close())
	eventually(t, "the connection to be gone", func() bool { return p.Connections() == 0 })

	client, server = connectBoth(t, p, s)
	must(t, p.Set(BlackHole()))
	must(t, server.SetLinger(0))
	must(t, server.Close())
	eventually(t, "the end to be swallowed", func() bool { return countLost(p) == 1 })
	expectNothing(t, client)
	if n := p.CutAll(true); n != 1 {
		t.Errorf("%d connections were cut", n)
	}
	expectEnd(t, client, true)
}

func TestHold(t *testing.T) {
	s := newServer(t)
	p := start(t, s)
	client, server := connectBoth(t, p, s)
	must(t, p.Set(Faults{Up: Way{Hold: true}, Down: Way{Hold: true}}))
	send(t, client, "up")
	send(t, server, "down")
	during := dial(t, p)
	send(t, during, "hello")
	expectNothing(t, client, server)
	if s.next(quiet) != nil {
		t.Fatal("a connection got through")
	}
	must(t, p.Set(Faults{}))
	expect(t, client, "down")
	expect(t, server, "up")
	late := s.next(patience)
	if late == nil {
		t.Fatal("a connection did not get through afterwards")
	}
	expect(t, late, "hello")
}

func TestRefuse(t *testing.T) {
	s := newServer(t)
	p := start(t, s)
	client, server := connectBoth(t, p, s)
	for range 3 {
		must(t, p.Set(Faults{Refuse: true}))
		if _, err := net.Dial("tcp4", p.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("connecting ended with %v", err)
		}
		send(t, client, "well")
		expect(t, server, "well")
		must(t, p.Set(Faults{}))
		connectBoth(t, p, s)
	}
}

func TestSilent(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux leaves a SYN unanswered when the queue is full")
	}
	s := newServer(t)
	p := start(t, s)
	client, server := connectBoth(t, p, s)
	for range 3 {
		must(t, p.Set(Faults{Silent: true}))
		for range 3 {
			_, err := net.DialTimeout("tcp4", p.Addr(), 30*time.Millisecond)
			var e net.Error
			if !errors.As(err, &e) || !e.Timeout() {
				t.Fatalf("connecting ended with %v", err)
			}
		}
		send(t, client, "well")
		expect(t, server, "well")
		must(t, p.Set(Faults{Refuse: true, Silent: true}))
		must(t, p.Set(Faults{Silent: true}))
		must(t, p.Set(Faults{}))
		connectBoth(t, p, s)
	}
	if n := p.Accepted(); n != 4 {
		t.Errorf("%d connections were accepted, want 4", n)
	}
}

func TestTarget(t *testing.T) {
	a, b := newServer(t), newServer(t)
	p := start(t, a)
	client, server := connectBoth(t, p, a)
	p.Target(b.l.Addr().String())
	send(t, client, "well")
	expect(t, server, "well")
	connectBoth(t, p, b)
	if n := p.CutAll(false); n != 2 {
		t.Errorf("%d connections were cut", n)
	}
	expectEnd(t, client, false)
	expectEnd(t, server, false)
	must(t, b.l.Close())
	if c, err := net.Dial("tcp4", p.Addr()); err == nil { // the proxy is closed
		expectEnd(t, c, true)
		c.Close()
	}
	p.Target(a.l.Addr().String())
	connectBoth(t, p, a)
}

func TestIdle(t *testing.T) {
	s := newServer(t)
	p := start(t, s)
	const idle = 2 * time.Second // far longer than a busy machine delays a tick
	must(t, p.Set(Faults{Idle: idle}))
	client, server := connectBoth(t, p, s)
	for range 6 {
		time.Sleep(idle / 4)
		send(t, server, "tick")
		expect(t, client, "tick")
	}
	begin := time.Now()
	expectEnd(t, client, false)
	expectEnd(t, server, false)
	if took := time.Since(begin); took < idle/2 {
		t.Errorf("it was closed after %v", took)
	}
}

// Close leaves nothing behind, in any state of the connections.
func TestCloseLeavesNothing(t *testing.T) {
	s := newServer(t)
	open := descriptors(t)
	all := []Faults{
		{},
		BlackHole(),
		{Up: Way{Hold: true}},
		{Down: Way{Latency: time.Hour}},
		{Down: Way{BytesPerSecond: 1}},
		{Refuse: true},
		{Silent: true},
		{Up: Way{Drop: true}},
		{Idle: time.Hour},
	}
	for _, f := range all {
		p, err := Start(s.l.Addr().String())
		must(t, err)
		client, server := connectBoth(t, p, s)
		must(t, p.Set(f))
		clients := []net.Conn{client, server}
		for range 3 {
			if c, err := net.DialTimeout("tcp4", p.Addr(), 30*time.Millisecond); err == nil {
				_, _ = c.Write(noise(1000))
				clients = append(clients, c)
			}
		}
		_ = client.SetWriteDeadline(time.Now().Add(quiet / 3))
		_ = server.SetWriteDeadline(time.Now().Add(quiet / 3))
		_, _ = client.Write(noise(8 << 20)) // the server does not read
		_, _ = server.Write(noise(8 << 20))
		must(t, p.Close())
		must(t, p.Close())
		if err := p.Set(Faults{}); err == nil {
			t.Error("faults could be set afterwards")
		}
		if n := p.Connections(); n != 0 {
			t.Errorf("%+v: %d connections", f, n)
		}
		for _, c := range clients {
			c.Close()
		}
	}
	for c := s.next(quiet); c != nil; c = s.next(quiet) {
		c.Close()
	}
	open += len(all) // the mark of each proxy's port (child.FreePort)
	if now := descriptors(t); now != open {
		t.Errorf("%d descriptors are open, want %d", now, open)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("counts descriptors in /proc, which only Linux has")
	}
	all, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(all)
}
