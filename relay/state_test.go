package relay

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxcdc/outboxcdc/replication"
)

// TestStandby: another instance has the slot. The relay reads the slot once a second, and takes it over when it is
// free.
func TestStandby(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.pg.held = true
		b.start()
		for range 5 {
			b.sleep(time.Minute)
			b.want(WaitingForSlot)
			if age := b.relay.Alive(); age > 2*time.Second {
				b.Errorf("the main loop has not shown that it lives for %s", age)
			}
		}
		if len(b.pg.opens) != 1 || b.pg.waits != 1 {
			b.Errorf("%d times opened, %d waits", len(b.pg.opens), b.pg.waits)
		}
		b.logged(1, "state=waiting_for_slot")
		b.pg.edit(func() { b.pg.held = false })
		b.pg.commit("a")
		b.sleep(2 * time.Second)
		b.want(Streaming)
		b.delivered("a")
	})
}

// TestStandbyIsTooLate: a third instance takes the slot first.
func TestStandbyIsTooLate(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.pg.held = true
		b.start()
		b.pg.edit(func() {
			b.pg.held = false
			b.pg.openErr = func(n int) error {
				if n < 4 {
					return &replication.Error{Kind: replication.SlotActive, Op: "start slot", Err: errGone}
				}
				return nil
			}
		})
		b.sleep(time.Minute)
		b.want(Streaming)
		if len(b.pg.opens) != 4 {
			b.Errorf("%d times opened", len(b.pg.opens))
		}
	})
}

// TestStateSet: exactly one state is 1 at any time.
func TestStateSet(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		seen := map[State]bool{}
		look := func() {
			b.Helper()
			one := State("")
			n := 0
			for _, m := range b.family("state") {
				if m.GetGauge().GetValue() == 1 {
					n++
					one = State(m.GetLabel()[0].GetValue())
				}
			}
			if n != 1 || one != b.state() {
				b.Errorf("%d states are 1, one of them %s; the state is %s", n, one, b.state())
			}
			seen[one] = true
			if len(b.family("state")) != len(states) {
				b.Errorf("%d states shown", len(b.family("state")))
			}
		}
		look()
		b.pg.held = true
		b.start()
		look()
		b.pg.edit(func() { b.pg.held = false })
		b.sleep(2 * time.Second)
		look()
		b.pg.stream().notice(&replication.Waiting{Message: "waiting"})
		synctest.Wait()
		look()
		b.pg.commit("a@new")
		b.sleep(time.Second) // a look-up may take so long
		if s := b.relay.Status().State; s == WaitingForTopic {
			b.Error("a second's look-up is a state")
		}
		b.sleep(2 * time.Second)
		look()
		b.kafka.create("new")
		b.sleep(time.Second)
		b.kafka.hold()
		for range 150 {
			b.pg.commit("b")
		}
		b.sleep(time.Second)
		look()
		b.kafka.edit(func() { b.kafka.probeErr = errKafka })
		b.sleep(time.Minute)
		look()
		b.kafka.edit(func() { b.kafka.probeErr = nil; b.kafka.openErr = func(int) error { return errKafka } })
		b.sleep(time.Minute)
		look()
		b.kafka.edit(func() { b.kafka.openErr = nil })
		for b.relay.Status().InFlightEvents == 0 { // it parks now and then, but shutdown has to meet a session
			b.sleep(time.Second)
		}
		b.stop()
		synctest.Wait()
		look()
		_ = b.result(time.Hour)
		bubbleStates := []State{Starting, WaitingForSlot, Streaming, WaitingForStandby, WaitingForTopic, Backpressured, Parked, Reconnecting, Draining}
		for _, s := range bubbleStates {
			if !seen[s] {
				b.Errorf("state %s was never seen", s)
			}
		}
	})
}

