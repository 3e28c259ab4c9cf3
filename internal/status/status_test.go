package status

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/advice"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/standby"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

const gb = 1 << 30

// TestVerdict checks the verdict for states of daemon and slot. A daemon that was not queried is not called healthy.
func TestVerdict(t *testing.T) {
	daemon := func(s relay.State, kafka string) *DaemonStatus {
		return &DaemonStatus{Status: relay.Status{State: s, DeliversTo: "Kafka", Sink: kafka, Reason: "for a reason"}}
	}
	free, read := &Slot{WALStatus: "reserved"}, &Slot{Active: true, WALStatus: "extended"}
	const at = "http://localhost:9464/status"
	for _, c := range []struct {
		name string
		l    Report
		exit int
		says string
	}{
		{"streaming", Report{URL: at, Daemon: daemon(relay.Streaming, "ok"), Slot: read}, 0, "healthy"},
		{"backpressured", Report{URL: at, Daemon: daemon(relay.Backpressured, "ok"), Slot: read}, 0, "healthy"},
		{"a standby", Report{URL: at, Daemon: daemon(relay.WaitingForSlot, "no session"), Slot: read}, 0, "healthy"},
		{"a standby, and no client reads", Report{URL: at, Daemon: daemon(relay.WaitingForSlot, "no session"), Slot: free}, 69, "waiting_for_slot"},
		{"parked", Report{URL: at, Daemon: daemon(relay.Parked, "no session"), Slot: free}, 69, "NOT HEALTHY: parked: for a reason"},
		{"failed", Report{URL: at, Daemon: daemon(relay.Failed, "no session"), Slot: free}, 69, "failed"},
		{"no topic", Report{URL: at, Daemon: daemon(relay.WaitingForTopic, "ok"), Slot: read}, 69, "waiting_for_topic"},
		{"Kafka is ill", Report{URL: at, Daemon: daemon(relay.Streaming, "no answer"), Slot: read}, 69, "Kafka: no answer"},
		{"down", Report{URL: at, DaemonError: "refused", Slot: free}, 69, "no daemon answers"},
		{"out of reach", Report{URL: at, DaemonError: "refused", Slot: read}, 69, "no daemon answers"},
		{"not asked, read", Report{Slot: read}, 0, "not queried"},
		{"not asked, not read", Report{Slot: free}, 69, "the slot is inactive"},
		{"Postgres is away", Report{URL: at, Daemon: daemon(relay.Streaming, "ok"), SlotError: "no answer"}, 69, "cannot be read from Postgres"},
		{"in danger", Report{URL: at, Daemon: daemon(relay.Streaming, "ok"), Slot: &Slot{Active: true, WALStatus: "unreserved"}}, 69, "the next checkpoint may invalidate it"},
		{"in danger, and down", Report{URL: at, DaemonError: "refused", Slot: &Slot{WALStatus: "unreserved"}}, 69, "NOT HEALTHY: the slot retains more WAL than max_slot_wal_keep_size: the next checkpoint may invalidate it; no daemon answers"},
		{"in danger, and parked", Report{URL: at, Daemon: daemon(relay.Parked, "no session"), Slot: &Slot{WALStatus: "unreserved"}}, 69, "NOT HEALTHY: the slot retains more WAL than max_slot_wal_keep_size: the next checkpoint may invalidate it; parked"},
		{"a standby, Postgres is away", Report{URL: at, Daemon: daemon(relay.WaitingForSlot, "no session"), SlotError: "no answer"}, 69, "cannot be read from Postgres"},
		{"lost", Report{URL: at, Daemon: daemon(relay.Streaming, "ok"), Slot: &Slot{WALStatus: "lost"}}, 79, "LOST: the server has removed WAL"},
		{"invalidated", Report{URL: at, Daemon: daemon(relay.Failed, ""), Slot: &Slot{Invalid: "idle_timeout"}}, 79, "idle_timeout"},
		{"missing", Report{URL: at, DaemonError: "refused", Slot: &Slot{Slot: "s", Missing: true}}, 79, "LOST: the server has no slot s"},
		{"recover", Report{URL: at, DaemonError: "refused", Slot: &Slot{Slot: "s", Missing: true}}, 79, advice.Recover},
		{"recovery unfinished", Report{URL: at, Daemon: daemon(relay.Streaming, "ok"), Slot: &Slot{Slot: "s", Unfinished: "s_recovery"}}, 79, "s_recovery exists"},
		{"recover again", Report{URL: at, Daemon: daemon(relay.Streaming, "ok"), Slot: &Slot{Slot: "s", Unfinished: "s_recovery"}}, 79, advice.RecoverAgain},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.l.Judge(nil)
			if got := c.l.String(); c.l.Exit != c.exit || !strings.Contains(got, c.says) {
				t.Errorf("exit %d, want %d, and %q:\n%s", c.l.Exit, c.exit, c.says, got)
			}
			if (c.l.Verdict == Healthy) != (c.exit == 0) || (c.l.Verdict == LostSlot) != (c.exit == exit.Lost) {
				t.Errorf("verdict %s for exit %d", c.l.Verdict, c.exit)
			}
		})
	}
}

