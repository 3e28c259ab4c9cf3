package kafka

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// dialer opens all connections of one session, or of one probe. A cut closes all of them and refuses new ones, so a
// goroutine of sarama cannot write any more. This guarantees that two producers never write at the same time.
type dialer struct {
	ctx    context.Context // ends with the cut
	cancel context.CancelFunc
	net    net.Dialer
	open   prometheus.Gauge

	mu     sync.Mutex
	conns  map[*trackedConn]struct{}
	closed bool
}

func newDialer(timeout time.Duration, open prometheus.Gauge) *dialer {
	d := &dialer{net: net.Dialer{Timeout: timeout, KeepAlive: 30 * time.Second}, open: open, conns: map[*trackedConn]struct{}{}}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d
}

// Dial opens a connection for sarama.
func (d *dialer) Dial(network, addr string) (net.Conn, error) {
	c, err := d.dial(d.ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// dial opens a connection. ctx must end when the dialer is cut.
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
	if d.closed {
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
	d.closed = true
	conns := make([]*trackedConn, 0, len(d.conns))
	for c := range d.conns {
		conns = append(conns, c)
	}
	d.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
}

// pause waits for t or until the cut.
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

// Close closes the connection and discards the bytes that the kernel has not sent. Otherwise the kernel would
// continue to send them, for minutes if the network is down, and an abandoned request could reach its broker after
// another session has read the ends of partitions.
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
