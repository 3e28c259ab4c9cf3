package relay

import "time"

// To confirm something takes a round of three: a look of the guard, in deduplicated mode a position record, a status update.
// Each has a rate of its own, and they are kept in step: whatever is acknowledged waits for one round, not for three rates
// after one another.

const (
	// roundLeast is how often the guard looks and the position record is written, at most. With the time that the two take
	// themselves, what is acknowledged is confirmed within a second.
	roundLeast = time.Second - roundSlack
	// roundSlack is how much of its time a round may take without delaying the next one.
	roundSlack = 50 * time.Millisecond
)

// lookDue is when the guard may look because something waits to be confirmed: about once a second, and not before what
// follows from the look may follow at once. Otherwise one slow look would put the three out of step for good.
func (s *session) lookDue() time.Time {
	return maxTime(s.guard.due, s.endDue())
}

// recordDue is when a position record may be handed over: about once a second, and not before the update that it allows may
// follow. Otherwise what little was acknowledged behind a look would put the record out of step for good.
func (s *session) recordDue() time.Time {
	return maxTime(s.past.paced.due, s.endDue())
}

// endDue is when a round may end: with the update, or with the record if updates come more rarely. It says what Kafka has, and
// does not wait for them.
func (s *session) endDue() time.Time {
	if s.past.on && s.r.cfg.statusLeast() > roundLeast {
		return s.past.paced.due
	}
	return s.said.due
}

// moreSoon reports that a look is about to begin or has just begun: what can go without had better wait for it, or the rest
// would come a whole round later.
func (s *session) moreSoon(now time.Time) bool { return now.Before(s.held(now)) }

// held is until when; a past time: not.
func (s *session) held(now time.Time) (until time.Time) {
	if s.guard.looking {
		return s.guard.last.Add(roundSlack)
	}
	if s.tracker.Acked() > s.guard.safe {
		if due := s.lookDue(); due.Sub(now) <= roundSlack {
			return due
		}
	}
	return time.Time{}
}

// statusLeast is the least time between two status updates that move the slot, unless the server asks: the status_interval, in
// which a round is to fit.
func (c *Config) statusLeast() time.Duration {
	return c.StatusInterval - min(roundSlack, c.StatusInterval/20)
}

// pace lets something happen once in so long, on average: what comes a little late does not put off the next one.
type pace struct{ due time.Time }

// happened is told of each. What happened early, because the server asked for it, does not count: it would be out of step
// with the rest from then on.
func (p *pace) happened(now time.Time, every time.Duration) {
	switch {
	case p.due.IsZero():
		p.due = now.Add(every)
	case !now.Before(p.due):
		p.due = maxTime(p.due, now.Add(-roundSlack)).Add(every)
	}
}
