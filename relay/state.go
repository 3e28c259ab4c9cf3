package relay

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/replication"
)

// State is the state of the relay.
type State string

// The states. waiting_for_standby is for a server that withholds rows until the standbys named in
// synchronized_standby_slots have them, waiting_for_postgres for one that decodes a large transaction and sends
// nothing meanwhile. waiting_for_position_topic is like parked, until the position topic can be used.
const (
	Starting           State = "starting"
	WaitingForSlot     State = "waiting_for_slot"
	Streaming          State = "streaming"
	Backpressured      State = "backpressured"
	WaitingForTopic    State = "waiting_for_topic"
	WaitingForStandby  State = "waiting_for_standby"
	WaitingForPostgres State = "waiting_for_postgres"
	WaitingForSink     State = "waiting_for_sink"
	WaitingForPosition State = "waiting_for_position_topic"
	Reconnecting       State = "reconnecting"
	Parked             State = "parked"
	Draining           State = "draining"
	Failed             State = "failed"
)

var states = []State{
	Starting, WaitingForSlot, Streaming, Backpressured, WaitingForTopic, WaitingForStandby, WaitingForPostgres, WaitingForSink, WaitingForPosition,
	Reconnecting, Parked, Draining, Failed,
}

// view is the part of the relay's state that other goroutines read. Relay.mu guards it.
type view struct {
	state     State
	reason    string
	label     string    // a change of label is a change of reason
	since     time.Time // when the state began
	changed   time.Time // when state or label last changed
	remind    time.Time // when the warning that events are waiting is due
	repeated  int       // how often the state was set again without a change
	beat      time.Time // last tick of the main loop
	delivered bool      // this process has had an acknowledgement

	session     *session  // nil between sessions
	stopped     time.Time // when the last session ended, or the oldest commit that was unacknowledged then
	unacked     time.Time // that commit, while there is no session; zero: none was known
	caughtUp    bool      // this session has read up to the end of WAL at its start
	lastCommit  time.Time // of this session; zero before its first
	received    pglogrepl.LSN
	confirmed   pglogrepl.LSN
	confirmedAt time.Time
	newest      time.Time // commit time of the newest transaction that any session has read
	acked       time.Time // last acknowledgement of earlier sessions
	lastError   string
	lastErrorAt time.Time
	troubles    []Trouble

	held   heldView
	slot   *replication.Slot
	slotAt time.Time

	progress progress
	waits    time.Time // since when something is known to wait that is not in flight; zero: nothing is
}

// setState sets the state and its reason, and logs each change once.
func (r *Relay) setState(s State, reason string) { r.setStateOf(s, reason, reason) }

// setStateOf is setState for reasons whose text differs at each attempt: the label shows whether the reason has
// changed.
func (r *Relay) setStateOf(s State, label, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := &r.view
	v.beat = r.clock()
	if reason != "" {
		v.lastError, v.lastErrorAt = reason, v.beat
		if s != Backpressured { // it is normal during a backlog
			v.noteTrouble(s, label, reason, v.beat)
		}
	}
	if v.state == s && v.label == label {
		v.reason = reason
		v.repeated++
		return
	}
	level, after := slog.LevelInfo, remindEvery
	switch s {
	case Failed, Parked, WaitingForTopic, WaitingForPostgres, WaitingForSink, WaitingForPosition:
		level = slog.LevelWarn
	case Reconnecting: // it is usually over soon
		after = remindFirst
	}
	attrs := append([]any{"state", string(s), "was", string(v.state)}, v.duration()...)
	r.log.Log(context.Background(), level, "state", append(attrs, "reason", reason)...)
	v.changed, v.remind, v.repeated = v.beat, v.beat.Add(after), 0
	if v.state != s {
		v.since = v.beat
	}
	v.state, v.label, v.reason = s, label, reason
}

const (
	// remindFirst is how long reconnecting may take before it is a warning, remindEvery how often the warning is repeated.
	remindFirst = 10 * time.Second
	remindEvery = time.Minute
)

// duration returns the attributes for how long the state and label have lasted, and how often they were set again.
func (v *view) duration() []any {
	attrs := []any{"for", v.beat.Sub(v.changed).Round(time.Millisecond).String()}
	if v.repeated > 0 {
		attrs = append(attrs, "repeated", v.repeated)
	}
	return attrs
}

