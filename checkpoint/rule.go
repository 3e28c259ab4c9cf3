package checkpoint

import (
	"time"

	"github.com/jackc/pglogrepl"
)

// Rule is the confirm rule of one session (docs: ARCHITECTURE.md): a state machine without I/O, clock or goroutine. The session reports
// facts: what it received, what a catalog check found, which position record is stored, which status update it sent. Acknowledgements
// come through the Tracker. Next says what to do now.
//
// A round confirms a position, in up to three steps: a catalog check, which has to begin after the position was received; in deduplicated
// delivery, a position record that allows the position; a status update that carries it. A step begins when the one before it has ended.
// One timer says when the next round may begin. Checks that keep the lease and status updates that keep the connection need no round.
type Rule struct {
	pacing  Pacing
	tracker *Tracker
	resume  *Resume

	received  pglogrepl.LSN // everything before it has been received
	confirmed pglogrepl.LSN // the position of the last status update
	frozen    bool

	round struct {
		step  step
		began time.Time // the last round
	}
	check struct {
		running bool
		from    pglogrepl.LSN // received when the last check began
		passed  pglogrepl.LSN // received when the last check began that has passed
		began   time.Time     // the last check
	}
	record struct {
		required bool
		saving   bool          // a record is on its way
		position pglogrepl.LSN // that the last record allows
		allowed  pglogrepl.LSN // that a stored record allows
	}
	status struct {
		at             time.Time // the last status update
		round          time.Time // the last round whose status update moved the slot
		replyRequested bool
	}
}

// step is how far a round has come.
type step int

const (
	between   step = iota // no round is under way
	checking              // the round waits for a catalog check
	recording             // the round waits for a position record
)

// Pacing is how often a Rule acts.
type Pacing struct {
	Status  time.Duration // about how often the slot moves, at most, unless the server asks
	Silence time.Duration // the longest time between two status updates
	Check   time.Duration // the longest time between two catalog checks while Kafka has something in flight
}

const (
	// recordInterval is about how often a position record is stored while status updates are rarer: a record says what Kafka has.
	recordInterval = time.Second
	// roundSlack is how much time a round may take without delaying the confirmation of an event beyond its interval.
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

// NewRule begins at start, which is the slot's confirmed_flush_lsn.
func NewRule(start pglogrepl.LSN, now time.Time, p Pacing, t *Tracker, resume *Resume) *Rule {
	r := &Rule{pacing: p, tracker: t, resume: resume, received: start, confirmed: start}
	r.check.passed, r.check.began = start, now
	r.round.began, r.status.round, r.status.at = now, now, now
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
	r.check.running, r.check.from, r.check.began = true, r.received, now
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

// Save notes that a position record which allows pos is handed over.
func (r *Rule) Save(pos pglogrepl.LSN) { r.record.saving, r.record.position = true, pos }

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
	moved = pos > r.confirmed
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

// Next says what to do now. A check that it asks for counts as begun.
func (r *Rule) Next(now time.Time) (a Actions) {
	if r.mayBegin() && !now.Before(r.roundDue()) {
		r.round.step, r.round.began = checking, now
		a.Check = r.tracker.Acked() > r.check.passed && r.BeginCheck(now)
	}
	if r.round.step == checking && !r.check.running {
		r.round.step = recording
		if want := r.Wanted(); r.record.required && want > r.record.allowed {
			a.Record = want
			r.Save(want)
		}
	}
	if r.round.step == recording && !r.record.saving {
		r.round.step = between
		if r.Safe() > r.confirmed && r.statusDue() {
			r.status.round, a.Status = r.round.began, true
		}
	}
	keep := r.Hold(now)
	a.Check = a.Check || keep.Check
	a.Status = a.Status || keep.Status || r.status.replyRequested && (r.Safe() > r.confirmed || r.SilentFor(now) >= replyEvery)
	return a
}

// Hold says what to do now while nothing more is to be confirmed: the connection and the lease are kept. Its answer has no record, and a
// check that it asks for counts as begun.
func (r *Rule) Hold(now time.Time) (a Actions) {
	a.Check = now.Sub(r.check.began) >= r.checkMost() && r.BeginCheck(now)
	a.Status = r.SilentFor(now) >= r.pacing.Silence
	return a
}

// Wake is when to call Next again at the latest. Acknowledgements do not wake the session, so it bounds how long one goes unnoticed. The end
// of a check and of the storing of a record wake it.
func (r *Rule) Wake(now time.Time) time.Time {
	next := earlier(now.Add(min(r.roundLeast(), lessSlack(recordInterval), r.pacing.Check)), r.status.at.Add(r.pacing.Silence))
	if !r.check.running {
		next = earlier(next, r.check.began.Add(r.checkMost()))
	}
	if r.mayBegin() {
		next = earlier(next, r.roundDue())
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

// mayBegin reports whether a round could confirm or record something, and nothing is under way that it would have to wait for.
func (r *Rule) mayBegin() bool {
	if r.frozen || r.resume.Expecting() || r.round.step != between || r.check.running || r.record.saving {
		return false
	}
	acked := r.tracker.Acked()
	return acked > r.confirmed || r.record.required && acked > r.record.allowed
}

// roundDue is when the next round may begin.
func (r *Rule) roundDue() time.Time { return r.round.began.Add(r.roundLeast()) }

// roundLeast is the least time between the beginnings of two rounds.
func (r *Rule) roundLeast() time.Duration {
	if r.record.required {
		return lessSlack(min(r.pacing.Status, recordInterval))
	}
	return lessSlack(r.pacing.Status)
}

// statusDue reports whether the round under way may move the slot. If records are stored more often than the slot is to move, not each
// round does.
func (r *Rule) statusDue() bool {
	return r.round.began.Sub(r.status.round) >= lessSlack(r.pacing.Status)
}

// lessSlack is an interval less the time that a round may take: an event is confirmed within the interval.
func lessSlack(d time.Duration) time.Duration { return d - min(roundSlack, d/20) }

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