// TestLagSeconds: the lag is the age of the oldest unacknowledged commit. It keeps growing while not streaming, and
// until a new session has caught up.
func TestLagSeconds(t *testing.T) {
	lag := func(b *bench) float64 { return b.metric("replication_lag_seconds") }
	near := func(b *bench, want float64) {
		b.Helper()
		if got := lag(b); got < want-0.1 || got > want+1.1 {
			b.Errorf("lag %.1f s, want %.1f", got, want)
		}
		if st := b.relay.Status().LagSeconds; st != lag(b) {
			b.Errorf("status says %v, the metric %v", st, lag(b))
		}
	}
	waits := func(b *bench, since time.Duration) { // 0: no event that waits is known
		b.Helper()
		switch at := b.relay.Status().OldestUnacked; {
		case (at == nil) != (since == 0):
			b.Errorf("the oldest commit that Kafka has not acknowledged is %v", at)
		case at != nil && (time.Since(*at) < since || time.Since(*at) > since+2*time.Second):
			b.Errorf("that commit is %s old, want %s", time.Since(*at), since)
		}
	}
	bubble(t, testConfig(), func(b *bench) {
		b.pg.edit(func() { b.pg.down = true })
		b.start()
		b.sleep(20 * time.Second)
		near(b, 20) // since the process began
		waits(b, 0)
		b.pg.edit(func() { b.pg.down = false })
		b.sleep(time.Minute)
		near(b, 0)
		b.sleep(time.Minute)
		near(b, 0) // idle
		waits(b, 0)
		b.kafka.hold()
		b.pg.commit("a")
		b.sleep(10 * time.Second)
		b.pg.commit("b")
		b.sleep(5 * time.Second)
		near(b, 15)
		b.kafka.ack("a")
		near(b, 5)
		b.pg.edit(func() { b.pg.down = true })
		b.pg.cut()
		b.sleep(100 * time.Second)
		near(b, 105) // no session, and b still waits
		waits(b, 105*time.Second)
		b.counts(0, "replication_connected")
		b.pg.edit(func() { b.pg.down = false })
		b.sleep(time.Minute)
		near(b, 165) // a session, with b in flight
		waits(b, 165*time.Second)
		if b.state() != Streaming {
			b.sleep(30 * time.Second)
		}
		b.kafka.ack()
		b.sleep(time.Second)
		near(b, 0)
		// Caught up, then disconnected: new events are not noticed.
		b.pg.edit(func() { b.pg.down = true })
		b.pg.cut()
		b.sleep(40 * time.Second)
		near(b, 40)
		waits(b, 0)
	})
}

// TestLagWhileCatchingUp: while a session reads a backlog, the lag is the age of the transactions that it reads.
func TestLagWhileCatchingUp(t *testing.T) {
	cfg := testConfig()
	cfg.MaxEvents = 2
	bubble(t, cfg, func(b *bench) {
		for _, id := range []string{"a", "b", "c", "d"} {
			b.pg.commit(id)
			b.sleep(100 * time.Second)
		}
		b.kafka.hold()
		b.start()
		b.sleep(time.Second)
		if got := b.metric("replication_lag_seconds"); got < 400 || got > 403 {
			b.Errorf("lag %v, want 401", got)
		}
		b.kafka.ack("a", "b")
		b.sleep(time.Second)
		if got := b.metric("replication_lag_seconds"); got < 200 || got > 204 {
			b.Errorf("lag %v, want 202", got)
		}
		b.kafka.ack("c", "d")
		b.sleep(2 * time.Second)
		b.counts(0, "replication_lag_seconds")
	})
}

func TestMetrics(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.kafka.hold()
		b.start()
		b.pg.commit("a", "b")
		b.pg.commit("c")
		end := b.pg.foreign()
		b.sleep(2 * time.Second)
		for name, want := range map[string]float64{
			"events_received_total": 3, "events_skipped_total": 0, "transactions_total": 2, "event_latency_seconds": 0,
			"inflight_events": 3, "inflight_limit_events": 100, "unconfirmed_transactions": 2,
			"replication_connected": 1, "confirmed_position_bytes": firstLSN, "received_position_bytes": float64(end),
			"replication_lag_bytes": float64(end - firstLSN),
		} {
			b.counts(want, name)
		}
		b.kafka.ack()
		b.sleep(16 * time.Second)
		for name, want := range map[string]float64{
			"event_latency_seconds": 3, "inflight_events": 0, "inflight_bytes": 0, "unconfirmed_transactions": 0,
			"confirmed_position_bytes": float64(end), "replication_lag_bytes": 0, "slot_retained_wal_bytes": 0x100,
			"slot_unconfirmed_wal_bytes": 0, "slot_active": 1,
		} {
			b.counts(want, name)
		}
		b.counts(1, "slot_wal_status", "status=reserved")
		b.counts(0, "slot_wal_status", "status=lost")
	})
}

