package relay

import (
	"errors"
	"time"
)

// One writer at a time, in runs of deduplicated delivery. A record leaves in a request, one per lane at a time, while
// there is a lease. Only records that have left can be stored.

var errLease = errors.New("the slot may be another's by now")

func (s *simSink) Renew(seen time.Time) {
	s.k.w.mu.Lock()
	defer s.k.w.mu.Unlock()
	s.seen = maxTime(s.seen, seen)
	s.depart()
}

// leased reports whether a request may leave now. w.mu is held.
func (s *simSink) leased() bool {
	w := s.k.w
	return !w.deduplicates() || time.Since(s.seen) <= w.cfg.Deduplication.FenceWait/2
}

// requests returns the number of records that have left and have no answer.
func (s *simSink) requests() (n int) {
	for _, left := range s.left {
		n += left
	}
	return n
}

// depart lets the waiting records of each lane without an open request leave. w.mu is held.
func (s *simSink) depart() {
	w := s.k.w
	if s.gathers || s.closing || s.failed || s.closed || s.p.isDead || s.p.thaw != nil {
		return
	}
	if !s.leased() {
		w.reached[heldBack] = w.reached[heldBack] || s.n > 0
		return
	}
	for i, lane := range s.lanes {
		if s.left[i] > 0 || len(lane) == 0 {
			continue
		}
		s.left[i] = len(lane)
		for _, f := range lane {
			f.at = time.Now()
			if f.again != "" {
				w.fail("%s sends event %d %s", s.p, f.e.id, f.again)
			}
			if n := s.k.read[f.partitionOf().topic]; n > s.st.n {
				w.fail("%s lets event %d leave, and the session of stream %d has read the ends of its topic (its own is stream %d)", s.p, f.e.id, n, s.st.n)
			}
		}
	}
}

// leases ends the sessions whose lease ends while a request is open.
func (w *world) leases() {
	if !w.deduplicates() {
		return
	}
	w.mu.Lock()
	var over []*simSink
	for _, s := range w.kafka.sinks {
		if s.open() && s.requests() > 0 && time.Since(s.seen) > w.cfg.Deduplication.FenceWait/4*3 {
			over = append(over, s)
			w.reached[leaseOver] = true
		}
	}
	w.mu.Unlock()
	for _, s := range over {
		w.failSink(s, errLease, 0)
	}
}

// judgeReading checks, when a session reads the ends of a topic, that open requests of earlier sessions left at least
// half of fence_wait ago. w.mu is held.
func (s *simSink) judgeReading(topic int) {
	w := s.k.w
	judge := func(lane []*flight) {
		for _, f := range lane {
			if f.by.st.n >= s.st.n || f.stored || f.partitionOf().topic != topic {
				continue
			}
			if d := time.Since(f.at); d < w.cfg.Deduplication.FenceWait/2 {
				w.fail("%s reads the ends of topic %s, and event %d has left %s only %s ago", s.p, simTopics[topic], f.e.id, f.by.p, d)
			}
		}
	}
	for _, lane := range s.k.orphans {
		judge(lane)
	}
	for _, other := range s.k.sinks {
		for i, lane := range other.lanes {
			judge(lane[:other.left[i]])
		}
	}
	s.k.read[topic] = max(s.k.read[topic], s.st.n)
}

// judgeLate counts records that are stored after a later session has read the ends of their topic. They left long
// before that, as judgeReading has checked. w.mu is held.
func (f *flight) judgeLate() {
	w := f.by.k.w
	if w.kafka.read[f.partitionOf().topic] <= f.by.st.n {
		return
	}
	if f.by.p.wasFrozen {
		w.reached[lateOfFrozen] = true
	} else {
		w.reached[lateOfKafka] = true
	}
}
