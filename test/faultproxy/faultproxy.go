// Package faultproxy is a TCP proxy between a client and a server on this machine that imitates network faults:
// slowness, silence in one or both directions, cuts, resets, refusal, a name that leads to another server. All of them
// can be switched while connections are open.
//
// It promises:
//   - bytes that pass do so in order and unchanged; a cut passes exactly the given number of bytes;
//   - a [Way] that has swallowed anything of a connection swallows everything that follows on that connection, the end
//     included, whatever is set later: both ends must find out by themselves, as after the crash of a router. Each side
//     of a half-open connection stays open until that side ends it, or [Proxy.CutAll] or [Proxy.Close] does;
//   - after Close no goroutine and no descriptor is left.
//
// It does not delay or lose the TCP handshake, which is the kernel's: a client behind a black hole is connected, but
// receives nothing. [Faults].Silent is for unanswered handshakes.
package faultproxy

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outboxcdc/outboxcdc/test/child"
)

// Faults are what happens to connections. The zero value is a network that works.
type Faults struct {
	Up   Way // client → server
	Down Way // server → client

	// Refuse refuses new connections; open ones continue.
	Refuse bool
	// Silent leaves new connections unanswered: the client's connect times out. Open ones continue.
	Silent bool
	// Idle closes connections over which nothing has passed for this long, as load balancers do.
	Idle time.Duration
}

// Way is one direction.
type Way struct {
	// Latency delays all bytes.
	Latency time.Duration
	// BytesPerSecond bounds the throughput of all connections together.
	BytesPerSecond int
	// Hold lets nothing pass and loses nothing: everything arrives when Hold ends, as after a cable was unplugged for a
	// while. New connections reach the server then.
	Hold bool
	// Drop swallows everything. New connections never reach the server.
	Drop bool
	// Cut ends a connection when CutAfter bytes have passed this way since its beginning, at once if they already have.
	Cut      Cut
	CutAfter int64
}

// Cut is how a connection is ended.
type Cut int

// The ways to end a connection, for both sides at once.
const (
	NoCut Cut = iota
	Close     // FIN
	Reset     // RST
)

// BlackHole swallows everything in both directions.
func BlackHole() Faults { return Faults{Up: Way{Drop: true}, Down: Way{Drop: true}} }

// Proxy is one address that leads to a server. Its methods may be called from several goroutines.
type Proxy struct {
	addr string
	up   link
	down link

	accepted, cuts atomic.Int64

	mu       sync.Mutex
	faults   Faults
	changed  chan struct{} // closed, and replaced, by each Set
	target   string
	listener *net.TCPListener // nil while it refuses
	silent   bool             // the queue of the listener is not emptied
	fillers  []net.Conn       // connections of our own, while silent
	ours     map[string]bool  // their addresses, until they are accepted
	pairs    map[*pair]struct{}
	closed   bool

	running sync.WaitGroup
}

// Start starts a proxy on a port of 127.0.0.1. The server need not exist yet; target may be "" until Proxy.Target names
// one.
func Start(target string) (*Proxy, error) {
	port, err := child.FreePort() // below the range of outgoing connections: it stays free after Refuse
	if err != nil {
		return nil, fmt.Errorf("start a fault proxy: %w", err)
	}
	p := &Proxy{
		addr: fmt.Sprintf("127.0.0.1:%d", port), target: target,
		changed: make(chan struct{}), pairs: map[*pair]struct{}{}, ours: map[string]bool{},
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.listen(); err != nil {
		return nil, fmt.Errorf("start a fault proxy: %w", err)
	}
	return p, nil
}

// Addr is where clients connect to; it never changes.
func (p *Proxy) Addr() string { return p.addr }

// Port is the port of Addr.
func (p *Proxy) Port() int {
	var port int
	_, _ = fmt.Sscanf(p.addr, "127.0.0.1:%d", &port)
	return port
}

// Target sends new connections to another server. Open ones keep theirs.
func (p *Proxy) Target(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = addr
}

// Set replaces all faults, for open connections too. It fails only if it cannot listen again after Refuse or Silent.
func (p *Proxy) Set(f Faults) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errors.New("set faults: the proxy is closed")
	}
	p.faults = f
	close(p.changed)
	p.changed = make(chan struct{})
	if err := p.updateListener(); err != nil {
		return fmt.Errorf("set faults: %w", err)
	}
	return nil
}

// CutAll ends all open connections and returns their number.
func (p *Proxy) CutAll(reset bool) int {
	p.mu.Lock()
	all := make([]*pair, 0, len(p.pairs))
	for c := range p.pairs {
		all = append(all, c)
	}
	p.mu.Unlock()
	how := Close
	if reset {
		how = Reset
	}
	for _, c := range all {
		c.cut(how)
	}
	return len(all)
}

// Connections counts the connections open on either side.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pairs)
}

// Accepted counts all connections of clients so far.
func (p *Proxy) Accepted() int64 { return p.accepted.Load() }

// Cuts counts the connections that the proxy has ended: by Cut, Idle and CutAll.
func (p *Proxy) Cuts() int64 { return p.cuts.Load() }

// Intact counts the open connections that have lost nothing on the way to the server. They continue when the faults are
// lifted. A client's end may still be under way, whatever the other direction has lost: a test that wants clients to
// vanish waits for 0.
func (p *Proxy) Intact() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.pairs {
		if !c.upLost.Load() {
			n++
		}
	}
	return n
}

// Passed counts the bytes that were passed on, on all connections.
func (p *Proxy) Passed() (up, down int64) { return p.up.passed.Load(), p.down.passed.Load() }

// Close ends all connections, stops listening and waits until nothing is left. Closing twice does nothing.
func (p *Proxy) Close() error {
	p.mu.Lock()
	var err error
	if !p.closed {
		p.closed = true
		close(p.changed)
		err = p.stopListening()
	}
	p.mu.Unlock()
	p.CutAll(true)
	p.running.Wait()
	return err
}

// look returns the faults and a channel that is closed when they change.
func (p *Proxy) look() (Faults, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults, p.changed
}

// add registers a connection; false if the proxy is closed.
func (p *Proxy) add(c *pair) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.pairs[c] = struct{}{}
	return true
}

func (p *Proxy) remove(c *pair) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pairs, c)
}

// link is what the connections share in one direction.
type link struct {
	passed atomic.Int64

	mu   sync.Mutex
	free time.Time // when all reserved bytes have passed
}

// reserve returns when the last of n bytes has passed.
func (l *link) reserve(n, bytesPerSecond int) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); l.free.Before(now) {
		l.free = now
	}
	l.free = l.free.Add(time.Duration(float64(n) / float64(bytesPerSecond) * float64(time.Second)))
	return l.free
}
