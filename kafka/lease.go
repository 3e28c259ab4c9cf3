package kafka

import (
	"errors"
	"fmt"
	"time"
)

// errLease is a lease that ran out.
var errLease = errors.New("nobody has extended the session's lease on the slot, so another instance may have it now")

// Extend allows requests with records until then, and not after it unless it is extended again: the first one that would leave
// later ends the session. A process that was suspended finds out that way that it was, before it sends on. Before the first call
// there is no lease. One that has run out is not extended: who was suspended may be heard by nobody any more.
func (p *Producer) Extend(until time.Time) {
	if p.leased(time.Now()) == nil {
		p.lease.Store(&until)
	}
}

// leased is nil while requests with records may leave. A clock that stands still while the machine is suspended (the monotonic
// one) is not believed alone.
func (p *Producer) leased(now time.Time) error {
	until := p.lease.Load()
	if until == nil || !now.After(*until) && !now.Round(0).After(until.Round(0)) {
		return nil
	}
	late := max(now.Sub(*until), now.Round(0).Sub(until.Round(0)))
	return &failure{doing: fmt.Sprintf("send to kafka: %s too late", late.Round(time.Millisecond)), err: errLease}
}

// fail ends the session.
func (p *Producer) fail(err error) {
	p.mu.Lock()
	p.failLocked(err)
	p.mu.Unlock()
	p.deliver()
}
