package checkpoint

import (
	"time"

	"github.com/jackc/pglogrepl"
)

// Rule is the confirm rule of one session (docs: ARCHITECTURE.md): a state machine without I/O, clock or goroutine.
// The session reports facts: the position received, the result of a catalog check, the position record stored, the
// status update sent. The rule reads acknowledgements from the Tracker. Next returns the actions to take now.
//
// A round confirms a position, in up to three steps: a catalog check that begins after the position was received; in
// deduplicated delivery, a position record that allows the position; a status update that carries the position. A
// step begins when the previous step has ended. One timer starts rounds. Checks that keep the lease and status
// updates that keep the connection need no round.
//
// A position record also has the last event that Kafka has acknowledged, and that does not depend on the catalogs.
// While a check has no result, or takes long, records are stored that allow nothing new.
type Rule struct {
	pacing  Pacing
	tracker *Tracker
	resume  *Resume

	received  pglogrepl.LSN // everything before it has been received
	confirmed pglogrepl.LSN // the position of the last status update
	frozen    bool

	round struct {
		step  step
		began time.Time // of the last round
	}
	check struct {
		running bool
		from    pglogrepl.LSN // received when the last check began
		passed  pglogrepl.LSN // received when the last passed check began
		began   time.Time     // of the last check
	}
	record struct {
		required bool
		saving   bool          // a record is being stored
		marking  bool          // a mark is, see Mark
		position pglogrepl.LSN // allowed by the last record
		allowed  pglogrepl.LSN // allowed by a stored record
		acked    Progress      // when the last record was written
		at       time.Time     // of the last record that was stored while a check was running
	}
	status struct {
		at             time.Time // of the last status update
		round          time.Time // beginning of the last round whose status update moved the slot
		replyRequested bool
	}
}

// step is the step of a round.
type step int

const (
	idle      step = iota // no round is under way
	checking              // the round waits for a catalog check
	recording             // the round waits for a position record
)

// Pacing is how often a Rule acts.
type Pacing struct {
	Status  time.Duration // the shortest time, about, between two moves of the slot, unless the server asks
	Silence time.Duration // the longest time between two status updates
	Check   time.Duration // the longest time between two catalog checks while Kafka has something in flight
}

const (
	// recordInterval is how often a position record is stored, and so how often there is a round where records are
	// required.
	recordInterval = time.Second
	// roundSlack is how long a round may take: it begins this much earlier, so that an event is confirmed within the
	// interval.
	roundSlack = 50 * time.Millisecond
	// MaxCheckInterval is the longest time between two catalog checks while nothing is in flight.
	MaxCheckInterval = 15 * time.Second
	// replyInterval is the shortest time between two replies with an unchanged position: a server that shuts down asks
	// again at once.
	replyInterval = 100 * time.Millisecond
)

// Actions are what a session does next, in the order of the fields.
type Actions struct {
	Check  bool          // begin a catalog check, and report its result: CheckPassed or CheckUndecided
	Record pglogrepl.LSN // store a position record that allows this position, and report Stored; 0: none
	Status bool          // send a status update with the position Safe, and report Sent
}

// NewRule returns the rule of a session that begins at start, the slot's confirmed_flush_lsn.
func NewRule(start pglogrepl.LSN, now time.Time, p Pacing, t *Tracker, resume *Resume) *Rule {
	r := &Rule{pacing: p, tracker: t, resume: resume, received: start, confirmed: start}
	r.check.passed, r.check.began = start, now
	r.round.began, r.status.round, r.status.at = now, now, now
	return r
}

// Received notes that everything before lsn has been received.
func (r *Rule) Received(lsn pglogrepl.LSN) { r.received = max(r.received, lsn) }

// ReceivedUpTo returns the position up to which the stream was received.
func (r *Rule) ReceivedUpTo() pglogrepl.LSN { return r.received }

