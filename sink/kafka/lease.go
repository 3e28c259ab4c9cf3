package kafka

import (
	"errors"
	"fmt"
	"net"
	"time"
)

// The lease limits when a request with records may be sent and may arrive. With F for Config.FenceWait: another
// session that has taken the slot reads the ends of partitions F later at the earliest. So a request may be sent
// until F/2 after the slot was last seen to be this session's, and after 3F/4 all connections are cut if a request
// has no answer (ADR 18).

// errLease means that the lease ran out while requests were open.
var errLease = errors.New("the slot was not seen to be this session's for too long, so another instance may have it now")

const (
	// leaseChecks is the number of checks of the lease per FenceWait.
	leaseChecks = 16
	// leaseChunk is the number of bytes written between two checks of the lease, so that a process that was frozen
	// during a request does not finish the request.
	leaseChunk = 64 << 10
	// heldReportAfter is how long records must wait for the lease before it is reported. The first record after a quiet
	// time always waits for one catalog check.
	heldReportAfter = time.Second
)

// Renew renews the lease: the slot was this session's at the time seen. With a FenceWait, no request with records is
// sent before the first call.
func (p *Producer) Renew(seen time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if last := p.lease.Load(); last != nil && !seen.After(*last) {
		return
	}
	p.lease.Store(&seen)
	if p.heldLogged {
		p.cluster.log.Info("sending records again")
	}
	p.heldSince, p.heldLogged = time.Time{}, false
	for _, n := range p.nodes {
		if len(n.listed) > 0 {
			n.wake()
		}
	}
	p.wakeSaver()
}

// leaseAge returns how long ago the slot was seen to be this session's. It uses the monotonic and the wall clock,
// because the monotonic clock stops while the machine is suspended.
func (p *Producer) leaseAge(now time.Time) time.Duration {
	seen := p.lease.Load()
	if seen == nil {
		return 1 << 62
	}
	return max(now.Sub(*seen), now.Round(0).Sub(seen.Round(0)))
}

// mayStart reports whether a request may be sent now. If not, it must wait for Renew. mu is held.
func (p *Producer) mayStart(now time.Time) bool {
	wait := p.cluster.cfg.FenceWait
	if wait == 0 || p.leaseAge(now) <= wait/2 {
		return true
	}
	if p.heldSince.IsZero() {
		p.heldSince = now
	}
	return false
}

// leaseOver reports whether no byte of a request may be sent any more.
func (p *Producer) leaseOver(now time.Time) bool {
	wait := p.cluster.cfg.FenceWait
	return wait != 0 && p.leaseAge(now) > wait/4*3
}

// beginSaving waits until a request with a position record may be sent, and counts it as open. It returns false if
// the session has ended.
func (p *Producer) beginSaving() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for !p.ended() && !p.mayStart(time.Now()) {
		p.awaitSaver()
	}
	if p.ended() {
		return false
	}
	p.open++
	return true
}

func (p *Producer) endSaving() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open--
}

// heldReason returns why records are held, or nil. mu is held.
func (p *Producer) heldReason(now time.Time) error {
	if p.heldSince.IsZero() || now.Sub(p.heldSince) < heldReportAfter {
		return nil
	}
	return fmt.Errorf("records wait for a catalog check that finds the slot ours within %s (half of tuning.fence_wait)", p.cluster.cfg.FenceWait/2)
}

// watchLease checks the lease periodically.
func (p *Producer) watchLease() {
	defer p.background.Done()
	tick := time.NewTicker(p.cluster.cfg.FenceWait / leaseChecks)
	defer tick.Stop()
	for {
		select {
		case <-p.dialer.ctx.Done():
			return
		case <-tick.C:
			p.checkLease(time.Now())
		}
	}
}

// checkLease logs that records are held. If the lease has run out and a request has no answer, it ends the session
// and cuts all connections, so that the kernel sends nothing more.
func (p *Producer) checkLease(now time.Time) {
	p.mu.Lock()
	if why := p.heldReason(now); why != nil && !p.heldLogged {
		p.heldLogged = true
		p.cluster.log.Warn("records are held", "because", why,
			"remedy", "find out why Postgres answers slowly, or raise tuning.fence_wait on all instances")
	}
	end := p.open > 0 && p.leaseOver(now)
	if end {
		p.failLocked(&failure{op: fmt.Sprintf("send to kafka: %d requests are open, and the slot was last seen %s ago",
			p.open, p.leaseAge(now).Round(time.Millisecond)), err: errLease})
	}
	p.mu.Unlock()
	if end {
		p.dialer.cut()
		p.deliver()
	}
}

// leasedDialer opens the connections for records.
type leasedDialer struct{ p *Producer }

// Dial opens a connection for sarama.
func (d leasedDialer) Dial(network, addr string) (net.Conn, error) {
	c, err := d.p.dialer.dial(d.p.dialer.ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return leasedConn{c, d.p}, nil
}

// leasedConn is a connection that writes only during the lease.
type leasedConn struct {
	*trackedConn
	p *Producer
}

// Write closes the connection when the lease runs out. Brokers do not store an unfinished request.
func (c leasedConn) Write(b []byte) (written int, err error) {
	for {
		if c.p.leaseOver(time.Now()) {
			_ = c.Close()
			return written, errLease
		}
		n, err := c.trackedConn.Write(b[:min(len(b), leaseChunk)])
		written += n
		if b = b[n:]; err != nil || len(b) == 0 {
			return written, err
		}
	}
}
