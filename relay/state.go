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
// synchronized_standby_slots have them, waiting_for_postgres for one that decodes a large transaction and sends nothing meanwhile.
const (
	Starting           State = "starting"
	WaitingForSlot     State = "waiting_for_slot"
	Streaming          State = "streaming"
	Backpressured      State = "backpressured"
	WaitingForTopic    State = "waiting_for_topic"
	WaitingForStandby  State = "waiting_for_standby"
	WaitingForPostgres State = "waiting_for_postgres"
	WaitingForKafka    State = "waiting_for_kafka"
	Reconnecting       State = "reconnecting"
	Parked             State = "parked"
	Draining           State = "draining"
	Failed             State = "failed"
)

var states = []State{
	Starting, WaitingForSlot, Streaming, Backpressured, WaitingForTopic, WaitingForStandby, WaitingForPostgres, WaitingForKafka, Reconnecting, Parked,
	Draining, Failed,
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

	slot   *replication.Slot
	slotAt time.Time

	progress progress
	waits    time.Time // since when something is known to wait that is not in flight; zero: nothing is

	deduplicating    bool
	notDeduplicating string // why delivery is only at least once although deduplicated is configured
}

// setState sets the state and its reason, and logs each change once.
func (r *Relay) setState(s State, reason string) { r.setStateOf(s, reason, reason) }

// setStateOf is setState for reasons whose text differs at each attempt: the label shows whether the reason has changed.
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
	case Failed, Parked, WaitingForTopic, WaitingForPostgres, WaitingForKafka:
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

// setLate sets a state in which something waits for longer than usual, unless the relay waits for something else already. While it lasts,
// only its reason changes.
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

func (v *view) isLate() bool { return v.state == WaitingForKafka || v.state == WaitingForPostgres }

// setReason updates the reason of the current state without a log line.
func (r *Relay) setReason(reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.view.reason = reason
}

// tick notes that the main loop is alive, and repeats the warning about a state in which events wait.
func (r *Relay) tick() {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := &r.view
	v.beat = r.clock()
	switch v.state {
	case Failed, Parked, WaitingForTopic, WaitingForStandby, WaitingForPostgres, WaitingForKafka, Reconnecting:
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
	v.unacked = time.Time{}
	if oldest, ok := s.tracker.Oldest(); ok {
		v.stopped, v.unacked = oldest.CommitTime, oldest.CommitTime
	} else if v.caughtUp {
		v.stopped = r.clock()
	} else if s.lastCommit.After(v.stopped) {
		v.stopped = s.lastCommit
	}
	v.session, v.waits = nil, time.Time{}
	v.delivered = v.delivered || s.tracker.AckedAny()
	v.received, v.confirmed = s.rule.ReceivedUpTo(), s.rule.Confirmed()
	v.acked = maxTime(v.acked, s.ackedAt())
	v.newest = maxTime(v.newest, s.lastCommit)
}

// progress publishes the session's positions.
func (r *Relay) progress(s *session) {
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
	return r.view.state == Parked || r.view.state == Reconnecting && r.view.label == "kafka"
}

// Status is what /status shows.
type Status struct {
	State             State      `json:"state"`
	Reason            string     `json:"reason,omitempty"`
	Since             time.Time  `json:"since"`
	LagBytes          uint64     `json:"lag_bytes"`
	LagSeconds        float64    `json:"lag_seconds"`
	OldestUnacked     *time.Time `json:"oldest_unacknowledged_commit,omitempty"` // nil: no event that waits is known; one may wait all the same if there is a lag
	InFlightEvents    int        `json:"in_flight_events"`
	InFlightBytes     int64      `json:"in_flight_bytes"`
	Transactions      int        `json:"unconfirmed_transactions"`
	Received          string     `json:"received_lsn"`
	Acked             string     `json:"acked_lsn,omitempty"`
	Confirmed         string     `json:"confirmed_lsn"`
	ConfirmedAt       *time.Time `json:"confirmed_at,omitempty"`
	SystemID          uint64     `json:"system_id,omitempty,string"`
	Timeline          int32      `json:"timeline,omitempty"`
	WaitingForTopics  []string   `json:"waiting_for_topics,omitempty"`
	Kafka             string     `json:"kafka"` // "ok" or the error
	RetainedWALBytes  uint64     `json:"slot_retained_wal_bytes"`
	SafeWALBytes      *int64     `json:"slot_safe_wal_bytes,omitempty"` // nil: the server sets no limit, or the slot is not known yet
	WALStatus         string     `json:"slot_wal_status,omitempty"`
	SlotActivePID     uint32     `json:"slot_active_pid,omitempty"`
	LastError         string     `json:"last_error,omitempty"`
	LastErrorAt       *time.Time `json:"last_error_at,omitempty"`
	Troubles          []Trouble  `json:"troubles"` // the newest ones, oldest first
	DeliveredAnything bool       `json:"delivered_anything"`
	// Delivery is deduplicated or at_least_once, NotDeduplicating why it is not deduplicated although that is configured.
	Delivery         string `json:"delivery"`
	NotDeduplicating string `json:"not_deduplicating,omitempty"`
	// NoProgress is why several consecutive sessions have delivered nothing new.
	NoProgress string `json:"no_progress,omitempty"`
}

// Status returns a snapshot.
func (r *Relay) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := &r.view
	now := r.clock()
	st := Status{
		Since: v.since, Received: v.received.String(), Confirmed: v.confirmed.String(),
		LagBytes: r.lagBytes(), LagSeconds: r.lagSeconds(now), Kafka: "no session",
		SystemID: r.view.systemID(), DeliveredAnything: v.delivered, LastError: v.lastError,
		Troubles: append([]Trouble{}, v.troubles...),
	}
	st.State, st.Reason = v.shown()
	if t := v.oldestUnacked(); !t.IsZero() {
		st.OldestUnacked = &t
	}
	if !v.confirmedAt.IsZero() {
		t := v.confirmedAt
		st.ConfirmedAt = &t
	}
	if !v.lastErrorAt.IsZero() {
		t := v.lastErrorAt
		st.LastErrorAt = &t
	}
	if st.Delivery = "at_least_once"; r.cfg.Deduplication.Slot != "" && v.notDeduplicating == "" {
		st.Delivery = "deduplicated"
	}
	st.NotDeduplicating, st.NoProgress = v.notDeduplicating, v.noProgress()
	if v.slot != nil {
		st.RetainedWALBytes, st.SafeWALBytes = v.slot.RetainedBytes(), v.slot.SafeWALBytes
		st.WALStatus, st.SlotActivePID = v.slot.WALStatus, v.slot.ActivePID
	}
	if s := v.session; s != nil {
		st.InFlightEvents, st.InFlightBytes = s.tracker.InFlight()
		st.Transactions = s.tracker.Transactions()
		acked := s.tracker.Acked()
		st.Acked, st.Received = acked.String(), max(acked, v.received).String() // received is published once a turn
		st.Timeline = s.stream.Identity().Timeline
		st.WaitingForTopics = s.sink.Waiting()
		st.Kafka = "ok"
		if err := s.sink.Healthy(); err != nil {
			st.Kafka = err.Error()
		}
		st.DeliveredAnything = v.delivered || s.tracker.AckedAny()
	}
	return st
}

