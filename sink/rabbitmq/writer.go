package rabbitmq

import (
	"net"
	"sync"
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
}

// maxPending is the size from which on Write waits.
const maxPending = 256 << 10

func newGatheringConn(c net.Conn) *gatheringConn {
	g := &gatheringConn{Conn: c}
	g.room = sync.NewCond(&g.mu)
	return g
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
