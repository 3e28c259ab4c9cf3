package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/doctor"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

const gb = 1 << 30

// What daemon and slot say decides about the verdict, and nobody is called healthy who was not asked.
func TestStatusVerdict(t *testing.T) {
	daemon := func(s relay.State, kafka string) *daemonStatus {
		return &daemonStatus{Status: relay.Status{State: s, Kafka: kafka, Reason: "for a reason"}}
	}
	free, read := &heldWAL{WALStatus: "reserved"}, &heldWAL{Active: true, WALStatus: "extended"}
	const at = "http://localhost:9464/status"
	for _, c := range []struct {
		name string
		l    look
		exit int
		says string
	}{
		{"streaming", look{URL: at, Daemon: daemon(relay.Streaming, "ok"), Slot: read}, 0, "healthy"},
		{"backpressured", look{URL: at, Daemon: daemon(relay.Backpressured, "ok"), Slot: read}, 0, "healthy"},
		{"a standby", look{URL: at, Daemon: daemon(relay.WaitingForSlot, "no session"), Slot: read}, 0, "healthy"},
		{"a standby of nobody", look{URL: at, Daemon: daemon(relay.WaitingForSlot, "no session"), Slot: free}, 69, "waiting_for_slot"},
		{"parked", look{URL: at, Daemon: daemon(relay.Parked, "no session"), Slot: free}, 69, "NOT HEALTHY: parked: for a reason"},
		{"failed", look{URL: at, Daemon: daemon(relay.Failed, "no session"), Slot: free}, 69, "failed"},
		{"no topic", look{URL: at, Daemon: daemon(relay.WaitingForTopic, "ok"), Slot: read}, 69, "waiting_for_topic"},
		{"Kafka is ill", look{URL: at, Daemon: daemon(relay.Streaming, "no answer"), Slot: read}, 69, "Kafka: no answer"},
		{"down", look{URL: at, DaemonError: "refused", Slot: free}, 69, "no daemon answers"},
		{"out of reach", look{URL: at, DaemonError: "refused", Slot: read}, 69, "no daemon answers"},
		{"not asked, read", look{Slot: read}, 0, "not asked"},
		{"not asked, not read", look{Slot: free}, 69, "the slot is inactive"},
		{"Postgres is away", look{URL: at, Daemon: daemon(relay.Streaming, "ok"), SlotError: "no answer"}, 69, "Postgres does not say"},
		{"in danger", look{URL: at, Daemon: daemon(relay.Streaming, "ok"), Slot: &heldWAL{Active: true, WALStatus: "unreserved"}}, 69, "the next checkpoint may lose it"},
		{"lost", look{URL: at, Daemon: daemon(relay.Streaming, "ok"), Slot: &heldWAL{WALStatus: "lost"}}, 79, "LOST: the server has removed WAL"},
		{"invalidated", look{URL: at, Daemon: daemon(relay.Failed, ""), Slot: &heldWAL{Invalid: "idle_timeout"}}, 79, "idle_timeout"},
		{"missing", look{URL: at, DaemonError: "refused", Slot: &heldWAL{Slot: "s", Missing: true}}, 79, "LOST: the server has no slot s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.l.judge(nil)
			if got := c.l.String(); c.l.Exit != c.exit || !strings.Contains(got, c.says) {
				t.Errorf("exit %d, want %d, and %q:\n%s", c.l.Exit, c.exit, c.says, got)
			}
			if (c.l.Verdict == verdictHealthy) != (c.exit == 0) || (c.l.Verdict == verdictLost) != (c.exit == exitLost) {
				t.Errorf("verdict %s for exit %d", c.l.Verdict, c.exit)
			}
		})
	}
}