// Confirmed returns the position of the last status update.
func (r *Rule) Confirmed() pglogrepl.LSN { return r.confirmed }

// Freeze stops confirming. Later status updates repeat the last position.
func (r *Rule) Freeze() { r.frozen = true }

// RequestReply notes that the server has asked for a status update.
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

// CheckPassed notes that the running catalog check found no change. It covers the stream up to where it was received
// when the check began.
func (r *Rule) CheckPassed() {
	r.check.running = false
	r.check.passed = max(r.check.passed, r.check.from)
}

// CheckUndecided notes that the running catalog check has no result, because a change has not been committed.
func (r *Rule) CheckUndecided() { r.check.running = false }

// Checking reports whether a catalog check is running.
func (r *Rule) Checking() bool { return r.check.running }

// LastCheck returns when the last catalog check began.
func (r *Rule) LastCheck() time.Time { return r.check.began }

// Mark notes whether the session reads the position record, for which it stores a mark: catalog checks keep the lease
// meanwhile, as while a record is stored.
func (r *Rule) Mark(is bool) { r.record.marking = is }

// Save notes that a position record that allows pos is about to be stored.
func (r *Rule) Save(pos pglogrepl.LSN) {
	r.record.saving, r.record.position = true, pos
	if !r.resume.Expecting() { // meanwhile a record does not have the events acknowledged since
		r.record.acked = r.tracker.Progress()
	}
}

// unrecorded reports whether Kafka has acknowledged events since the last record was written.
func (r *Rule) unrecorded() bool {
	return r.record.required && !r.frozen && !r.resume.Expecting() && r.tracker.Progress() != r.record.acked
}

// Stored notes that Kafka has stored the last record.
func (r *Rule) Stored() { r.record.saving, r.record.allowed = false, r.record.position }

// NotStored notes that Kafka has refused the last record.
func (r *Rule) NotStored() { r.record.saving = false }

// Saving reports whether a position record is being stored.
func (r *Rule) Saving() bool { return r.record.saving }

// RequireRecords begins deduplicated delivery: only positions that a stored record allows are confirmed.
func (r *Rule) RequireRecords() { r.record.required = true }

// RecordsRequired reports whether only positions that a stored record allows are confirmed.
func (r *Rule) RecordsRequired() bool { return r.record.required }

// Allowed returns the highest position that a stored record allows.
func (r *Rule) Allowed() pglogrepl.LSN { return r.record.allowed }

// Sent notes a status update, and reports whether it moved the slot.
func (r *Rule) Sent(now time.Time, pos pglogrepl.LSN) (moved bool) {
	moved = pos > r.confirmed
	r.confirmed, r.status.at, r.status.replyRequested = pos, now, false
	return moved
}

// Repeated notes a status update that repeated the last position.
func (r *Rule) Repeated(now time.Time) { r.status.at = now }

// SilentFor returns the time since the last status update.
func (r *Rule) SilentFor(now time.Time) time.Duration { return now.Sub(r.status.at) }

// Wanted returns the highest position that is acknowledged and checked. While the history is not verified, it is the
// confirmed position.
func (r *Rule) Wanted() pglogrepl.LSN {
	if r.frozen || r.resume.Expecting() {
		return r.confirmed
	}
	return max(r.confirmed, min(r.tracker.Acked(), r.check.passed))
}

// Safe returns the position that a status update may carry now. It never decreases.
func (r *Rule) Safe() pglogrepl.LSN {
	if r.record.required {
		return max(r.confirmed, min(r.Wanted(), r.record.allowed))
	}
	return r.Wanted()
}

