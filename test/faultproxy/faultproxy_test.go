package faultproxy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second // a busy machine

// quiet is how long a test listens to be sure that nothing arrives.
const quiet = 60 * time.Millisecond

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// server hands out the connections that reach it.
type server struct {
	t     *testing.T
	l     net.Listener
	conns chan *net.TCPConn
}

func newServer(t *testing.T) *server {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	s := &server{t, l, make(chan *net.TCPConn, 64)}
	var ended sync.WaitGroup
	ended.Go(func() {
		defer close(s.conns)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.conns <- c.(*net.TCPConn)
		}
	})
	t.Cleanup(func() {
		l.Close()
		ended.Wait()
		for c := range s.conns {
			c.Close()
		}
	})
	return s
}

// next returns the next connection that reaches the server; nil if none does within d.
func (s *server) next(d time.Duration) *net.TCPConn {
	select {
	case c := <-s.conns:
		s.t.Cleanup(func() { c.Close() })
		return c
	case <-time.After(d):
		return nil
	}
}

func start(t *testing.T, s *server) *Proxy {
	t.Helper()
	p, err := Start(s.l.Addr().String())
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	return p
}

func dial(t *testing.T, p *Proxy) *net.TCPConn {
	t.Helper()
	c, err := net.DialTimeout("tcp4", p.Addr(), patience)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

// connectBoth returns the two ends of a new connection through the proxy.
func connectBoth(t *testing.T, p *Proxy, s *server) (client, server *net.TCPConn) {
	t.Helper()
	client = dial(t, p)
	if server = s.next(patience); server == nil {
		t.Fatal("it did not reach the server")
	}
	// The server has the connection before the proxy knows: an end sent in between would end the proxy's dialing.
	eventually(t, "the proxy to know its connection", func() bool { return isConnected(p, client) })
	return client, server
}

// isConnected reports whether the proxy has connected this client to the server.
func isConnected(p *Proxy, client *net.TCPConn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.pairs {
		if c.client.RemoteAddr().String() == client.LocalAddr().String() {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.server != nil
		}
	}
	return false
}

func send(t *testing.T, c net.Conn, text string) {
	t.Helper()
	_, err := c.Write([]byte(text))
	must(t, err)
}

func expect(t *testing.T, c net.Conn, text string) {
	t.Helper()
	got := make([]byte, len(text))
	c.SetReadDeadline(time.Now().Add(patience))
	if n, err := io.ReadFull(c, got); err != nil || string(got) != text {
		t.Fatalf("read %q, %v; want %q", got[:n], err, text)
	}
}

func expectNothing(t *testing.T, conns ...net.Conn) {
	t.Helper()
	at := time.Now().Add(quiet)
	for _, c := range conns {
		c.SetReadDeadline(at)
		if n, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("read %d bytes, %v; want nothing", n, err)
		}
	}
}

// expectEnd reads to the end and returns the bytes before it.
func expectEnd(t *testing.T, c net.Conn, reset bool) []byte {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(patience))
	got, err := io.ReadAll(c)
	if was := errors.Is(err, syscall.ECONNRESET); was != reset || !was && err != nil {
		t.Fatalf("it ended with %v; want a reset: %v", err, reset)
	}
	return got
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited for: " + what)
		}
	}
}

func noise(n int) []byte {
	b := make([]byte, n)
	rnd := rand.NewChaCha8([32]byte{1})
	_, _ = rnd.Read(b)
	return b
}

func TestPassesUnchanged(t *testing.T) {
	s := newServer(t)
	p := start(t, s)
	data := noise(3 << 20)
	var all sync.WaitGroup
	for range 4 {
		client, server := connectBoth(t, p, s)
		for _, x := range [][2]*net.TCPConn{{client, server}, {server, client}} {
			all.Go(func() {
				_, _ = x[0].Write(data)
				_ = x[0].CloseWrite()
			})
			all.Go(func() {
				if got := expectEnd(t, x[1], false); !bytes.Equal(got, data) {
					t.Errorf("%d bytes of %d arrived, or different ones", len(got), len(data))
				}
			})
		}
	}
	all.Wait()
	eventually(t, "no connections", func() bool { return p.Connections() == 0 })
	if up, down := p.Passed(); p.Accepted() != 4 || p.Cuts() != 0 || up != int64(4*len(data)) || down != up {
		t.Errorf("%d accepted, %d cut, %d and %d bytes", p.Accepted(), p.Cuts(), up, down)
	}
}

func TestEndsPass(t *testing.T) {
	s := newServer(t)
	p := start(t, s)
	client, server := connectBoth(t, p, s)
	must(t, client.CloseWrite())
	expectEnd(t, server, false)
	send(t, server, "still there") // one direction is still open
	expect(t, client, "still there")
	must(t, server.Close())
	expectEnd(t, client, false)

	client, server = connectBoth(t, p, s)
	must(t, client.SetLinger(0))
	must(t, client.Close())
	expectEnd(t, server, true)
}

