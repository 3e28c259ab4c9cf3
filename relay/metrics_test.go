package relay

import (
	"context"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/decoder"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
)

// TestSlotMetrics: the metrics follow the slot's row in pg_replication_slots.
func TestSlotMetrics(t *testing.T) {
	m := newSlotMetrics(prometheus.NewRegistry(), "s")
	limit := func(n int64) *int64 { return &n }
	for _, c := range []struct {
		name                   string
		slot                   replication.Slot
		status, invalid        string
		retained, unconf, safe float64 // safe < 0: no limit
	}{
		{"no limit", replication.Slot{WALStatus: "reserved", RestartLSN: 100, ConfirmedFlush: 150, ServerLSN: 400}, "reserved", "", 300, 250, -1},
		{"a limit", replication.Slot{WALStatus: "extended", RestartLSN: 100, ConfirmedFlush: 400, ServerLSN: 400, SafeWALBytes: limit(77)}, "extended", "", 300, 0, 77},
		{"past it", replication.Slot{WALStatus: "unreserved", RestartLSN: 100, ConfirmedFlush: 500, ServerLSN: 400, SafeWALBytes: limit(-5)}, "unreserved", "", 300, 0, -5},
		{"lost, before 17", replication.Slot{WALStatus: "lost", ConfirmedFlush: 300, ServerLSN: 400}, "lost", "wal_removed", 0, 100, -1},
		{"lost, from 17", replication.Slot{WALStatus: "lost", Invalidation: "idle_timeout", ServerLSN: 400}, "lost", "idle_timeout", 0, 400, -1},
		{"a reason of tomorrow", replication.Slot{WALStatus: "lost", Invalidation: "moon", ServerLSN: 400}, "lost", "other", 0, 400, -1},
		{"well again", replication.Slot{WALStatus: "reserved", Active: true, Failover: true, RestartLSN: 400, ConfirmedFlush: 400, ServerLSN: 400}, "reserved", "", 0, 0, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			m.set(&c.slot)
			for what, v := range map[string][2]float64{
				"retained":    {testutil.ToFloat64(m.retained), c.retained},
				"unconfirmed": {testutil.ToFloat64(m.unconf), c.unconf},
				"active":      {testutil.ToFloat64(m.active), oneIf(c.slot.Active)},
				"failover":    {testutil.ToFloat64(m.failover), oneIf(c.slot.Failover)},
			} {
				if v[0] != v[1] {
					t.Errorf("%s: %v, want %v", what, v[0], v[1])
				}
			}
			switch n := testutil.CollectAndCount(m.safe); {
			case n != 0 && c.safe == -1:
				t.Errorf("safe: %v, and there is no limit", testutil.ToFloat64(m.safe))
			case c.safe != -1 && (n != 1 || testutil.ToFloat64(m.safe) != c.safe):
				t.Errorf("%d series of safe, want %v", n, c.safe)
			}
			for _, s := range walStatuses {
				if got := testutil.ToFloat64(m.status.WithLabelValues("s", s)); got != oneIf(s == c.status) {
					t.Errorf("status %s: %v", s, got)
				}
			}
			for _, s := range invalidations {
				if got := testutil.ToFloat64(m.invalid.WithLabelValues("s", s)); got != oneIf(s == c.invalid) {
					t.Errorf("invalidated %s: %v", s, got)
				}
			}
		})
	}
}

// TestTimestamps: a timestamp is 0 until the event has happened, and is kept between sessions.
func TestTimestamps(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		began := time.Now()
		wants := func(what string, at time.Time) {
			b.Helper()
			want := unix(at)
			if got := b.metric(what + "_timestamp_seconds"); got < want-0.01 || got > want+1.5 { // a status update follows within a second and a half
				b.Errorf("%s is %v, want %v", what, got, want)
			}
		}
		never := time.Time{}
		b.counts(unix(began), "start_time_seconds")
		b.start()
		b.sleep(time.Minute)
		wants("last_commit", never)
		wants("last_ack", never)
		b.kafka.hold()
		committed := time.Now()
		b.pg.commit("a")
		b.sleep(10 * time.Second)
		wants("last_commit", committed)
		wants("last_ack", never)
		acked := time.Now()
		b.kafka.ack("a")
		b.sleep(10 * time.Second)
		wants("last_ack", acked)
		wants("last_confirm", acked)
		b.pg.cut()
		b.sleep(time.Minute)
		wants("last_commit", committed)
		wants("last_ack", acked)
		wants("last_confirm", acked)
	})
}