// TestBudget checks the text about the disk budget, with the time over which the rate was measured.
func TestBudget(t *testing.T) {
	at := time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name        string
		first, then Slot
		says        []string
		not         string
	}{
		{
			"grows to a budget",
			Slot{Retained: 3 * gb, Budget: 10 * gb, Left: 7 * gb},
			Slot{Retained: 3*gb + 4<<20, Budget: 10 * gb, Left: 7 * gb},
			[]string{"3 GB of WAL retained", "at the present rate (2 MB/s, measured over 2.0 s) the disk budget (max_slot_wal_keep_size, 10 GB) is reached in 60 min"},
			"left",
		},
		{
			"grows without end",
			Slot{Retained: gb, Budget: -1, Left: -1},
			Slot{Retained: gb + 2048, Budget: -1, Left: -1},
			[]string{"it grows by 1 kB/s (measured over 2.0 s); there is no disk budget (max_slot_wal_keep_size is -1): WAL is retained until the disk is full"},
			"reached",
		},
		{
			"does not grow",
			Slot{Retained: gb, Budget: 10 * gb, Left: 9 * gb},
			Slot{Retained: gb, Budget: 10 * gb, Left: 9 * gb},
			[]string{"it does not grow (measured over 2.0 s)", "is 10 GB, of which 9 GB are left"},
			"reached",
		},
		{
			// While the slot is read, restart_lsn moves in jumps, so the unconfirmed WAL counts.
			"is read",
			Slot{Active: true, Retained: gb, Unconfirmed: 100, Budget: 10 * gb, Left: 9 * gb},
			Slot{Active: true, Retained: 2 * gb, Unconfirmed: 50, Budget: 10 * gb, Left: 8 * gb},
			[]string{"it does not grow"},
			"reached",
		},
		{
			"is read, with a little on its way",
			Slot{Active: true, Unconfirmed: 100, Budget: 10 * gb, Left: 9 * gb},
			Slot{Active: true, Unconfirmed: 15 << 20, Budget: 10 * gb, Left: 9 * gb},
			[]string{"it does not grow"},
			"reached",
		},
		{
			"is read too slowly",
			Slot{Active: true, Retained: gb, Unconfirmed: gb, Budget: 10 * gb, Left: 9 * gb},
			Slot{Active: true, Retained: gb, Unconfirmed: 2 * gb, Budget: 10 * gb, Left: 9 * gb},
			[]string{"(512 MB/s, measured over 2.0 s)", "is reached in 18 s"},
			"does not grow",
		},
		{
			"has just been left",
			Slot{Active: true, Retained: gb, Budget: -1, Left: -1},
			Slot{Retained: 2 * gb, Budget: -1, Left: -1},
			[]string{"there is no disk budget"},
			"measured",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			first, then := &Report{At: at, Slot: &c.first}, &Report{At: at.Add(2 * time.Second), Slot: &c.then}
			text := then.Judge(first).String()
			for _, s := range c.says {
				if !strings.Contains(text, s) {
					t.Errorf("it does not say %q:\n%s", s, text)
				}
			}
			if strings.Contains(text, c.not) {
				t.Errorf("it says %q:\n%s", c.not, text)
			}
		})
	}
}

