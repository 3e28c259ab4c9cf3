package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/internal/doctor"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/relay"
)

func TestStatusUsage(t *testing.T) {
	for _, args := range [][]string{{"status", "--url", "localhost"}, {"status", "--set", "http.listen="}, {"status", "x"}, {"doctor", "--timeout", "0s"}, {"doctor", "-o", "xml"}, {"doctor", "x"}} {
		if code := execute(t.Context(), args, io.Discard, io.Discard); code != exit.Usage {
			t.Errorf("%v: exit code %d", args, code)
		}
	}
}

// TestStatus asks a fake daemon. The exit code says whether it is ready, and no password is printed.
func TestStatus(t *testing.T) {
	clearEnv(t)
	answer := ""
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if user, password, _ := req.BasicAuth(); user != "me" || password != "s3cr3t" || req.URL.Path != "/status" {
			http.Error(w, "who?", http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, answer)
	}))
	defer srv.Close()
	own := strings.Replace(srv.URL, "http://", "http://me:s3cr3t@", 1)
	parked, err := json.Marshal(report{Status: relay.Status{State: relay.Parked, Reason: "no acknowledgements", DeliversTo: "Kafka", Sink: "no session"}})
	must(t, err)
	for _, c := range []struct {
		name, url, answer string
		code              int
		want              string
	}{
		{"ready", own, `{"state":"streaming","ready":true}`, exit.OK, "{\n  \"state\": \"streaming\",\n  \"ready\": true\n}\n"},
		{"parked", own, string(parked), exit.Unavailable, `"reason": "no acknowledgements"`},
		{"another program", own, `{"hello":"world"}`, exit.Unavailable, "is not that of outboxcdc"},
		{"no JSON", own, `"state"<html>`, exit.Unavailable, "is not that of outboxcdc"},
		{"refused", srv.URL, "", exit.Unavailable, "401 Unauthorized"},
		{"no listener", "http://me:s3cr3t@127.0.0.1:1", "", exit.Unavailable, "no daemon answers at http://me:xxxxx@127.0.0.1:1/status"},
	} {
		answer = c.answer
		var out strings.Builder
		if code := execute(t.Context(), []string{"status", "--url", c.url}, &out, &out); code != c.code || !strings.Contains(out.String(), c.want) || strings.Contains(out.String(), "s3cr3t") {
			t.Errorf("%s: exit code %d, want %d with %q:\n%s", c.name, code, c.code, c.want, out.String())
		}
	}
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
		if !strings.Contains(text, "- `"+string(s)+"`") {
			t.Errorf("the state %s is not there", s)
		}
	}
}
