package debezium

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/child"
)

// `make golden` starts a real Connect; here the test fakes its answers.
func TestRunning(t *testing.T) {
	answer := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/connectors/shop/status" || answer == "" {
			http.Error(w, `{"error_code":404,"message":"No status found"}`, http.StatusNotFound)
			return
		}
		_, _ = io.WriteString(w, answer)
	}))
	defer server.Close()
	c := &Connect{url: server.URL}
	for _, row := range []struct{ answer, want string }{
		{"", "No status found"},
		{`{"connector":{"state":"UNASSIGNED"},"tasks":[]}`, "the connector is UNASSIGNED"},
		{`{"connector":{"state":"RUNNING"},"tasks":[]}`, "no task"},
		{`{"connector":{"state":"RUNNING"},"tasks":[{"id":0,"state":"RESTARTING"}]}`, "the task is RESTARTING"},
		{`{"connector":{"state":"FAILED","trace":"x"},"tasks":[]}`, "the connector has failed: x"},
		{`{`, "read the answer"},
	} {
		answer = row.answer
		if err := c.Running(t.Context(), "shop"); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, want %s", row.answer, err, row.want)
		}
	}
	answer = `{"connector":{"state":"RUNNING"},"tasks":[{"id":0,"state":"RUNNING"}]}`
	if err := c.Running(t.Context(), "shop"); err != nil {
		t.Error(err)
	}
	answer = `{"connector":{"state":"RUNNING"},"tasks":[{"state":"FAILED","trace":"a.B: outer\n\tat c.D(E.java:1)\n\t... 3 more\nCaused by: f.G: inner\n\tat h\n"}]}`
	var failed *Failed
	if err := c.Running(t.Context(), "shop"); !errors.As(err, &failed) || !slices.Equal(failed.Causes(), []string{"a.B: outer", "f.G: inner"}) {
		t.Errorf("%v, causes %q", err, failed.Causes())
	}

	// Await ends at once for a failed task, and when the process has ended.
	c.Log = filepath.Join(t.TempDir(), "log")
	var err error
	c.Proc, err = child.Start(child.Spec{Path: "/bin/sh", Args: []string{"-c", "echo said; sleep 60"}, LogFile: c.Log, DeathSignal: syscall.SIGKILL})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Proc.Kill() }()
	if err := c.Await(t.Context(), "shop"); !errors.As(err, &failed) {
		t.Errorf("await: %v", err)
	}
	answer = `{"connector":{"state":"RUNNING"},"tasks":[]}`
	soon, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := c.Await(soon, "shop"); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "said") {
		t.Errorf("await: %v", err)
	}
}

func TestCreate(t *testing.T) {
	var got map[string]string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPut || r.URL.Path != "/connectors/shop/config" {
			t.Errorf("%s %s", r.Method, r.URL)
		}
		if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	props, err := Postgres("postgres://u:p%20w@127.0.0.1:5433/shop?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	props["plugin.name"] = "decoderbufs"
	if err := (&Connect{url: server.URL}).Create(t.Context(), "shop", props); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"name": "shop", "connector.class": "io.debezium.connector.postgresql.PostgresConnector", "tasks.max": "1", "plugin.name": "decoderbufs",
		"database.hostname": "127.0.0.1", "database.port": "5433", "database.user": "u", "database.password": "p w", "database.dbname": "shop",
		"database.sslmode": "disable",
	}
	if !maps.Equal(got, want) {
		t.Errorf("%v\nwant %v", got, want)
	}
}

// Stop waits until the connector has stopped, and leaves no process either way.
func TestStop(t *testing.T) {
	for _, row := range []struct{ status, want string }{
		{`{"connector":{"state":"STOPPED"},"tasks":[]}`, ""},
		{`{"connector":{"state":"STOPPED"},"tasks":[{"state":"RUNNING"}]}`, "with 1 tasks"},
		{`{"connector":{"state":"RUNNING"},"tasks":[]}`, "is RUNNING"},
	} {
		stopped := false
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut && r.URL.Path == "/connectors/shop/stop" {
				stopped = true
				return
			}
			_, _ = io.WriteString(w, row.status)
		}))
		c := &Connect{url: server.URL, Log: filepath.Join(t.TempDir(), "log")}
		var err error
		c.Proc, err = child.Start(child.Spec{Path: "/bin/sh", Args: []string{"-c", "sleep 60"}, LogFile: c.Log, DeathSignal: syscall.SIGKILL})
		if err != nil {
			t.Fatal(err)
		}
		soon, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		err = c.Stop(soon, "shop")
		cancel()
		server.Close()
		if !stopped || !c.Proc.Exited() || (row.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, want %q; exited %v", row.status, err, row.want, c.Proc.Exited())
		}
	}
}
