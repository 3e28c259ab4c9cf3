package checkpoint

import (
	"time"

	"github.com/jackc/pglogrepl"
)

// Rule is the confirm rule of one session (docs: ARCHITECTURE.md): a state machine without I/O, clock or goroutine. The session reports
// facts: what it received, what a catalog check found, which position record is stored, which status update it sent. Acknowledgements
// come through the Tracker. Next says what to do now.
//
// Three steps confirm a position. A catalog check that began after the position was received passes. In deduplicated delivery, a
// position record that allows the position is stored. A status update carries it. Each step has a rate of its own. The steps are kept
// together in rounds, so that an acknowledged event waits for one round and not for three rates one after another.
type Rule struct {
	pacing  Pacing
	tracker *Tracker
	resume  *Resume

	received  pglogrepl.LSN // everything before it has been received
	confirmed pglogrepl.LSN // the position of the last status update
	frozen    bool

	check struct {
		running bool
		from    pglogrepl.LSN // received when the last check began
		passed  pglogrepl.LSN // received when the last check began that has passed
		began   time.Time     // the last check
		due     time.Time     // the next check for the sake of confirming may begin then
	}
	record struct {
		required bool
		saving   bool          // a record is on its way
		position pglogrepl.LSN // that the last record allows
		allowed  pglogrepl.LSN // that a stored record allows
		paced    pace
	}
	status struct {
		at             time.Time // the last status update
		replyRequested bool
		paced          pace // of status updates that move the slot
	}
}

// Pacing is how often a Rule acts.
type Pacing struct {
	Status  time.Duration // about how often the slot moves, at most, unless the server asks
	Silence time.Duration // the longest time between two status updates
	Check   time.Duration // the longest time between two catalog checks while Kafka has something in flight
}

const (
	// roundLeast is the least time between two catalog checks, or two position records. With the time that both take, an
	// acknowledged event is confirmed within a second.
	roundLeast = time.Second - roundSlack
	// roundSlack is how much of its time a round may take without delaying the next one.
	roundSlack = 50 * time.Millisecond
	// CheckMost is the longest time between two catalog checks while nothing is in flight.
	CheckMost = 15 * time.Second
	// replyEvery is the least time between two status updates without news: a server that shuts down asks as fast as it is answered.
	replyEvery = 100 * time.Millisecond
)

// Actions is what a session does next, in the order of the fields.
type Actions struct {
	Check  bool          // begin a catalog check, and report its result: CheckPassed or CheckUndecided
	Record pglogrepl.LSN // hand over a position record that allows this position, and report Stored; 0: none
	Status bool          // send a status update with the position Safe, and report Sent
}

// NewRule begins at start, which is the slot's confirmed_flush_lsn. The first check is due within a round: a process that lives for less than
// a second may confirm something too.
func NewRule(start pglogrepl.LSN, now time.Time, p Pacing, t *Tracker, resume *Resume) *Rule {
	r := &Rule{pacing: p, tracker: t, resume: resume, received: start, confirmed: start}
	r.check.passed, r.check.began, r.check.due = start, now, now.Add(min(r.statusLeast(), roundLeast))
	r.status.at = now
	r.status.paced.happened(now, r.statusLeast())
	return r
}

// Received notes that everything before lsn has been received.
func (r *Rule) Received(lsn pglogrepl.LSN) { r.received = max(r.received, lsn) }

// ReceivedUpTo is how far the stream was received.
func (r *Rule) ReceivedUpTo() pglogrepl.LSN { return r.received }

// Confirmed is the position of the last status update.
func (r *Rule) Confirmed() pglogrepl.LSN { return r.confirmed }

// Freeze stops confirming. Status updates go on with the position of the last one.
func (r *Rule) Freeze() { r.frozen = true }

// RequestReply notes that the server asks for a status update.
func (r *Rule) RequestReply() { r.status.replyRequested = true }

// ReplyRequested reports whether the server waits for a status update.
func (r *Rule) ReplyRequested() bool { return r.status.replyRequested }

