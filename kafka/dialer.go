package kafka

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// dialer opens every connection of one session, or of one probe, and can cut them all for good. That is what makes it
// certain that two producers never write at the same time: whatever a goroutine of sarama still holds after a cut, it
// has nothing left to write to.
type dialer struct {
	ctx    context.Context // ends with the cut
	cancel context.CancelFunc
	net    net.Dialer
	open   prometheus.Gauge

	mu    sync.Mutex
	conns map[*trackedConn]struct{}
	shut  bool
}

func newDialer(timeout time.Duration, open prometheus.Gauge) *dialer {
	d := &dialer{net: net.Dialer{Timeout: timeout, KeepAlive: 30 * time.Second}, open: open, conns: map[*trackedConn]struct{}{}}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d
}

// Dial is called by sarama.
func (d *dialer) Dial(network, addr string) (net.Conn, error) {
	c, err := d.dial(d.ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// dial gives up when ctx ends, which is the dialer's or one that ends with it.
func (d *dialer) dial(ctx context.Context, network, addr string) (*trackedConn, error) {
	raw, err := d.net.DialContext(ctx, network, addr)
	if err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("dial %s: %w", addr, errCut)
		}
		return nil, err
	}
	c := &trackedConn{Conn: raw, dialer: d}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shut {
		_ = raw.Close()
		return nil, fmt.Errorf("dial %s: %w", addr, errCut)
	}
	d.conns[c] = struct{}{}
	d.open.Inc()
	return c, nil
}

// cut refuses new connections and closes the open ones.
func (d *dialer) cut() {
	d.cancel()
	d.mu.Lock()
	d.shut = true
	conns := make([]*trackedConn, 0, len(d.conns))
	for c := range d.conns {
		conns = append(conns, c)
	}
	d.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
}

// pause waits, but no longer than until the cut. Sarama sleeps without looking at anything; as its back-off functions
// wait here and then return 0, a close never has to sit out a back-off.
func (d *dialer) pause(t time.Duration) {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-d.ctx.Done():
	}
}

type trackedConn struct {
	net.Conn
	dialer *dialer
}

// Close throws away what the kernel has not sent yet. It would go on sending after a polite end, for minutes if the network is away, and
// a request that was given up would reach its broker after another session has read the ends of partitions.
func (c *trackedConn) Close() error {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	d := c.dialer
	d.mu.Lock()
	if _, ok := d.conns[c]; ok {
		delete(d.conns, c)
		d.open.Dec()
	}
	d.mu.Unlock()
	return c.Conn.Close()
}
