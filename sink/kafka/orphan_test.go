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

// stalledNetwork is a broker's network that delivers no bytes to the broker for some time. The bytes stay in the
// sender's kernel, which repeats them, even after the sender has closed the connection.
type stalledNetwork struct {
	stalled atomic.Bool   // applies to the connections accepted before thaw
	over    chan struct{} // closed when the network works again
	thaw    atomic.Bool   // later connections are not stalled
	open    atomic.Int32  // stalled connections that have not ended
}

func (s *stalledNetwork) listen(network, addr string) (net.Listener, error) {
	l, err := net.Listen(network, addr)
	return &stalledListener{l, s}, err
}

type stalledListener struct {
	net.Listener
	*stalledNetwork
}

func (l *stalledListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil || l.thaw.Load() {
		return c, err
	}
	_ = c.(*net.TCPConn).SetReadBuffer(4096)
	l.open.Add(1)
	return &stalledConn{Conn: c, stalledNetwork: l.stalledNetwork}, nil
}

type stalledConn struct {
	net.Conn
	*stalledNetwork
	ended atomic.Bool
}

func (c *stalledConn) Read(b []byte) (int, error) {
	if c.stalled.Load() {
		<-c.over
	}
	n, err := c.Conn.Read(b)
	if err != nil && c.ended.CompareAndSwap(false, true) {
		c.open.Add(-1)
	}
	return n, err
}

// TestGivenUpRequestDoesNotArrive: a request has no answer in time, so its connection is closed, and later the
// session ends. Another session takes the slot, reads the ends after FenceWait and delivers the event. When the
// network works again, bytes of the first session in the kernel must not arrive.
func TestGivenUpRequestDoesNotArrive(t *testing.T) {
	network := stalledNetwork{over: make(chan struct{})}
	heal := sync.OnceFunc(func() { close(network.over) })
	f := newFake(t, kfake.ListenFn(network.listen))
	t.Cleanup(heal) // before the fake waits for its connections
	f.createTopic(t, "t", 1, nil)
	cfg := testConfig(f.ListenAddrs()...)
	cfg.FenceWait = time.Second
	cfg.ReadTimeout, cfg.RetryMin, cfg.RetryMax = 500*time.Millisecond, time.Minute, time.Minute // no resend while the network is stalled
	p, l := openSession(t, newTestCluster(t, cfg))
	waitReady(t, p, "t")
	ours, over := make(chan struct{}), make(chan struct{})
	go func() { // as with catalog checks
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

	network.stalled.Store(true)
	send(t, p, 2, record("t", "k", "event"+repeatX(100_000))) // larger than the network's buffers
	eventually(t, "the request", func() bool { return p.openRequests() == 1 })
	eventually(t, "the end of patience", func() bool { return p.openRequests() == 0 })
	close(ours)
	<-over
	_ = p.Close(endedContext())
	lost := time.Now()

	network.thaw.Store(true)
	next := testConfig(f.ListenAddrs()...)
	next.FenceWait = cfg.FenceWait
	q, l := openSession(t, newTestCluster(t, next))
	waitReady(t, q, "t")
	q.ReadEnds(checkpoint.Search{
		Lineage: history{}, Producers: []int64{p.ProducerID(), q.ProducerID()}, LookBack: 100, Topics: []string{"t"}, Found: checkpoint.NewFound(),
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
