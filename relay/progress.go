package relay

import (
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// This file decides, without I/O and clock, whether delivery gets on: from one session to the next (progress), and
// within a session (oldest).

// reach is how far delivery has come.
type reach struct {
	acked    checkpoint.Position // everything before it that this process has to deliver is acknowledged
	received pglogrepl.LSN
	ends     int64 // what was read of the ends of partitions, and is not read again
}

// ending is what is known at the end of a session.
type ending struct {
	reach
	unfinished pglogrepl.LSN // commit LSN of the oldest transaction that is not acknowledged; 0: there is none
	late       bool          // the oldest event had waited for too long
	cannotSend pglogrepl.LSN // where the server fails to send; 0: it does not
	caughtUp   bool          // the session has received everything that the server had when it began
	waitsFor   State         // for the party that the session has waited for
	why        string        // the error

	confirmed   pglogrepl.LSN // 0: the session did not open
	unconfirmed bool          // Kafka has a transaction that is not confirmed
	began       time.Time
}

// progress counts consecutive sessions without progress, whatever their errors.
type progress struct {
	best     reach
	sessions int
	at       pglogrepl.LSN // the highest position at which one of them ended
	late     bool          // the oldest event of one of them had waited for too long
	refused  bool          // the server fails to send what follows that position
	waitsFor State
	why      string // the error of the last one

	confirms confirms
}

// confirms counts consecutive sessions that have confirmed nothing although Kafka had unconfirmed transactions.
type confirms struct {
	at       pglogrepl.LSN // the confirmed position of all of them
	sessions int
	since    time.Time // when the first of them began
}

func (c *confirms) note(e *ending) {
	switch {
	case e.confirmed == 0:
	case !e.unconfirmed, e.confirmed != c.at:
		*c = confirms{at: e.confirmed}
	default:
		if c.sessions == 0 {
			c.since = e.began
		}
		c.sessions++
	}
}

// stuckAfter is the number of such sessions after which the relay is not ready. Restarts of a server or broker cause
// one or two.
const stuckAfter = 3

// note notes the end of a session, and reports whether the session has made progress: Kafka has acknowledged more,
// more of the ends of partitions was read, or more was received while nothing waited for Kafka. A session that had
// nothing to do counts as well.
func (p *progress) note(e ending) bool {
	p.confirms.note(&e)
	moved := e.acked != p.best.acked && !e.acked.IsZero() || e.ends > p.best.ends
	if e.unfinished == 0 {
		moved = moved || e.received > p.best.received || e.caughtUp && e.cannotSend == 0
	}
	p.best = reach{e.acked, max(p.best.received, e.received), max(p.best.ends, e.ends)}
	if moved {
		*p = progress{best: p.best, confirms: p.confirms, waitsFor: e.waitsFor, why: e.why}
		if !e.late {
			return true
		}
	}
	p.sessions++
	p.at, p.waitsFor, p.why = max(p.at, e.cannotSend, e.unfinished), e.waitsFor, e.why
	if e.unfinished == 0 {
		p.at = max(p.at, e.received)
	}
	p.refused, p.late = e.cannotSend != 0, p.late || e.late // a session that did not open says nothing about that event
	return moved
}

// unconfirmed returns since when no session has confirmed what it delivered; zero: the last three have, or the slot has
// moved to confirmed meanwhile.
func (p *progress) unconfirmed(confirmed pglogrepl.LSN) time.Time {
	if p.confirms.sessions < stuckAfter || confirmed > p.confirms.at {
		return time.Time{}
	}
	return p.confirms.since
}

// stuck returns why the relay is stuck; "": it is not, or is no longer, because Kafka has acknowledged everything
// before the position now, or because the present session has caught up and nothing waits.
func (p *progress) stuck(now, confirmed pglogrepl.LSN, idle bool) string {
	switch {
	case !p.unconfirmed(confirmed).IsZero():
		return fmt.Sprintf("the last %d sessions have confirmed nothing of what was delivered: the slot is at %s: %s", p.confirms.sessions, confirmed, p.why)
	case now > p.at, idle && !p.refused:
		return ""
	case p.late: // the present session is not ready before that event is delivered
		return fmt.Sprintf("the oldest event, committed at %s, has not been delivered since an earlier session: %s", p.at, p.why)
	case p.sessions < stuckAfter:
		return ""
	}
	return fmt.Sprintf("the last %d sessions have delivered nothing new: the last one ended at %s: %s", p.sessions, p.at, p.why)
}

// maxPatience is the largest factor of patience.
const maxPatience = 8

// patience returns how long a session waits for something to be read where the first sessions have waited for d:
// longer after each session without progress, because a large batch takes long over a slow link.
func (p *progress) patience(d time.Duration) time.Duration {
	return d * time.Duration(min(1<<min(max(0, p.sessions-stuckAfter+1), 8), maxPatience))
}

// counter observes a number that only increases.
type counter struct {
	last int64
	at   time.Time
}

// movedAt returns when the number was last seen to have increased; zero: it has always been 0.
func (c *counter) movedAt(now time.Time, n int64) time.Time {
	if n != c.last {
		c.at = now
	}
	c.last = n
	return c.at
}

// oldest observes the oldest event that is not delivered, and the oldest one that is not confirmed. Acknowledgements
// of later events and messages of the server say nothing about them.
type oldest struct {
	delivered   checkpoint.Progress
	confirmed   pglogrepl.LSN
	undelivered time.Time // since when the oldest event in flight is the same; zero: none is in flight
	unconfirmed time.Time // since when something acknowledged is not confirmed and the slot has not moved; zero: everything is
}

// see notes the state at a moment.
func (o *oldest) see(now time.Time, inFlight int, delivered checkpoint.Progress, acked, confirmed pglogrepl.LSN) {
	switch {
	case inFlight == 0:
		o.undelivered = time.Time{}
	case o.undelivered.IsZero() || delivered != o.delivered:
		o.undelivered = now
	}
	switch {
	case confirmed >= acked:
		o.unconfirmed = time.Time{}
	case o.unconfirmed.IsZero() || confirmed > o.confirmed:
		o.unconfirmed = now
	}
	o.delivered, o.confirmed = delivered, confirmed
}

// lateAfter is how long the oldest event may wait for Kafka until the relay is not ready. An election of leaders
// takes less.
const lateAfter = 3 * time.Second

// confirmLateAfter is how much longer than the status interval something acknowledged may wait until it is confirmed.
const confirmLateAfter = 10 * time.Second

// isUndelivered and isUnconfirmed report whether the oldest event has waited for too long.
func (o *oldest) isUndelivered(now time.Time) bool {
	return !o.undelivered.IsZero() && now.Sub(o.undelivered) >= lateAfter
}

func (o *oldest) isUnconfirmed(now time.Time, interval time.Duration) bool {
	return !o.unconfirmed.IsZero() && now.Sub(o.unconfirmed) >= interval+confirmLateAfter
}