// When the disk budget is reached is said in plain words, with the time that the rate was measured over.
func TestStatusBudget(t *testing.T) {
	at := time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name        string
		first, then heldWAL
		says        []string
		not         string
	}{
		{
			"grows to a budget",
			heldWAL{Retained: 3 * gb, Budget: 10 * gb, Left: 7 * gb},
			heldWAL{Retained: 3*gb + 4<<20, Budget: 10 * gb, Left: 7 * gb},
			[]string{"3 GB of WAL are held", "at the present rate (2 MB/s, measured over 2.0 s) the disk budget (max_slot_wal_keep_size, 10 GB) is reached in 60 min"},
			"left",
		},
		{
			"grows without end",
			heldWAL{Retained: gb, Budget: -1, Left: -1},
			heldWAL{Retained: gb + 2048, Budget: -1, Left: -1},
			[]string{"it grows by 1 kB/s (measured over 2.0 s); there is no disk budget (max_slot_wal_keep_size is -1): it is kept until the disk is full"},
			"reached",
		},
		{
			"stands",
			heldWAL{Retained: gb, Budget: 10 * gb, Left: 9 * gb},
			heldWAL{Retained: gb, Budget: 10 * gb, Left: 9 * gb},
			[]string{"it does not grow (measured over 2.0 s)", "is 10 GB, of which 9 GB are left"},
			"reached",
		},
		{
			// restart_lsn moves in jumps while the slot is read: what counts is what is not confirmed.
			"is read",
			heldWAL{Active: true, Retained: gb, Unconfirmed: 100, Budget: 10 * gb, Left: 9 * gb},
			heldWAL{Active: true, Retained: 2 * gb, Unconfirmed: 50, Budget: 10 * gb, Left: 8 * gb},
			[]string{"it does not grow"},
			"reached",
		},
		{
			"is read, with a little on its way",
			heldWAL{Active: true, Unconfirmed: 100, Budget: 10 * gb, Left: 9 * gb},
			heldWAL{Active: true, Unconfirmed: 15 << 20, Budget: 10 * gb, Left: 9 * gb},
			[]string{"it does not grow"},
			"reached",
		},
		{
			"is read too slowly",
			heldWAL{Active: true, Retained: gb, Unconfirmed: gb, Budget: 10 * gb, Left: 9 * gb},
			heldWAL{Active: true, Retained: gb, Unconfirmed: 2 * gb, Budget: 10 * gb, Left: 9 * gb},
			[]string{"(512 MB/s, measured over 2.0 s)", "is reached in 18 s"},
			"does not grow",
		},
		{
			"has just been left",
			heldWAL{Active: true, Retained: gb, Budget: -1, Left: -1},
			heldWAL{Retained: 2 * gb, Budget: -1, Left: -1},
			[]string{"there is no disk budget"},
			"measured",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			first, then := &look{At: at, Slot: &c.first}, &look{At: at.Add(2 * time.Second), Slot: &c.then}
			text := then.judge(first).String()
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

// The number of events that were delivered, and how many a second since the look before; no rate across a restart.
func TestStatusThroughput(t *testing.T) {
	at := time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)
	after := func(d time.Duration, delivered float64) *look {
		return &look{At: at.Add(d), URL: "http://localhost/status", Daemon: &daemonStatus{Delivered: delivered}, Slot: &heldWAL{}}
	}
	for _, c := range []struct {
		then *look
		want string
	}{
		{after(2*time.Second, 12_345), "12345 events delivered since the daemon was started, 1122/s (measured over 2.0 s)\n"},
		{after(2*time.Second, 10_100), "10100 events delivered since the daemon was started, 0/s (measured over 2.0 s)\n"},
		{after(2*time.Second, 1), "1 event delivered since the daemon was started\n"},
	} {
		c.then.measureThroughput(after(0, 10_100))
		if got := c.then.judge(nil).String(); !strings.Contains(got, c.want) {
			t.Errorf("want %q:\n%s", c.want, got)
		}
	}
	down := after(0, 5)
	down.Daemon = nil
	down.measureThroughput(after(0, 1))
	if after(time.Second, 5).measureThroughput(down); down.Throughput != nil {
		t.Error("a rate of a daemon that does not answer")
	}
}

// What else the server keeps WAL for is found on a real server: an open transaction, a prepared one, another slot.
func TestStatusHolders(t *testing.T) {
	s := pgtest.ForTest(t, pgtest.Options{Major: "17", Settings: map[string]string{"max_prepared_transactions": "2"}})
	d := newDatabase(t, s, "holders")
	d.exec("CREATE TABLE t (n int)", "SELECT pg_create_logical_replication_slot('holders', 'pgoutput')")
	conn := connect(t, s.SuperURL("holders"))
	o := &observer{slot: "holders", conn: conn}
	ask := func(want ...string) {
		t.Helper()
		h, err := o.askServer(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		text := (&look{Slot: h}).judge(nil).String()
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
		d.exec("SELECT pg_logical_emit_message(true, 'x', repeat('y', 1000000)) FROM generate_series(1, 20)",
			"SELECT pg_replication_slot_advance('holders', pg_current_wal_lsn())")
	}
	ask()
	open := connect(t, s.SuperURL("holders"))
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
	ask("of it is confirmed, and held for transactions that were open then; the oldest now: PID " + strconv.Itoa(pid) + " of postgres in database holders, open for")
	run("PREPARE TRANSACTION 'two'")
	ask("; the oldest now: 'two' in database holders, prepared")
	run("ROLLBACK PREPARED 'two'")
	ask("is confirmed, and held", "sees none that is open now")
	d.exec("SELECT pg_create_physical_replication_slot('standby', true)")
	wal()
	d.exec("SELECT pg_drop_replication_slot('holders')", "SELECT pg_create_logical_replication_slot('holders', 'pgoutput')")
	ask("another slot of this server holds more: standby, inactive, ")
	d.exec("SELECT pg_drop_replication_slot('standby')")
	ask()
}

func TestStatusURL(t *testing.T) {
	for _, c := range []struct{ given, listen, want string }{
		{"", ":9464", "http://localhost:9464/status"},
		{"", "0.0.0.0:9464", "http://localhost:9464/status"},
		{"", "[::]:9464", "http://localhost:9464/status"},
		{"", "10.0.0.5:80", "http://10.0.0.5:80/status"},
		{"", "", ""},
		{"https://u:p@h", "", "https://u:p@h/status"},
		{"http://h:1/relay/status", ":9464", "http://h:1/relay/status"},
	} {
		if got, err := statusURL(c.given, config.HTTP{Listen: c.listen}); got != c.want || err != nil {
			t.Errorf("%+v: %s %v", c, got, err)
		}
	}
	for _, given := range []string{"h:9464", "/status", "ftp://h", "http://"} {
		if _, err := statusURL(given, config.HTTP{}); exitCode(err) != exitUsage {
			t.Errorf("%s: %v", given, err)
		}
	}
	for _, args := range [][]string{{"status", "--interval", "1ms"}, {"status", "-o", "xml"}, {"status", "x"}, {"doctor", "--timeout", "0s"}, {"doctor", "-o", "xml"}, {"doctor", "x"}} {
		if code := execute(t.Context(), args, io.Discard, io.Discard); code != exitUsage {
			t.Errorf("%v: exit code %d", args, code)
		}
	}
}

// The rate is measured at a real server, with a daemon that is played; --watch goes on until it is told to end, a JSON
// object on each line.
func TestStatusWatch(t *testing.T) {
	clearEnv(t)
	s := pgtest.ForTest(t, pgtest.Options{Major: "17", Settings: map[string]string{"max_slot_wal_keep_size": "1GB"}})
	d := newDatabase(t, s, "watched")
	d.exec("CREATE PUBLICATION watched", "SELECT pg_create_logical_replication_slot('watched', 'pgoutput')")
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if user, password, _ := req.BasicAuth(); user != "me" || password != "s3cr3t" {
			http.Error(w, "who?", http.StatusUnauthorized)
			return
		}
		_ = json.NewEncoder(w).Encode(relay.Status{State: relay.Parked, Reason: "nobody acknowledges", Kafka: "no session", Since: time.Now()})
	}))
	defer srv.Close()
	cfg := config.Default()
	cfg.Postgres.URL, cfg.Postgres.Slot, cfg.Postgres.Publication = s.SuperURL("watched"), "watched", "watched"
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	out := &lines{each: func(line string) bool {
		if strings.Contains(line, "s3cr3t") {
			t.Errorf("the password shows: %s", line)
		}
		var l look
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Errorf("%v: %s", err, line)
		}
		d.exec("SELECT pg_logical_emit_message(false, 'x', repeat('y', 1000000))")
		if l.Growth == nil || l.Growth.BudgetIn == nil {
			return true
		}
		rate := l.Growth.BytesPerSecond * l.Growth.Over
		if l.Exit != exitUnavailable || l.Daemon == nil || l.Daemon.State != relay.Parked || rate < 9e5 || *l.Growth.BudgetIn <= 0 || l.Slot.Budget != gb {
			t.Errorf("%s", line)
		}
		cancel()
		return false
	}}
	c := &statusCommand{url: strings.Replace(srv.URL, "http://", "http://me:s3cr3t@", 1), output: "json", watch: true, interval: 100 * time.Millisecond, out: out}
	if err := c.run(ctx, cfg); exitCode(err) != exitUnavailable {
		t.Errorf("it ends with %v", err)
	}
	if !out.done {
		t.Error("no rate was told")
	}
	if out.n < 2 {
		t.Errorf("%d looks", out.n)
	}
}