// Next returns the actions to take now. A requested check counts as begun.
func (r *Rule) Next(now time.Time) (a Actions) {
	if r.mayBegin() && !now.Before(r.roundDue()) {
		r.round.step, r.round.began = checking, now
		a.Check = r.tracker.Acked() > r.check.passed && r.BeginCheck(now)
	}
	if r.round.step == checking && !r.record.saving {
		late := now.Sub(r.round.began) >= recordInterval && now.Sub(r.record.at) >= recordInterval
		switch want := max(r.Wanted(), r.record.allowed); {
		case !r.check.running:
			r.round.step = recording
			if r.record.required && want > r.record.allowed || r.unrecorded() {
				a.Record = want
			}
		case late && r.unrecorded(): // the check takes long
			a.Record, r.record.at = want, now
		}
		if a.Record != 0 {
			r.Save(a.Record)
		}
	}
	if r.round.step == recording && !r.record.saving {
		r.round.step = idle
		if r.Safe() > r.confirmed && r.statusDue() {
			r.status.round, a.Status = r.round.began, true
		}
	}
	keep := r.Keep(now)
	a.Check = a.Check || keep.Check
	a.Status = a.Status || keep.Status || r.status.replyRequested && (r.Safe() > r.confirmed || r.SilentFor(now) >= replyInterval)
	return a
}

// Keep returns the actions that keep the connection and the lease while nothing more is confirmed. They contain no
// record. A requested check counts as begun.
func (r *Rule) Keep(now time.Time) (a Actions) {
	a.Check = now.Sub(r.check.began) >= r.checkInterval() && r.BeginCheck(now)
	a.Status = r.SilentFor(now) >= r.pacing.Silence
	return a
}

// Wake returns when to call Next again at the latest. Acknowledgements do not wake the session, so Wake bounds how
// long one goes unnoticed. The end of a catalog check wakes the session, and so does the answer about a record.
func (r *Rule) Wake(now time.Time) time.Time {
	next := earlier(now.Add(min(r.roundInterval(), lessSlack(recordInterval), r.pacing.Check)), r.status.at.Add(r.pacing.Silence))
	if !r.check.running {
		next = earlier(next, r.check.began.Add(r.checkInterval()))
	}
	if r.mayBegin() {
		next = earlier(next, r.roundDue())
	}
	if r.status.replyRequested {
		next = earlier(next, r.status.at.Add(replyInterval))
	}
	return next
}

// WakeKeep returns when to call Keep again at the latest.
func (r *Rule) WakeKeep(now time.Time) time.Time {
	next := now.Add(min(r.pacing.Status, r.pacing.Silence, time.Second))
	if !r.check.running {
		next = earlier(next, r.check.began.Add(r.checkInterval()))
	}
	return next
}

// checkInterval returns the longest time between two catalog checks.
func (r *Rule) checkInterval() time.Duration {
	if events, _ := r.tracker.InFlight(); events > 0 || r.record.saving || r.record.marking {
		return min(r.pacing.Check, MaxCheckInterval)
	}
	return MaxCheckInterval
}

// mayBegin reports whether a round has a position to confirm, or something to record, and no check or record is under
// way.
func (r *Rule) mayBegin() bool {
	if r.frozen || r.resume.Expecting() || r.round.step != idle || r.check.running || r.record.saving {
		return false
	}
	acked := r.tracker.Acked()
	return acked > r.confirmed || r.record.required && acked > r.record.allowed || r.unrecorded()
}

// roundDue returns when the next round may begin.
func (r *Rule) roundDue() time.Time { return r.round.began.Add(r.roundInterval()) }

// roundInterval returns the shortest time between the beginnings of two rounds.
func (r *Rule) roundInterval() time.Duration {
	if r.record.required {
		return lessSlack(recordInterval)
	}
	return lessSlack(r.pacing.Status)
}

// statusDue reports whether the current round may move the slot. Records may be stored more often than the slot moves.
func (r *Rule) statusDue() bool {
	return r.round.began.Sub(r.status.round) >= lessSlack(r.pacing.Status)
}

// lessSlack returns the interval less the time that a round may take.
func lessSlack(d time.Duration) time.Duration { return d - min(roundSlack, d/20) }

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