// TestSlotIsWatchedWhileParked: the slot's metrics are updated without a session.
func TestSlotIsWatchedWhileParked(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.kafka.edit(func() { b.kafka.probeErr = errKafka })
		b.kafka.hold()
		b.start()
		b.pg.commit("a")
		b.sleep(time.Minute)
		b.want(Parked)
		before := b.metric("slot_unconfirmed_wal_bytes")
		b.pg.foreign()
		b.sleep(19 * time.Second)
		if got := b.metric("slot_unconfirmed_wal_bytes"); got != before+0x1000 {
			b.Errorf("unconfirmed %v, want %v more than %v", got, 0x1000, before)
		}
		b.counts(0, "slot_active")
		b.pg.edit(func() { b.pg.down = true })
		b.sleep(31 * time.Second)
		if got := b.metric("slot_poll_errors_total"); got < 1 || got > 3 {
			b.Errorf("slot_poll_errors_total is %v", got)
		}
	})
}

func TestStatus(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		if st := b.relay.Status(); st.State != Starting || st.Sink != "no session" {
			b.Errorf("%+v", st)
		}
		b.start()
		b.pg.commit("a")
		b.sleep(16 * time.Second)
		st := b.relay.Status()
		if st.State != Streaming || st.Received != "0/1030" || st.Acked != "0/1030" || st.Confirmed != "0/1030" || st.ConfirmedAt == nil ||
			st.SystemID != 7 || st.Timeline != 1 || st.Sink != "ok" || st.WALStatus != "reserved" || !st.DeliveredAnything {
			b.Errorf("%+v", st)
		}
		if ok, why := b.relay.Ready(); !ok {
			b.Errorf("not ready: %s", why)
		}
		b.kafka.edit(func() { b.kafka.healthErr = errKafka })
		if ok, why := b.relay.Ready(); ok || why != "Kafka: broken pipe" {
			b.Errorf("ready %v: %s", ok, why)
		}
	})
}

// TestWaitingEventIsRemembered: an event that was read and not delivered is known to wait, also after a session that
// ended before it was read again.
func TestWaitingEventIsRemembered(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.start()
		b.sleep(time.Minute)
		b.kafka.hold()
		committed := time.Now()
		b.pg.commit("a")
		b.sleep(time.Second)
		b.pg.edit(func() {
			b.pg.stillborn = 1
			b.pg.openErr = func(n int) error {
				if n > 2 {
					return errGone
				}
				return nil
			}
		})
		b.pg.cut()
		b.sleep(10 * time.Second)
		st := b.relay.Status()
		if b.pg.sessions() < 2 || st.State != Reconnecting {
			b.Fatalf("%d sessions, %+v", b.pg.sessions(), st)
		}
		if st.OldestUnacked == nil || !st.OldestUnacked.Equal(committed) {
			b.Errorf("the oldest commit is %v, want %v", st.OldestUnacked, committed)
		}
		b.pg.edit(func() { b.pg.openErr = nil })
		b.sleep(time.Minute)
		b.kafka.ack("a")
		b.sleep(10 * time.Second)
		b.pg.edit(func() { b.pg.stillborn = 1 })
		b.pg.cut()
		b.sleep(time.Second)
		if st := b.relay.Status(); st.OldestUnacked != nil {
			b.Errorf("the oldest commit is %v, and everything is delivered", st.OldestUnacked)
		}
	})
}
