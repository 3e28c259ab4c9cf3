package relay

import (
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// In deduplicated mode requests with records leave only while the slot was seen lately to be this session's (ADR 20): each catalog check
// of the guard that finds our walsender at the slot renews the sink's lease. Nothing is concluded from a status update of ours, which the
// server may never have heard.

// leaseParts: while something is in flight, the guard looks so many times in fence_wait. Half of fence_wait is how long a lease lasts.
const leaseParts = 4

// leaseEvery is how often the guard looks for the sake of the lease.
func (c *Config) leaseEvery() time.Duration {
	if c.Deduplication.Slot == "" {
		return checkpoint.MaxCheckInterval
	}
	return min(c.Deduplication.FenceWait/leaseParts, checkpoint.MaxCheckInterval)
}

// pacing is how often the confirm rule acts.
func (c *Config) pacing() checkpoint.Pacing {
	return checkpoint.Pacing{Status: c.StatusInterval, Silence: c.WalSenderTimeout / 3, Check: c.leaseEvery()}
}

// renewLease has the guard look if the lease ends soon. It is for the first record after a time in which nothing was sent.
func (s *session) renewLease(now time.Time) {
	if s.r.cfg.Deduplication.Slot != "" && now.Sub(s.rule.LastCheck()) >= s.r.cfg.leaseEvery() {
		s.startCheck(now)
	}
}