// lines calls each for what is written, a line at a time, until it answers false.
type lines struct {
	each func(string) bool
	n    int
	done bool
}

func (l *lines) Write(b []byte) (int, error) {
	if l.n++; !l.done {
		l.done = !l.each(string(b))
	}
	return len(b), nil
}

// Somebody else's listener is not taken for a daemon.
func TestStatusOfSomethingElse(t *testing.T) {
	for body, want := range map[string]string{"{}": "no outboxcdc", "<html>": "no outboxcdc"} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }))
		o := &observer{url: srv.URL + "/status", client: srv.Client()}
		if _, err := o.askDaemon(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", body, err)
		}
		srv.Close()
		if _, err := o.askDaemon(t.Context()); err == nil || strings.Contains(err.Error(), srv.URL) {
			t.Errorf("closed: %v", err)
		}
	}
	srv := httptest.NewServer(http.NotFoundHandler())
	defer srv.Close()
	o := &observer{url: srv.URL + "/status", client: srv.Client()}
	if _, err := o.askDaemon(t.Context()); err == nil || !strings.Contains(err.Error(), "404") {
		t.Error(err)
	}
}

// docs/troubleshooting.md sends nobody to a line of doctor that there is not, and names every state.
func TestTroubleshootingNamesWhatThereIs(t *testing.T) {
	b, err := os.ReadFile("../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	checks := map[string]bool{}
	for _, c := range doctor.Checks() {
		checks[c.Name] = true
	}
	named := 0
	for _, m := range regexp.MustCompile("`doctor`[,:]((?: ?`[a-z._]+`,?| and| or)+)").FindAllStringSubmatch(text, -1) {
		for _, name := range regexp.MustCompile("`([a-z._]+)`").FindAllStringSubmatch(m[1], -1) {
			if named++; !checks[name[1]] {
				t.Errorf("doctor has no line %s: %s", name[1], m[0])
			}
		}
	}
	if named < 20 {
		t.Errorf("only %d lines of doctor are named", named)
	}
	for _, s := range []relay.State{relay.Streaming, relay.WaitingForTopic, relay.WaitingForSlot, relay.WaitingForStandby, relay.Reconnecting, relay.Parked, relay.Backpressured, relay.Failed} {
		if !strings.Contains(text, "| `"+string(s)+"`") {
			t.Errorf("the state %s is not there", s)
		}
	}
}