// endState sets the state to streaming if it is s.
func (r *Relay) endState(s State) {
	r.mu.Lock()
	is := r.view.state == s
	r.mu.Unlock()
	if is {
		r.setState(Streaming, "")
	}
}

// setLate sets a state in which something waits for longer than usual, unless the relay waits for something else
// already. While it lasts, only its reason changes.
func (r *Relay) setLate(s State, label, reason string) {
	r.mu.Lock()
	v := &r.view
	flows := v.state == Streaming || v.state == Backpressured || v.isLate()
	same := v.state == s && v.label == label
	if same {
		v.reason = reason
	}
	r.mu.Unlock()
	if flows && !same {
		r.setStateOf(s, label, reason)
	}
}

// endLate ends the state of setLate.
func (r *Relay) endLate() {
	r.mu.Lock()
	late := r.view.isLate()
	r.mu.Unlock()
	if late {
		r.setState(Streaming, "")
	}
}

func (v *view) isLate() bool { return v.state == WaitingForSink || v.state == WaitingForPostgres }

// setReason updates the reason of a state without a log line, while it is the present one.
func (r *Relay) setReason(s State, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.view.state == s {
		r.view.reason = reason
	}
}

// tick notes that the main loop is alive, and repeats the warning about a state in which events wait.
func (r *Relay) tick() {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := &r.view
	v.beat = r.clock()
	switch v.state {
	case Failed, Parked, WaitingForTopic, WaitingForStandby, WaitingForPostgres, WaitingForSink, WaitingForPosition, Reconnecting:
		if !v.beat.Before(v.remind) {
			r.log.Warn("events are waiting", append([]any{"state", string(v.state), "reason", v.reason}, v.duration()...)...)
			v.remind = v.beat.Add(remindEvery)
		}
	}
}

func (r *Relay) attach(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := &r.view
	v.session, v.caughtUp, v.received, v.lastCommit = s, false, s.rule.ReceivedUpTo(), time.Time{}
	v.slotAt = r.clock() // the slot was read when the session opened
	v.confirmed = s.rule.Confirmed()
}

func (r *Relay) detach(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := &r.view
	oldest, waits := s.tracker.Oldest()
	switch {
	case waits:
		v.stopped, v.unacked = oldest.CommitTime, oldest.CommitTime
	case v.caughtUp:
		v.stopped, v.unacked = r.clock(), time.Time{}
	case !s.lastCommit.Before(v.stopped): // else the session has not read again what earlier ones have not delivered
		v.stopped, v.unacked = s.lastCommit, time.Time{}
	}
	v.session, v.waits = nil, time.Time{}
	v.delivered = v.delivered || s.tracker.AckedAny()
	v.received, v.confirmed = s.rule.ReceivedUpTo(), s.rule.Confirmed()
	v.acked = maxTime(v.acked, s.ackedAt())
	v.newest = maxTime(v.newest, s.lastCommit)
}

// publishPositions publishes the session's positions.
func (r *Relay) publishPositions(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := &r.view
	v.received, v.confirmed = s.rule.ReceivedUpTo(), s.rule.Confirmed()
	v.caughtUp = v.caughtUp || s.rule.ReceivedUpTo() >= s.stream.Identity().WALEnd
	v.lastCommit, v.waits = s.lastCommit, s.waits()
	v.newest = maxTime(v.newest, s.lastCommit)
}

// publishConfirmed publishes the position of a status update.
func (r *Relay) publishConfirmed(confirmed pglogrepl.LSN, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.view.confirmed, r.view.confirmedAt = confirmed, now
}

func (r *Relay) delivered() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.view.delivered
}

func (r *Relay) publishSlot(s *replication.Slot) {
	r.mu.Lock()
	r.view.slot, r.view.slotAt = s, r.clock()
	r.mu.Unlock()
	r.met.slot.set(s)
}

// slotUnwatched reports whether the slot was not read lately. A session reads it regularly.
func (r *Relay) slotUnwatched() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	age := r.clock().Sub(r.view.slotAt)
	return age >= 2*slotEvery || r.view.session == nil && age >= slotEvery
}

// waitsForKafka reports whether the next session waits for Kafka.
func (r *Relay) waitsForKafka() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.view.state == Parked || r.view.state == WaitingForPosition || r.view.state == Reconnecting && r.view.label == "sink"
}
