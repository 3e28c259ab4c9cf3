package kafka

import (
	"errors"
	"fmt"
	"net"
	"time"
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
	// heldLeast is for how long records must wait for the lease until that is reported: the first one after a quiet time waits for one check.
	heldLeast = time.Second
)

// Renew notes that the slot was this session's at the time seen. With a FenceWait no request with records leaves before the first call.
func (p *Producer) Renew(seen time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if last := p.lease.Load(); last != nil && !seen.After(*last) {
		return
	}
	p.lease.Store(&seen)
	if p.heldKnown {
		p.cluster.log.Info("sending records again")
	}
	p.heldSince, p.heldKnown = time.Time{}, false
	for _, n := range p.nodes {
		if len(n.work) > 0 {
			n.kick()
		}
	}
	p.kickSaver()
}

// leaseAge is how long ago the slot was seen to be this session's. A clock that stops while the machine is suspended (the
// monotonic one) is not believed alone.
func (p *Producer) leaseAge(now time.Time) time.Duration {
	seen := p.lease.Load()
	if seen == nil {
		return 1 << 62
	}
	return max(now.Sub(*seen), now.Round(0).Sub(seen.Round(0)))
}

// leased reports whether a request may leave now. If not, it waits for Renew; mu is held.
func (p *Producer) leased(now time.Time) bool {
	wait := p.cluster.cfg.FenceWait
	if wait == 0 || p.leaseAge(now) <= wait/2 {
		return true
	}
	if p.heldSince.IsZero() {
		p.heldSince = now
	}
	return false
}

// leaseOver reports whether no byte of a request may leave any more.
func (p *Producer) leaseOver(now time.Time) bool {
	wait := p.cluster.cfg.FenceWait
	return wait != 0 && p.leaseAge(now) > wait/4*3
}

// beginSaving counts a request with a position record as open when it may leave; false: the session is over.
func (p *Producer) beginSaving() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for !p.over() && !p.leased(time.Now()) {
		p.unlocked(p.awaitSaver)
	}
	if p.over() {
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

// heldTrouble is why nothing leaves, or nil; mu is held.
func (p *Producer) heldTrouble(now time.Time) error {
	if p.heldSince.IsZero() || now.Sub(p.heldSince) < heldLeast {
		return nil
	}
	return fmt.Errorf("records wait for a catalog check that finds the slot ours within %s (half of tuning.fence_wait)", p.cluster.cfg.FenceWait/2)
}

// watchLease looks at the lease now and then.
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

// checkLease reports that records are held. If the lease has run out and a request has no answer, it ends the session and cuts all
// connections: what the kernel has not sent is thrown away.
func (p *Producer) checkLease(now time.Time) {
	p.mu.Lock()
	if why := p.heldTrouble(now); why != nil && !p.heldKnown {
		p.heldKnown = true
		p.cluster.log.Warn("records are held", "because", why,
			"remedy", "find out why Postgres answers slowly, or raise tuning.fence_wait on all instances")
	}
	end := p.open > 0 && p.leaseOver(now)
	if end {
		p.failLocked(&failure{doing: fmt.Sprintf("send to kafka: %d requests are open, and the slot was last seen %s ago",
			p.open, p.leaseAge(now).Round(time.Millisecond)), err: errLease})
	}
	p.mu.Unlock()
	if end {
		p.dialer.cut()
		p.deliver()
	}
}

// leasedDialer opens the connections that records take.
type leasedDialer struct{ p *Producer }

// Dial is called by sarama.
func (d leasedDialer) Dial(network, addr string) (net.Conn, error) {
	c, err := d.p.dialer.dial(d.p.dialer.ctx, network, addr)
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
