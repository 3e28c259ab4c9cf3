package relay

import (
	"fmt"
	"time"
)

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
	if s.sending() {
		return s.r.cfg.leaseEvery()
	}
	return guardMost
}

// sending: a request is open, or waits for the lease.
func (s *session) sending() bool {
	events, _ := s.tracker.InFlight()
	return events > 0 || s.past.saving
}

// slotSeen runs on the guard's goroutine when a look has found the slot ours.
func (s *session) slotSeen(at time.Time) {
	s.sink.Renew(at)
	s.seen.Store(max(s.seen.Load(), int64(at.Sub(s.began))))
}

// keepLease has the guard look if the lease ends soon. It is for the first record after a time in which nothing was sent.
func (s *session) keepLease(now time.Time) {
	if s.r.cfg.Deduplication.Slot != "" && now.Sub(s.guard.last) >= s.r.cfg.leaseEvery() {
		s.guard.look(now, s.received)
	}
}

// heldLeast is for how long records must be held until the log says so: the first one after a quiet time waits for one look.
const heldLeast = time.Second

// watchLease says when records wait for a look that finds the slot ours, and when they do not any more.
func (s *session) watchLease(now time.Time) {
	r, wait := s.r, s.r.cfg.Deduplication.FenceWait
	age := now.Sub(s.began.Add(time.Duration(s.seen.Load())))
	if r.cfg.Deduplication.Slot == "" || !s.sending() || age <= wait/2 {
		s.heldSince = time.Time{}
		r.held("")
		return
	}
	if s.heldSince.IsZero() {
		s.heldSince = now
	}
	if now.Sub(s.heldSince) >= heldLeast {
		r.held(fmt.Sprintf("records wait for a catalog check that finds the slot ours within %s (half of delivery.fence_wait)", wait/2))
	}
}

// held notes why records are held, or "", and says each change once.
func (r *Relay) held(why string) {
	r.mu.Lock()
	was := r.view.held
	r.view.held = why
	r.mu.Unlock()
	switch {
	case why != "" && was == "":
		r.log.Warn("records are held", "because", why, "remedy", "find out why Postgres answers slowly, or raise delivery.fence_wait on all instances")
	case why == "" && was != "":
		r.log.Info("records are sent again")
	}
}

func (r *Relay) heldBy() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.view.held
}
