package relay

import "time"

// In deduplicated mode requests with records leave only while the slot was seen lately to be this session's (ADR 20): each catalog check
// of the guard that finds our walsender at the slot renews the sink's lease. Nothing is concluded from a status update of ours, which the
// server may never have heard.

// leaseParts: while something is in flight, the guard looks so many times in fence_wait. Half of fence_wait is how long a lease lasts.
const leaseParts = 4

// leaseEvery is how often the guard looks for the sake of the lease.
func (c *Config) leaseEvery() time.Duration {
	if c.Deduplication.Slot == "" {
		return guardMost
	}
	return min(c.Deduplication.FenceWait/leaseParts, guardMost)
}

// lookEvery is after how long the guard looks in any case.
func (s *session) lookEvery() time.Duration {
	if events, _ := s.tracker.InFlight(); events > 0 || s.past.saving {
		return s.r.cfg.leaseEvery()
	}
	return guardMost
}

// keepLease has the guard look if the lease ends soon. It is for the first record after a time in which nothing was sent.
func (s *session) keepLease(now time.Time) {
	if s.r.cfg.Deduplication.Slot != "" && now.Sub(s.guard.last) >= s.r.cfg.leaseEvery() {
		s.guard.look(now, s.received)
	}
}