func TestLatency(t *testing.T) {
	const late = 40 * time.Millisecond
	s := newServer(t)
	p := start(t, s)
	client, server := connectBoth(t, p, s)
	must(t, p.Set(Faults{Up: Way{Latency: late}, Down: Way{Latency: late}}))
	begin := time.Now()
	send(t, client, "ping")
	expect(t, server, "ping")
	send(t, server, "pong")
	expect(t, client, "pong")
	if took := time.Since(begin); took < 2*late || took > 2*late+patience {
		t.Errorf("a round trip took %v", took)
	}
	// Latency does not reduce throughput.
	data := noise(4 << 20)
	begin = time.Now()
	go func() {
		_, _ = client.Write(data)
		_ = client.CloseWrite()
	}()
	if got := expectEnd(t, server, false); !bytes.Equal(got, data) {
		t.Error("not what was sent")
	}
	if took, oneByOne := time.Since(begin), late*time.Duration(len(data)/chunkSize); took < late || took > oneByOne/2 {
		t.Errorf("%d bytes took %v; chunk after chunk it would be %v", len(data), took, oneByOne)
	}
}

func TestBandwidth(t *testing.T) {
	s := newServer(t)
	p := start(t, s)
	must(t, p.Set(Faults{Down: Way{BytesPerSecond: 1 << 20}}))
	begin := time.Now()
	var all sync.WaitGroup
	for range 2 { // together
		client, server := connectBoth(t, p, s)
		all.Go(func() { _, _ = server.Write(make([]byte, 150<<10)); server.Close() })
		all.Go(func() { expectEnd(t, client, false) })
	}
	all.Wait()
	want := time.Second * 300 / 1024
	if took := time.Since(begin); took < want*9/10 || took > want+patience {
		t.Errorf("it took %v, want %v", took, want)
	}
	// The other direction is unchanged, and so is this one afterwards.
	must(t, p.Set(Faults{}))
	client, server := connectBoth(t, p, s)
	begin = time.Now()
	go func() { _, _ = client.Write(make([]byte, 60<<20)); client.Close() }()
	expectEnd(t, server, false) // a minute if it were narrow
	if took := time.Since(begin); took > patience {
		t.Errorf("it took %v", took)
	}
}

func TestCutAfter(t *testing.T) {
	for _, how := range []Cut{Close, Reset} {
		for _, n := range []int{1, 777, 65536} {
			for _, up := range []bool{true, false} {
				t.Run(fmt.Sprintf("%d bytes, how %d, up %v", n, how, up), func(t *testing.T) { t.Parallel(); cutAfter(t, how, n, up) })
			}
		}
	}
}

func cutAfter(t *testing.T, how Cut, n int, up bool) {
	s := newServer(t)
	p := start(t, s)
	data := noise(100 << 10)
	client, server := connectBoth(t, p, s)
	from, to, f := server, client, Faults{Down: Way{Cut: how, CutAfter: int64(n)}}
	if up {
		from, to, f = client, server, Faults{Up: Way{Cut: how, CutAfter: int64(n)}}
	}
	must(t, p.Set(f))
	var wrote sync.WaitGroup
	wrote.Go(func() { _, _ = from.Write(data) })
	if got := expectEnd(t, to, how == Reset); !bytes.Equal(got, data[:n]) {
		t.Errorf("%d bytes arrived", len(got))
	}
	wrote.Wait()
	_ = from.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.ReadAll(from); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the sender gets no error")
	}
	if p.Cuts() != 1 {
		t.Errorf("%d cuts", p.Cuts())
	}
}

// Bytes that passed before the fault count too.
func TestCutCountsFromTheBeginning(t *testing.T) {
	s := newServer(t)
	p := start(t, s)
	client, server := connectBoth(t, p, s)
	send(t, client, "0123456789")
	expect(t, server, "0123456789")
	must(t, p.Set(Faults{Up: Way{Cut: Reset, CutAfter: 12}}))
	expectNothing(t, client, server)
	send(t, client, "0123")
	if got := expectEnd(t, server, true); string(got) != "01" {
		t.Errorf("%q came", got)
	}
	must(t, p.Set(Faults{}))
	client, server = connectBoth(t, p, s)
	send(t, server, "more")
	expect(t, client, "more")
	must(t, p.Set(Faults{Down: Way{Cut: Close, CutAfter: 3}})) // already passed
	expectEnd(t, client, false)
	expectEnd(t, server, false)

	must(t, p.Set(Faults{Down: Way{Cut: Reset}})) // after no byte at all
	if c, err := net.Dial("tcp4", p.Addr()); err == nil {
		expectEnd(t, c, true)
		c.Close()
	}
	if n := p.Cuts(); n != 3 {
		t.Errorf("%d cuts", n)
	}
}
