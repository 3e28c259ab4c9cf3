package relay

import (
	"time"

	"github.com/jackc/pglogrepl"
)

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
	DeliversTo        string     `json:"delivers_to"` // the name of the sink
	Sink              string     `json:"sink"`        // "ok" or the error
	RetainedWALBytes  uint64     `json:"slot_retained_wal_bytes"`
	SafeWALBytes      *int64     `json:"slot_safe_wal_bytes,omitempty"` // nil: the server sets no limit, or the slot is not known yet
	WALStatus         string     `json:"slot_wal_status,omitempty"`
	SlotActivePID     uint32     `json:"slot_active_pid,omitempty"`
	LastError         string     `json:"last_error,omitempty"`
	LastErrorAt       *time.Time `json:"last_error_at,omitempty"`
	Troubles          []Trouble  `json:"troubles"` // the newest ones, oldest first
	DeliveredAnything bool       `json:"delivered_anything"`
	Delivery          string     `json:"delivery"` // deduplicated or at_least_once
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
		LagBytes: r.lagBytes(), LagSeconds: r.lagSeconds(now), DeliversTo: r.cfg.Sink, Sink: "no session",
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
	if st.Delivery = "at_least_once"; r.cfg.Deduplication.Slot != "" {
		st.Delivery = "deduplicated"
	}
	st.NoProgress = v.noProgress()
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
		st.Sink = "ok"
		if err := s.sink.Healthy(); err != nil {
			st.Sink = err.Error()
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
	case st.Sink != "ok":
		return false, r.cfg.Sink + ": " + st.Sink
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

// lagSeconds returns the age of the oldest unacknowledged commit, or the time for which something has waited that
// cannot be seen in flight. It keeps growing without a session, and after a reconnect until the session has caught
// up.
func (r *Relay) lagSeconds(now time.Time) float64 {
	v := &r.view
	hidden := 0.0
	for _, since := range []time.Time{v.waits, v.progress.unconfirmed(v.confirmed)} {
		if !since.IsZero() {
			hidden = max(hidden, now.Sub(since).Seconds())
		}
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
