package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/doctor"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/status"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

const gb = 1 << 30

func TestStatusUsage(t *testing.T) {
	for _, args := range [][]string{{"status", "--interval", "1ms"}, {"status", "-o", "xml"}, {"status", "x"}, {"doctor", "--timeout", "0s"}, {"doctor", "-o", "xml"}, {"doctor", "x"}} {
		if code := execute(t.Context(), args, io.Discard, io.Discard); code != exit.Usage {
			t.Errorf("%v: exit code %d", args, code)
		}
	}
}

// TestStatusWatch measures the rate with a real server and a fake daemon. With --watch, status continues until it is
// interrupted, with a JSON object on each line.
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
		_ = json.NewEncoder(w).Encode(relay.Status{State: relay.Parked, Reason: "no acknowledgements", DeliversTo: "Kafka", Sink: "no session", Since: time.Now()})
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
		var l status.Report
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Errorf("%v: %s", err, line)
		}
		d.exec("SELECT pg_logical_emit_message(false, 'x', repeat('y', 1000000))")
		if l.Growth == nil || l.Growth.BudgetIn == nil {
			return true
		}
		rate := l.Growth.BytesPerSecond * l.Growth.Over
		if l.Exit != exit.Unavailable || l.Daemon == nil || l.Daemon.State != relay.Parked || rate < 9e5 || *l.Growth.BudgetIn <= 0 || l.Slot.Budget != gb {
			t.Errorf("%s", line)
		}
		cancel()
		return false
	}}
	c := &statusCommand{url: strings.Replace(srv.URL, "http://", "http://me:s3cr3t@", 1), output: "json", watch: true, interval: 100 * time.Millisecond, out: out}
	if err := c.run(ctx, cfg); exit.Code(err) != exit.Unavailable {
		t.Errorf("it ends with %v", err)
	}
	if !out.done {
		t.Error("no rate was told")
	}
	if out.n < 2 {
		t.Errorf("%d looks", out.n)
	}
}

// lines is a writer that calls each with every line until it returns false.
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

// TestRunbookNames checks that docs/runbook.md names only existing checks of doctor, and every state.
func TestRunbookNames(t *testing.T) {
	b, err := os.ReadFile("../../docs/runbook.md")
	must(t, err)
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
	for _, s := range []relay.State{relay.Streaming, relay.WaitingForTopic, relay.WaitingForSlot, relay.WaitingForStandby, relay.WaitingForPostgres, relay.WaitingForSink, relay.Reconnecting, relay.Parked, relay.Backpressured, relay.Failed} {
		if !strings.Contains(text, "| `"+string(s)+"`") {
			t.Errorf("the state %s is not there", s)
		}
	}
}
