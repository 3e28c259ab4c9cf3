package kafka

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// standstill is a broker's network that lets nothing in for a while: what was sent stays in the sender's kernel, which tries again
// and again, also after the sender has closed the connection.
type standstill struct {
	still atomic.Bool   // for the connections accepted before thaw
	over  chan struct{} // closed: it is well again
	thaw  atomic.Bool   // later connections are well
	open  atomic.Int32  // connections that stood still and have not ended
}

func (s *standstill) listen(network, addr string) (net.Listener, error) {
	l, err := net.Listen(network, addr)
	return &stillListener{l, s}, err
}

type stillListener struct {
	net.Listener
	*standstill
}

func (l *stillListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil || l.thaw.Load() {
		return c, err
	}
	_ = c.(*net.TCPConn).SetReadBuffer(4096)
	l.open.Add(1)
	return &stillConn{Conn: c, standstill: l.standstill}, nil
}

type stillConn struct {
	net.Conn
	*standstill
	ended atomic.Bool
}

func (c *stillConn) Read(b []byte) (int, error) {
	if c.still.Load() {
		<-c.over
	}
	n, err := c.Conn.Read(b)
	if err != nil && c.ended.CompareAndSwap(false, true) {
		c.open.Add(-1)
	}
	return n, err
}

// TestGivenUpRequestDoesNotArrive: the answer to a request did not come in time, so its connection was given up, and later the session
// ended. Another one has the slot, reads the ends after FenceWait and delivers the event. Then the network is well again: what the
// first session had left in the kernel must not follow.
func TestGivenUpRequestDoesNotArrive(t *testing.T) {
	network := standstill{over: make(chan struct{})}
	heal := sync.OnceFunc(func() { close(network.over) })
	f := newFake(t, kfake.ListenFn(network.listen))
	t.Cleanup(heal) // before the fake waits for its connections
	f.createTopic(t, "t", 1, nil)
	cfg := testConfig(f.ListenAddrs()...)
	cfg.FenceWait = time.Second
	cfg.ReadTimeout, cfg.RetryMin, cfg.RetryMax = 500*time.Millisecond, time.Minute, time.Minute // no second try while the network is away
	p, l := openSession(t, newTestCluster(t, cfg))
	waitReady(t, p, "t")
	ours, over := make(chan struct{}), make(chan struct{})
	go func() { // the slot is ours, as each catalog check shows
		defer close(over)
		for tick := time.NewTicker(20 * time.Millisecond); ; <-tick.C {
			select {
			case <-ours:
				return
			default:
				p.Renew(time.Now())
			}
		}
	}()
	send(t, p, 1, record("t", "k", "first"))
	l.waitAcks(t, 1)

	network.still.Store(true)
	send(t, p, 2, record("t", "k", "event"+big(100_000))) // more than the network's own buffers take
	eventually(t, "the request", func() bool { return p.openRequests() == 1 })
	eventually(t, "the end of patience", func() bool { return p.openRequests() == 0 })
	close(ours)
	<-over
	_ = p.Close(done())
	lost := time.Now()

	network.thaw.Store(true)
	next := testConfig(f.ListenAddrs()...)
	next.FenceWait = cfg.FenceWait
	q, l := openSession(t, newTestCluster(t, next))
	waitReady(t, q, "t")
	q.ReadEnds(checkpoint.Search{
		Lineage: history{}, Producers: []int64{p.ProducerID(), q.ProducerID()}, LookBack: 100, Topics: []string{"t"}, Found: checkpoint.NewEventSet(),
	}, lost.Add(next.FenceWait))
	eventually(t, "the ends", func() bool { return q.EndsRead("") })
	q.Renew(time.Now())
	send(t, q, 1, record("t", "k", "event"))
	l.waitAcks(t, 1)
	heal()
	eventually(t, "the end of the first session's connections", func() bool { return network.open.Load() == 0 })
	if got := values(f.read(t, "t", 2)); len(got) != 2 {
		t.Errorf("the log has %d records: one arrived %s after the session had ended", len(got), time.Since(lost).Round(time.Millisecond))
	}
}
