package relay

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/replication"
)

// TestProgressOfSessions: a session makes progress if Kafka has acknowledged more, if more of the ends was read, if
// more was received and nothing waits, or if it had nothing to do.
func TestProgressOfSessions(t *testing.T) {
	acked := func(lsn pglogrepl.LSN) reach { return reach{acked: checkpoint.Position{CommitLSN: lsn}, received: 100} }
	first := ending{reach: acked(50), unfinished: 60, why: "x"}
	for name, row := range map[string]struct {
		next ending
		want bool
	}{
		"the same":                             {ending{reach: acked(50), unfinished: 60}, false},
		"more is acknowledged":                 {ending{reach: acked(51), unfinished: 60}, true},
		"more is received, and an event waits": {ending{reach: reach{acked(50).acked, 200, 0}, unfinished: 60}, false},
		"more is received, and nothing waits":  {ending{reach: reach{acked(50).acked, 200, 0}}, true},
		"more of the ends is read":             {ending{reach: reach{acked(50).acked, 100, 7}, unfinished: 60}, true},
		"nothing to do":                        {ending{reach: acked(50), caughtUp: true}, true},
		"nothing to do, and the server cannot send the next transaction": {ending{reach: acked(50), caughtUp: true, cannotSend: 100}, false},
		"it did not open": {ending{}, false},
	} {
		var p progress
		p.note(first)
		if got := p.note(row.next); got != row.want {
			t.Errorf("%s: progress %v", name, got)
		}
	}
}

// TestStuckSessions: after three sessions without progress the reason is known until more is acknowledged, and
// patience grows up to a limit.
func TestStuckSessions(t *testing.T) {
	var p progress
	for n := range 10 {
		if why := p.stuck(50, 0, false); (why != "") != (n >= stuckAfter) {
			t.Errorf("after %d sessions: %q", n, why)
		}
		p.note(ending{reach: reach{received: 100}, unfinished: 60, why: "no answer"})
	}
	if why := p.stuck(60, 0, false); !strings.Contains(why, "no answer") {
		t.Errorf("stuck: %q", why)
	}
	if why := p.stuck(61, 0, false) + p.stuck(60, 0, true); why != "" {
		t.Errorf("stuck: %q", why)
	}
	if got := p.patience(time.Second); got != maxPatience*time.Second {
		t.Errorf("patience %s", got)
	}
}

// TestNotReadyWhileTheOldestEventWaits: a relay whose oldest event Kafka does not acknowledge is not ready, also if
// later events of another partition are acknowledged, and says so once in the log.
func TestNotReadyWhileTheOldestEventWaits(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.start()
		b.pg.commit("a")
		b.sleep(10 * time.Second)
		b.kafka.hold()
		b.pg.commit("b@u", "c")
		b.kafka.edit(func() { b.kafka.healthErr = errors.New("partition 3 of topic u: NOT_ENOUGH_REPLICAS") })
		for _, later := range []string{"d", "e", "f", "g", "h", "i", "j", "k"} {
			b.pg.commit(later)
			b.sleep(time.Second)
			b.kafka.ack(later)
		}
		b.want(WaitingForSink)
		if ok, why := b.relay.Ready(); ok || !strings.Contains(why, "NOT_ENOUGH_REPLICAS") {
			b.Errorf("ready %v: %s", ok, why)
		}
		if lag := b.relay.Status().LagSeconds; lag < 7 {
			b.Errorf("the lag is %v", lag)
		}
		if n := strings.Count(b.log.String(), "NOT_ENOUGH_REPLICAS"); n != 1 {
			b.Errorf("%d log lines", n)
		}
		b.kafka.edit(func() { b.kafka.healthErr = nil })
		b.kafka.ack("b", "c")
		b.sleep(3 * time.Second)
		b.want(Streaming)
	})
}

// TestLateReasonIsKept: the reason of a late event is shown, and why, also while reading is paused.
func TestLateReasonIsKept(t *testing.T) {
	cfg := testConfig()
	cfg.MaxEvents = 4
	bubble(t, cfg, func(b *bench) {
		b.start()
		b.kafka.hold()
		b.kafka.edit(func() { b.kafka.healthErr = errors.New("partition 3 of topic t: NOT_ENOUGH_REPLICAS") })
		b.pg.commit("a", "b", "c", "d", "e", "f")
		for range 20 {
			b.sleep(777 * time.Millisecond)
			st := b.relay.Status()
			if st.State == WaitingForSink && !strings.Contains(st.Reason, "NOT_ENOUGH_REPLICAS") {
				b.Fatalf("the reason is %q", st.Reason)
			}
		}
		b.want(WaitingForSink)
		if n := strings.Count(b.log.String(), "state=waiting_for_sink was"); n != 1 {
			b.Errorf("%d log lines", n)
		}
	})
}

// TestNotReadyUntilTheLateEventIsDelivered: a session that follows one whose oldest event was late is not ready
// before that event is delivered, whatever the earlier session delivered before it.
func TestNotReadyUntilTheLateEventIsDelivered(t *testing.T) {
	var p progress
	p.note(ending{reach: reach{acked: checkpoint.Position{CommitLSN: 50}, received: 100}, unfinished: 60, late: true, why: "no answer"})
	if why := p.stuck(60, 0, false); !strings.Contains(why, "no answer") {
		t.Errorf("stuck: %q", why)
	}
	if why := p.stuck(61, 0, false); why != "" {
		t.Errorf("stuck: %q", why)
	}
	p.note(ending{why: "no broker"}) // it did not open
	if why := p.stuck(60, 0, false); why == "" {
		t.Error("not stuck after a session that did not open")
	}
}

// TestReasonOfTheUnconfirmed: while catalog checks decide nothing, position records are stored all the same, each in a
// moment. The reason names the checks, also in such a moment.
func TestReasonOfTheUnconfirmed(t *testing.T) {
	deduplicating(t, func(b *bench, p *fakePositions) {
		b.start()
		b.sleep(10 * time.Second)
		p.locked(func() { p.slow = 500 * time.Millisecond })
		b.pg.edit(func() { b.pg.checkErr = func(int) error { return replication.ErrUndecided } })
		for i := range 300 {
			b.pg.commit(fmt.Sprintf("e%d", i))
			b.sleep(130 * time.Millisecond)
			ok, why := b.relay.Ready()
			if i > 100 && (ok || !strings.Contains(why, "no catalog check has passed")) {
				b.Fatalf("event %d: ready %v: %s", i, ok, why)
			}
		}
		b.pg.edit(func() { b.pg.checkErr = nil })
		b.sleep(5 * time.Second)
		if ok, why := b.relay.Ready(); !ok {
			b.Errorf("not ready: %s", why)
		}
	})
}