// TestThroughput checks the number of delivered events, and the rate since the previous report, which is unknown after
// a restart.
func TestThroughput(t *testing.T) {
	at := time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)
	after := func(d time.Duration, delivered float64) *Report {
		return &Report{At: at.Add(d), URL: "http://localhost/status", Daemon: &DaemonStatus{Delivered: delivered}, Slot: &Slot{}}
	}
	for _, c := range []struct {
		then *Report
		want string
	}{
		{after(2*time.Second, 12_345), "12345 events delivered since the daemon was started, 1122/s (measured over 2.0 s)\n"},
		{after(2*time.Second, 10_100), "10100 events delivered since the daemon was started, 0/s (measured over 2.0 s)\n"},
		{after(2*time.Second, 1), "1 event delivered since the daemon was started\n"},
	} {
		c.then.MeasureThroughput(after(0, 10_100))
		if got := c.then.Judge(nil).String(); !strings.Contains(got, c.want) {
			t.Errorf("want %q:\n%s", c.want, got)
		}
	}
	down := after(0, 5)
	down.Daemon = nil
	down.MeasureThroughput(after(0, 1))
	if after(time.Second, 5).MeasureThroughput(down); down.Throughput != nil {
		t.Error("a rate of a daemon that does not answer")
	}
}

// TestHolders finds, on a real server, what else retains WAL: an open transaction, a prepared one, another slot.
func TestHolders(t *testing.T) {
	s := pgtest.ForTest(t, pgtest.Options{Major: "17", Settings: map[string]string{"max_prepared_transactions": "2"}})
	if err := s.Exec(t.Context(), "postgres", "CREATE DATABASE holders"); err != nil {
		t.Fatal(err)
	}
	exec := func(statements ...string) {
		t.Helper()
		if err := s.Exec(t.Context(), "holders", statements...); err != nil {
			t.Fatal(err)
		}
	}
	exec("CREATE TABLE t (n int)", "SELECT pg_create_logical_replication_slot('holders', 'pgoutput')")
	conn := pgtest.Connect(t, s.SuperURL("holders"))
	o := &Observer{SlotName: "holders", conn: conn}
	ask := func(want ...string) {
		t.Helper()
		h, err := o.queryServer(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		text := (&Report{Slot: h}).Judge(nil).String()
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("want %q:\n%s", w, text)
			}
		}
		if len(want) == 0 && (strings.Contains(text, "is confirmed") || strings.Contains(text, "another slot")) {
			t.Errorf("nothing holds WAL, and it says:\n%s", text)
		}
	}
	// wal writes 20 MB, and confirms it all.
	wal := func() {
		t.Helper()
		exec("SELECT pg_logical_emit_message(true, 'x', repeat('y', 1000000)) FROM generate_series(1, 20)",
			"SELECT pg_replication_slot_advance('holders', pg_current_wal_lsn())")
	}
	ask()
	open := pgtest.Connect(t, s.SuperURL("holders"))
	var pid int
	if err := open.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		t.Fatal(err)
	}
	run := func(sql string) {
		t.Helper()
		if _, err := open.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	run("BEGIN")
	run("INSERT INTO t VALUES (1)")
	wal()
	ask("of it is confirmed, and retained for transactions that were open at that time; the oldest open one: PID " + strconv.Itoa(pid) + " of postgres in database holders, open for")
	run("PREPARE TRANSACTION 'two'")
	ask("; the oldest open one: 'two' in database holders, prepared")
	run("ROLLBACK PREPARED 'two'")
	ask("is confirmed, and retained", "sees no open transaction")
	exec("SELECT pg_create_physical_replication_slot('standby', true)")
	wal()
	exec("SELECT pg_drop_replication_slot('holders')", "SELECT pg_create_logical_replication_slot('holders', 'pgoutput')")
	ask("another slot of this server retains more: standby, inactive, ")
	exec("SELECT pg_drop_replication_slot('standby')")
	ask()
}

func TestURL(t *testing.T) {
	for _, c := range []struct{ given, listen, want string }{
		{"", ":9464", "http://localhost:9464/status"},
		{"", "0.0.0.0:9464", "http://localhost:9464/status"},
		{"", "[::]:9464", "http://localhost:9464/status"},
		{"", "10.0.0.5:80", "http://10.0.0.5:80/status"},
		{"", "", ""},
		{"https://u:p@h", "", "https://u:p@h/status"},
		{"http://h:1/relay/status", ":9464", "http://h:1/relay/status"},
	} {
		if got, err := URL(c.given, c.listen); got != c.want || err != nil {
			t.Errorf("%+v: %s %v", c, got, err)
		}
	}
	for _, given := range []string{"h:9464", "/status", "ftp://h", "http://"} {
		if _, err := URL(given, ""); exit.Code(err) != exit.Usage {
			t.Errorf("%s: %v", given, err)
		}
	}
}

