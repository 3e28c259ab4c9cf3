package kafka

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/IBM/sarama"
)

// The lease bounds when a request with records may leave and when it may arrive. With F for Config.FenceWait: another session that has
// taken the slot reads the ends of partitions F after that at the earliest. So a request may leave until F/2 after the slot was last
// seen to be this session's, and 3F/4 after it the connections of a request that has no answer are cut (ADR 20).

// errLease is a lease that ran out with requests open.
var errLease = errors.New("the slot was not seen to be this session's for too long, so another instance may have it now")

const (
	// leaseChecks is how often in FenceWait open requests are compared with the lease.
	leaseChecks = 16
	// leaseChunk is how much is written between two looks at the lease: a process that was frozen within a request does not finish it.
	leaseChunk = 64 << 10
)

// Renew notes that the slot was this session's at the time seen. Without a FenceWait it does nothing; with one, no request with
// records leaves before the first call.
func (p *Producer) Renew(seen time.Time) {
	if p.cluster.cfg.FenceWait == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if last := p.lease.Load(); last != nil && !seen.After(*last) {
		return
	}
	p.lease.Store(&seen)
	for _, n := range p.nodes {
		if len(n.work) > 0 {
			n.kick()
		}
	}
	select {
	case p.renewed <- struct{}{}:
	default:
	}
}

// leaseAge is how long ago the slot was seen to be this session's. A clock that stands still while the machine is suspended (the
// monotonic one) is not believed alone.
func (p *Producer) leaseAge(now time.Time) time.Duration {
	seen := p.lease.Load()
	if seen == nil {
		return 1 << 62
	}
	return max(now.Sub(*seen), now.Round(0).Sub(seen.Round(0)))
}

// leased reports whether a request may leave now.
func (p *Producer) leased(now time.Time) bool {
	wait := p.cluster.cfg.FenceWait
	return wait == 0 || p.leaseAge(now) <= wait/2
}

// leaseOver reports whether no byte of a request may leave any more.
func (p *Producer) leaseOver(now time.Time) bool {
	wait := p.cluster.cfg.FenceWait
	return wait != 0 && p.leaseAge(now) > wait/4*3
}

// awaitLease returns when a request may leave, or the session is over.
func (p *Producer) awaitLease() error {
	for !p.leased(time.Now()) {
		select {
		case <-p.renewed:
		case <-p.stopped:
			return errOver
		}
	}
	return nil
}

// watchLease ends the session when the lease runs out with requests open.
func (p *Producer) watchLease() {
	defer p.background.Done()
	tick := time.NewTicker(p.cluster.cfg.FenceWait / leaseChecks)
	defer tick.Stop()
	for {
		select {
		case <-p.dialer.ctx.Done():
			return
		case <-tick.C:
			p.endWithLease(time.Now())
		}
	}
}

// endWithLease cuts all connections if the lease has run out and a request has no answer. What the kernel has not sent is thrown away.
func (p *Producer) endWithLease(now time.Time) {
	if !p.leaseOver(now) {
		return
	}
	p.mu.Lock()
	open := p.open
	if open > 0 {
		p.failLocked(&failure{doing: fmt.Sprintf("send to kafka: %d requests are open, and the slot was last seen %s ago",
			open, p.leaseAge(now).Round(time.Millisecond)), err: errLease})
	}
	p.mu.Unlock()
	if open > 0 {
		p.dialer.cut()
		p.deliver()
	}
}

// Stop ends the sending: no request is made after it. The answers of open ones are still taken, and Callbacks.Wake tells when the last
// has come.
func (p *Producer) Stop() {
	p.mu.Lock()
	p.quiet = true
	p.mu.Unlock()
	p.stop()
}

// Open reports whether a request has no answer yet.
func (p *Producer) Open() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open > 0
}

// leasedDialer opens the connections that records take.
type leasedDialer struct {
	*dialer
	p *Producer
}

// withLease makes a configuration one for connections that records take.
func (p *Producer) withLease(conf *sarama.Config) *sarama.Config {
	if p.cluster.cfg.FenceWait > 0 {
		conf.Net.Proxy.Dialer = leasedDialer{p.dialer, p}
	}
	return conf
}

// Dial is called by sarama.
func (d leasedDialer) Dial(network, addr string) (net.Conn, error) {
	c, err := d.dial(d.ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return leasedConn{c, d.p}, nil
}

// leasedConn writes while the lease lasts.
type leasedConn struct {
	*trackedConn
	p *Producer
}

// Write leaves a request unfinished, which no broker stores, once the lease has run out.
func (c leasedConn) Write(b []byte) (written int, err error) {
	for {
		if c.p.leaseOver(time.Now()) {
			c.reset()
			return written, errLease
		}
		n, err := c.trackedConn.Write(b[:min(len(b), leaseChunk)])
		written += n
		if b = b[n:]; err != nil || len(b) == 0 {
			return written, err
		}
	}
}
