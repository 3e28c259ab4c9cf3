package relay

import (
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// In deduplicated delivery the sink sends requests only during a lease, half of fence_wait long (ADR 18). Each
// catalog check that finds our walsender at the slot renews the lease. Status updates do not: the server may never
// have received them.

// leaseParts is the number of catalog checks in fence_wait while something is in flight.
const leaseParts = 4

// leaseEvery is the longest time between two catalog checks that the lease allows.
func (c *Config) leaseEvery() time.Duration {
	if c.Deduplication.Slot == "" {
		return checkpoint.MaxCheckInterval
	}
	return min(c.Deduplication.FenceWait/leaseParts, checkpoint.MaxCheckInterval)
}

// pacing returns how often the confirm rule acts.
func (c *Config) pacing() checkpoint.Pacing {
	return checkpoint.Pacing{Status: c.StatusInterval, Silence: c.WalSenderTimeout / 3, Check: c.leaseEvery()}
}

// renewLease begins a catalog check if the lease ends soon. It is called for the first record after a time without
// records.
func (s *session) renewLease(now time.Time) {
	if s.r.cfg.Deduplication.Slot != "" && now.Sub(s.rule.LastCheck()) >= s.r.cfg.leaseEvery() {
		s.startCheck(now)
	}
}