// BeginCheck notes that a catalog check begins, and reports false if one is running.
func (r *Rule) BeginCheck(now time.Time) bool {
	if r.check.running {
		return false
	}
	r.check.running, r.check.from, r.check.began, r.check.due = true, r.received, now, now.Add(roundLeast)
	return true
}

// CheckPassed notes that the running catalog check found nothing changed: it covers what was received when it began.
func (r *Rule) CheckPassed() {
	r.check.running = false
	r.check.passed = max(r.check.passed, r.check.from)
}

// CheckUndecided notes that the running catalog check could not tell, because a change has not been committed.
func (r *Rule) CheckUndecided() { r.check.running = false }

// Checking reports whether a catalog check is running.
func (r *Rule) Checking() bool { return r.check.running }

// LastCheck is when the last catalog check began.
func (r *Rule) LastCheck() time.Time { return r.check.began }

// BeginRounds notes that the first record is stored, which a check of its own has followed: the rounds begin now.
func (r *Rule) BeginRounds(due time.Time) { r.check.due = due }

// NextCheck is when the next check for the sake of confirming may begin.
func (r *Rule) NextCheck() time.Time { return r.check.due }

// Save notes that a position record which allows pos is handed over.
func (r *Rule) Save(now time.Time, pos pglogrepl.LSN) {
	r.record.saving, r.record.position = true, pos
	r.record.paced.happened(now, roundLeast)
}

// Stored notes that Kafka has the record that was handed over last.
func (r *Rule) Stored() { r.record.saving, r.record.allowed = false, r.record.position }

// NotStored notes that Kafka has refused the record.
func (r *Rule) NotStored() { r.record.saving = false }

// Saving reports whether a position record is on its way.
func (r *Rule) Saving() bool { return r.record.saving }

// RequireRecords notes that the first record is stored. From now on nothing is confirmed that a stored record does not allow.
func (r *Rule) RequireRecords() { r.record.required = true }

// RecordsRequired reports whether the slot moves only as far as a stored record allows.
func (r *Rule) RecordsRequired() bool { return r.record.required }

// Allowed is what a stored record allows.
func (r *Rule) Allowed() pglogrepl.LSN { return r.record.allowed }

// Sent notes a status update, and reports whether it moved the slot.
func (r *Rule) Sent(now time.Time, pos pglogrepl.LSN) (moved bool) {
	if moved = pos > r.confirmed; moved {
		r.status.paced.happened(now, r.statusLeast())
	}
	r.confirmed, r.status.at, r.status.replyRequested = pos, now, false
	return moved
}

// Repeated notes a status update without news.
func (r *Rule) Repeated(now time.Time) { r.status.at = now }

// SilentFor is the time since the last status update.
func (r *Rule) SilentFor(now time.Time) time.Duration { return now.Sub(r.status.at) }

// Wanted is what is acknowledged, checked, and of a history that is known to be the one delivered from.
func (r *Rule) Wanted() pglogrepl.LSN {
	if r.frozen || r.resume.Expecting() {
		return r.confirmed
	}
	return max(r.confirmed, min(r.tracker.Acked(), r.check.passed))
}

// Safe is the position that a status update may carry now. It never falls.
func (r *Rule) Safe() pglogrepl.LSN {
	if r.record.required || r.record.saving { // or the first record is on its way
		return max(r.confirmed, min(r.Wanted(), r.record.allowed))
	}
	return r.Wanted()
}

// Next says what to do now. A check that it asks for counts as begun: the record and the status update of that moment wait for it.
func (r *Rule) Next(now time.Time) Actions {
	a := r.Hold(now)
	if want := r.Wanted(); r.record.required && want > r.record.allowed && !r.record.saving && !now.Before(r.recordDue()) && !r.waitForCheck(now) {
		a.Record = want
	}
	moved := r.Safe() > r.confirmed
	a.Status = a.Status ||
		moved && !now.Before(r.status.paced.due) && !r.waitForCheck(now) ||
		r.status.replyRequested && (moved || r.SilentFor(now) >= replyEvery)
	return a
}