// TestOtherProgram checks that the response of another program is an error.
func TestOtherProgram(t *testing.T) {
	for body, want := range map[string]string{"{}": "not that of outboxcdc", "<html>": "not that of outboxcdc"} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }))
		o := &Observer{URL: srv.URL + "/status", Client: srv.Client()}
		if _, err := o.queryDaemon(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", body, err)
		}
		srv.Close()
		if _, err := o.queryDaemon(t.Context()); err == nil || strings.Contains(err.Error(), srv.URL) {
			t.Errorf("closed: %v", err)
		}
	}
	srv := httptest.NewServer(http.NotFoundHandler())
	defer srv.Close()
	o := &Observer{URL: srv.URL + "/status", Client: srv.Client()}
	if _, err := o.queryDaemon(t.Context()); err == nil || !strings.Contains(err.Error(), "404") {
		t.Error(err)
	}
}

// The copies of the slot are shown with what to do. They do not make the daemon unhealthy.
func TestStandbys(t *testing.T) {
	lag := int64(2 << 20)
	r := (&Report{URL: "http://localhost/status", Slot: &Slot{Active: true}, Daemon: &DaemonStatus{
		Status: relay.Status{State: relay.Streaming, DeliversTo: "Kafka", Sink: "ok"},
		Standbys: []standby.Report{
			{Host: "db-2:5432", Verdict: standby.Verdict{State: standby.Ready, Text: "its copy is synchronized", LagBytes: &lag}},
			{Host: "db-3:5432", Verdict: standby.Verdict{State: standby.Blocked, Leftover: true, Text: "a leftover"}},
		},
	}}).Judge(nil)
	if r.Verdict != Healthy {
		t.Errorf("%s: %s", r.Verdict, r.Why)
	}
	for _, want := range []string{
		"standby   db-2:5432: ready: its copy is synchronized, 2 MB behind the primary's slot\n",
		"standby   db-3:5432: blocked: a leftover; outboxcdc standby clean --host db-3:5432 removes it\n",
	} {
		if text := r.String(); !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// TestWaiting checks what is said about events that wait: only what is known.
func TestWaiting(t *testing.T) {
	at := time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)
	commit := at.Add(-105 * time.Second)
	for _, c := range []struct {
		name        string
		st          relay.Status
		says, kafka string
	}{
		{"a first start without a server", relay.Status{State: relay.Reconnecting, LagSeconds: 15, DeliversTo: "Kafka", Sink: "no session"}, "has not read up to the end of the WAL for 15 s: whether events wait is not known", "not connected"},
		{"a standby", relay.Status{State: relay.WaitingForSlot, LagSeconds: 15, DeliversTo: "Kafka", Sink: "no session"}, "another client reads the slot", "not connected"},
		{"idle", relay.Status{State: relay.Streaming, DeliversTo: "Kafka", Sink: "ok"}, "Kafka has acknowledged all events", "ok"},
		{"parked with events", relay.Status{State: relay.Parked, LagSeconds: 105, OldestUnacked: &commit, DeliversTo: "Kafka", Sink: "no session"}, "the oldest commit that Kafka has not acknowledged is 105 s old", "unavailable; events wait in Postgres"},
		{"in flight", relay.Status{State: relay.Streaming, LagSeconds: 105, OldestUnacked: &commit, DeliversTo: "Kafka", Sink: "no answer"}, "105 s old", "no answer"},
	} {
		r := &Report{At: at, URL: "http://localhost/status", Daemon: &DaemonStatus{Status: c.st}, Slot: &Slot{Active: true}}
		text := r.Judge(nil).String()
		if !strings.Contains(text, c.says) || !strings.Contains(text, "Kafka     "+c.kafka) {
			t.Errorf("%s: want %q and %q:\n%s", c.name, c.says, c.kafka, text)
		}
		if strings.Contains(text, "s old") != (c.st.OldestUnacked != nil) {
			t.Errorf("%s: an age of which nothing is known:\n%s", c.name, text)
		}
	}
}
