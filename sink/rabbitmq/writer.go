package rabbitmq

import (
	"net"
	"sync"

	"github.com/outboxcdc/outboxcdc/sink/lane"
)

// gatheringConn writes together what is written while a write is under way. The client library flushes each message,
// and the lanes send many small ones at once. An error closes the connection, which ends all that wait for an answer.
type gatheringConn struct {
	net.Conn
	mu      sync.Mutex // guards the following
	room    *sync.Cond
	pending []byte // not written yet
	spare   []byte // memory for pending
	writing bool   // write runs
	err     error
	lost    error // why nothing more can be read
}

// maxPending is the size from which on Write waits.
const maxPending = 256 << 10

func newGatheringConn(c net.Conn) *gatheringConn {
	g := &gatheringConn{Conn: c}
	g.room = sync.NewCond(&g.mu)
	return g
}

func (g *gatheringConn) Read(b []byte) (int, error) {
	n, err := g.Conn.Read(b)
	if err != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.lost = err
	}
	return n, err
}

// refusal returns why the other side has ended TLS, or nil. With TLS 1.3 it refuses a client certificate only after the
// handshake, and the client library reports any end of the connection during the login in the same words.
func (g *gatheringConn) refusal() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lost != nil && lane.CodeOf(g.lost) == lane.CodeTLS {
		return g.lost
	}
	return nil
}

func (g *gatheringConn) Write(b []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.pending) >= maxPending && g.err == nil {
		g.room.Wait()
	}
	if g.err != nil {
		return 0, g.err
	}
	g.pending = append(g.pending, b...)
	if !g.writing {
		g.writing = true
		go g.write()
	}
	return len(b), nil
}

// write writes until nothing is pending.
func (g *gatheringConn) write() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.pending) > 0 && g.err == nil {
		b := g.pending
		g.pending, g.spare = g.spare[:0], nil
		g.mu.Unlock()
		_, err := g.Conn.Write(b)
		if err != nil {
			_ = g.Conn.Close()
		}
		g.mu.Lock()
		g.spare, g.err = b, err
		g.room.Broadcast()
	}
	g.writing = false
}