// Hold says what to do now while nothing more is to be confirmed: the connection and the lease are kept. Its answer has no record, and a
// check that it asks for counts as begun.
func (r *Rule) Hold(now time.Time) (a Actions) {
	if r.tracker.Acked() > r.check.passed && !now.Before(r.checkDue()) || now.Sub(r.check.began) >= r.checkMost() {
		a.Check = r.BeginCheck(now)
	}
	a.Status = r.SilentFor(now) >= r.pacing.Silence
	return a
}

// Wake is when to call Next again at the latest. Acknowledgements do not wake the session, so it bounds how long one goes unnoticed.
func (r *Rule) Wake(now time.Time) time.Time {
	next := earlier(now.Add(min(r.statusLeast(), roundLeast, r.pacing.Check)), r.status.at.Add(r.pacing.Silence))
	if !r.check.running {
		next = earlier(next, r.check.began.Add(r.checkMost()))
		if r.tracker.Acked() > r.check.passed {
			next = earlier(next, r.checkDue())
		}
	}
	if r.Safe() > r.confirmed {
		next = earlier(next, later(r.status.paced.due, r.deferred(now)))
	}
	if r.record.required && !r.record.saving && r.Wanted() > r.record.allowed {
		next = earlier(next, later(r.recordDue(), r.deferred(now)))
	}
	if r.status.replyRequested {
		next = earlier(next, r.status.at.Add(replyEvery))
	}
	return next
}

// WakeHeld is when to call Hold again at the latest.
func (r *Rule) WakeHeld(now time.Time) time.Time {
	next := now.Add(min(r.pacing.Status, r.pacing.Silence, time.Second))
	if !r.check.running {
		next = earlier(next, r.check.began.Add(r.checkMost()))
	}
	return next
}

// checkMost is the longest time between two catalog checks.
func (r *Rule) checkMost() time.Duration {
	if events, _ := r.tracker.InFlight(); events > 0 || r.record.saving {
		return min(r.pacing.Check, CheckMost)
	}
	return CheckMost
}

// statusLeast is the least time between two status updates that move the slot, unless the server asks. A round fits in it.
func (r *Rule) statusLeast() time.Duration {
	return r.pacing.Status - min(roundSlack, r.pacing.Status/20)
}

// checkDue is when a check may begin because something waits to be confirmed: about once a second, and not before the steps after it may
// follow at once. Otherwise one slow check would put the steps out of step for good.
func (r *Rule) checkDue() time.Time { return later(r.check.due, r.roundEnd()) }

// recordDue is when a position record may be handed over: about once a second, and not before the status update that it allows may
// follow. Otherwise the few events acknowledged after a check would put the record out of step for good.
func (r *Rule) recordDue() time.Time { return later(r.record.paced.due, r.roundEnd()) }

// roundEnd is when a round may end: with the status update, or with the record if status updates are rarer. A record says what Kafka
// has, and does not wait for them.
func (r *Rule) roundEnd() time.Time {
	if r.record.required && r.statusLeast() > roundLeast {
		return r.record.paced.due
	}
	return r.status.paced.due
}

// waitForCheck reports that a check begins soon or has just begun. A record or a status update waits for it: otherwise what the check
// covers would come a whole round later.
func (r *Rule) waitForCheck(now time.Time) bool { return now.Before(r.deferred(now)) }

// deferred is until when a record or a status update waits for a check; a past time: it does not.
func (r *Rule) deferred(now time.Time) time.Time {
	if r.check.running {
		return r.check.began.Add(roundSlack)
	}
	if r.tracker.Acked() > r.check.passed {
		if due := r.checkDue(); due.Sub(now) <= roundSlack {
			return due
		}
	}
	return time.Time{}
}

// pace lets something happen once in a time, on average: an occurrence that is a little late does not delay the next one.
type pace struct{ due time.Time }

// happened notes an occurrence. One that was early, because the server asked for it, does not count: the steps would be out of step from
// then on.
func (p *pace) happened(now time.Time, every time.Duration) {
	switch {
	case p.due.IsZero():
		p.due = now.Add(every)
	case !now.Before(p.due):
		p.due = later(p.due, now.Add(-roundSlack)).Add(every)
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