func (v *view) systemID() uint64 {
	if v.session == nil {
		return 0
	}
	return v.session.stream.Identity().SystemID
}

// Ready reports whether events flow, or the reason why not.
func (r *Relay) Ready() (ok bool, reason string) {
	st := r.Status()
	switch {
	case st.State != Streaming && st.State != Backpressured:
		return false, string(st.State) + ": " + st.Reason
	case st.Kafka != "ok":
		return false, "kafka: " + st.Kafka
	}
	return true, ""
}

// Alive returns the time since the main loop's last turn. It grows only if the loop hangs.
func (r *Relay) Alive() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.clock().Sub(r.view.beat)
}

// oldestUnacked returns the oldest commit that was read and that Kafka has not acknowledged; zero: none is known.
func (v *view) oldestUnacked() time.Time {
	if v.session == nil {
		return v.unacked
	}
	oldest, _ := v.session.tracker.Oldest()
	return oldest.CommitTime
}

// lagSeconds returns the age of the oldest unacknowledged commit, or the time for which something has waited that cannot be seen in flight.
// It keeps growing without a session, and after a reconnect until the session has caught up.
func (r *Relay) lagSeconds(now time.Time) float64 {
	v := &r.view
	hidden := 0.0
	if !v.waits.IsZero() {
		hidden = now.Sub(v.waits).Seconds()
	}
	return max(r.lagInFlight(now), hidden)
}

func (r *Relay) lagInFlight(now time.Time) float64 {
	v := &r.view
	since := v.stopped
	if v.session != nil {
		oldest, ok := v.session.tracker.Oldest()
		switch {
		case ok:
			since = oldest.CommitTime
		case v.caughtUp:
			return 0
		case v.lastCommit.After(since): // the next transaction was committed later
			since = v.lastCommit
		}
	}
	return max(0, now.Sub(since).Seconds())
}

// serverEnd returns the server's end of WAL, as last seen.
func (r *Relay) serverEnd() pglogrepl.LSN {
	end := r.view.received
	if r.view.slot != nil {
		end = max(end, r.view.slot.ServerLSN)
	}
	return end
}

// lagBytes returns the WAL between the confirmed position and the server's end, as last seen.
func (r *Relay) lagBytes() uint64 {
	end := r.serverEnd()
	if end < r.view.confirmed {
		return 0
	}
	return uint64(end - r.view.confirmed)
}

// lastAck returns when Kafka last acknowledged an event; zero: it has not yet.
func (r *Relay) lastAck() time.Time {
	if s := r.view.session; s != nil {
		return maxTime(r.view.acked, s.ackedAt())
	}
	return r.view.acked
}