// TestLargestRow: the metric has the largest message since the start of the process.
func TestLargestRow(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.start()
		large := strings.Repeat("x", 5000)
		for _, id := range []string{"a", large, "b"} {
			b.pg.commit(id)
			b.sleep(time.Second)
		}
		b.pg.cut()
		b.sleep(time.Minute)
		b.pg.commit("c")
		b.sleep(time.Minute)
		if got := b.metric("largest_row_bytes"); got < 15000 || got > 15200 { // id, key and payload
			b.Errorf("the largest row has %v bytes", got)
		}
	})
}

// TestServerEnd: the metric has the server's end of WAL, also if the WAL has no events.
func TestServerEnd(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.start()
		b.kafka.hold()
		b.pg.commit("a")
		end := b.pg.foreign()
		b.sleep(time.Minute)
		server, confirmed := b.metric("server_wal_end_position_bytes"), b.metric("confirmed_position_bytes")
		if server < float64(end) || server-confirmed != b.metric("replication_lag_bytes") || server == confirmed {
			b.Errorf("server at %v of %v, confirmed %v, lag %v", server, float64(end), confirmed, b.metric("replication_lag_bytes"))
		}
	})
}

// TestScrapeShowsOneMoment: events in flight never appear without their bytes.
func TestScrapeShowsOneMoment(t *testing.T) {
	tracker := checkpoint.NewTracker(1)
	tracker.Begin(checkpoint.TxID{CommitLSN: 1 << 40, XID: 1, CommitTime: time.Now()}, false)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				tracker.Ack([]uint64{tracker.Add(640, 0)}, nil)
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	r := &Relay{clock: time.Now}
	r.view.session = &session{tracker: tracker}
	o := newObserved(r)
	seen := map[bool]int{}
	deadline := time.Now().Add(time.Minute)
	for i := 0; i < 2000 || len(seen) < 2; i++ {
		if time.Now().After(deadline) {
			if len(seen) < 2 {
				t.Fatalf("%d scrapes all show the same: events in flight: %v", i, seen)
			}
			break // on a busy machine fewer have to do
		}
		ch := make(chan prometheus.Metric, 100)
		o.Collect(ch)
		close(ch)
		var events, bytes float64
		for m := range ch {
			var p dto.Metric
			must(t, m.Write(&p))
			switch desc := m.Desc().String(); {
			case strings.Contains(desc, `"outboxcdc_inflight_events"`):
				events = p.GetGauge().GetValue()
			case strings.Contains(desc, `"outboxcdc_inflight_bytes"`):
				bytes = p.GetGauge().GetValue()
			}
		}
		if bytes != events*640 {
			t.Fatalf("scrape %d: %v events and %v bytes in flight", i, events, bytes)
		}
		seen[events > 0]++
	}
}

// TestCausesAreComplete: the list of causes, which has the values of a label, is complete.
func TestCausesAreComplete(t *testing.T) {
	text, err := os.ReadFile("../router/poison.go")
	must(t, err)
	declared := regexp.MustCompile(`(?m)^\t\w+ +Cause = "(\w+)"`).FindAllStringSubmatch(string(text), -1)
	for _, m := range declared {
		if !slices.Contains(router.Causes, router.Cause(m[1])) {
			t.Errorf("%s is missing in Causes", m[1])
		}
	}
	if len(declared) != len(router.Causes) || len(declared) == 0 {
		t.Errorf("%d are declared, %d in Causes", len(declared), len(router.Causes))
	}
}

// TestCountsArePublished: the counts of the session's goroutine are complete when all that has arrived is handled,
// and within a transaction at each turn. They are not added up at each commit of a backlog.
func TestCountsArePublished(t *testing.T) {
	b := newHandler(t, 7)
	check := func(when string, want float64) {
		if received, decoded := testutil.ToFloat64(b.r.met.received), testutil.ToFloat64(b.r.met.kinds[decoder.KindEvent]); received != want || decoded != want {
			t.Errorf("%s: %v events received, %v decoded, want %v", when, received, decoded, want)
		}
	}
	b.more = true
	b.transaction(2)
	check("in a backlog", 0)
	b.more = false
	b.transaction(1)
	check("after the last commit", 3)
	b.more = true
	b.transaction(1)
	b.more = false
	must(t, b.handle(t.Context(), replication.Message{ServerWALEnd: b.at}, nil))
	check("after a keepalive", 4)
	b.message(b.begin)
	b.message(b.row)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	b.awaiting = "the end"
	if _, err := b.turn(ended, b.r.clock()); !errors.Is(err, errShutdown) {
		t.Error(err)
	}
	check("after a turn", 5)
}

// TestCountsOfFailedSession: the counts are complete after a session that ended within a transaction.
func TestCountsOfFailedSession(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.pg.commit("!a", "b")
		b.start()
		b.ends(Poison, time.Minute)
		b.counts(1, "events_received_total")
	})
}
