package main

import (
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/standby"
	"github.com/outboxcdc/outboxcdc/relay"
)

// fakeRelay is a relay in a fixed state.
type fakeRelay struct {
	status relay.Status
	ready  bool
	why    string
	age    time.Duration

	standbys []standby.Report
}

func (f *fakeRelay) Status() relay.Status      { return f.status }
func (f *fakeRelay) Ready() (bool, string)     { return f.ready, f.why }
func (f *fakeRelay) Alive() time.Duration      { return f.age }
func (f *fakeRelay) Reports() []standby.Report { return f.standbys }

func handlerOf(cfg *config.Config, reg *prometheus.Registry, m monitor) http.Handler {
	return handler(cfg, reg, m, newHistory(reg, m))
}

func ask(t *testing.T, h http.Handler, method, path string) (int, string, http.Header) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
	return w.Code, w.Body.String(), w.Header()
}

// TestProbes checks that /livez depends only on the main loop, and /readyz on the delivery of events.
func TestProbes(t *testing.T) {
	parked := &fakeRelay{status: relay.Status{State: relay.Parked}, why: "parked: brokers away"}
	standby := &fakeRelay{status: relay.Status{State: relay.WaitingForSlot}, why: "waiting_for_slot: active"}
	streaming := &fakeRelay{status: relay.Status{State: relay.Streaming}, ready: true}
	hung := &fakeRelay{status: relay.Status{State: relay.Streaming}, ready: true, age: aliveWithin}
	for _, c := range []struct {
		m    *fakeRelay
		path string
		code int
		body string
	}{
		{parked, "/livez", 200, `"main_loop_age_seconds": 0`},
		{hung, "/livez", 503, `"main_loop_age_seconds": 60`},
		{parked, "/readyz", 503, `"parked: brokers away"`},
		{parked, "/healthz", 503, `"state": "parked"`},
		{parked, "/readyz?standby=ok", 503, `"ready": false`},
		{standby, "/readyz", 503, `"ready": false`},
		{standby, "/readyz?standby=ok", 200, `"ready": true`},
		{standby, "/healthz?standby=ok", 200, `"state": "waiting_for_slot"`},
		{streaming, "/readyz", 200, `"ready": true`},
		{streaming, "/version", 200, `"go_version"`},
		{streaming, "/nowhere", 404, ""},
		{streaming, "/debug/pprof/", 404, ""},
		{streaming, "/config", 404, ""},
	} {
		code, body, _ := ask(t, handlerOf(config.Default(), prometheus.NewRegistry(), c.m), "GET", c.path)
		if code != c.code || !strings.Contains(body, c.body) {
			t.Errorf("%s while %s: %d %s, not %d %s", c.path, c.m.status.State, code, body, c.code, c.body)
		}
	}
	h := handlerOf(config.Default(), prometheus.NewRegistry(), streaming)
	if code, _, _ := ask(t, h, "POST", "/status"); code != http.StatusMethodNotAllowed {
		t.Errorf("POST /status: %d", code)
	}
}

// TestStatusReport checks that /status has the relay's status, the slot, the version, and the delivered events by
// topic.
func TestStatusReport(t *testing.T) {
	reg := prometheus.NewRegistry()
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: deliveredMetric}, []string{"topic"})
	reg.MustRegister(c)
	c.WithLabelValues("b").Add(3)
	c.WithLabelValues("a").Add(4)
	m := &fakeRelay{ready: true, status: relay.Status{State: relay.Streaming, Confirmed: "0/1A", Troubles: []relay.Trouble{{State: relay.Parked, Error: "x", Count: 2}}}}
	lag := int64(0)
	m.standbys = []standby.Report{{Host: "db-2:5432", Verdict: standby.Verdict{State: standby.Ready, Text: "in sync", LagBytes: &lag}, Since: time.Unix(1, 0).UTC()}}
	code, body, header := ask(t, handlerOf(config.Default(), reg, m), "GET", "/status")
	if want := `"standbys":[{"host":"db-2:5432","state":"ready","text":"in sync","lag_bytes":0,"since":"1970-01-01T00:00:01Z"}]`; !strings.Contains(strings.Join(strings.Fields(body), ""), strings.ReplaceAll(want, " ", "")) {
		t.Errorf("no %s in %s", want, body)
	}
	if strings.Contains(body, `"held"`) {
		t.Errorf("no key is held: %s", body)
	}
	for name, n := range map[string]float64{"keys": 2, "letters": 7, "oldest_seconds": 90} {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "outboxcdc_held_" + name})
		g.Set(n)
		reg.MustRegister(g)
	}
	_, body, _ = ask(t, handlerOf(config.Default(), reg, m), "GET", "/status")
	if want := `"held":{"keys":2,"letters":7,"oldest_seconds":90}`; !strings.Contains(strings.Join(strings.Fields(body), ""), want) {
		t.Errorf("no %s in %s", want, body)
	}
	var got struct {
		Slot      string         `json:"slot"`
		State     string         `json:"state"`
		Ready     bool           `json:"ready"`
		Confirmed string         `json:"confirmed_lsn"`
		Version   string         `json:"version"`
		Delivered float64        `json:"events_delivered"`
		Topics    []topicReport  `json:"topics"`
		Troubles  []relayTrouble `json:"troubles"`
	}
	must(t, json.Unmarshal([]byte(body), &got))
	if code != 200 || header.Get("Cache-Control") != "no-store" || header.Get("Content-Type") != "application/json" {
		t.Errorf("%d %v", code, header)
	}
	if got.Slot != "outboxcdc" || got.State != "streaming" || !got.Ready || got.Confirmed != "0/1A" || got.Version == "" || got.Delivered != 7 {
		t.Errorf("%+v", got)
	}
	if len(got.Topics) != 2 || got.Topics[0] != (topicReport{"a", 4}) || got.Topics[1] != (topicReport{"b", 3}) {
		t.Errorf("topics %+v", got.Topics)
	}
	if len(got.Troubles) != 1 || got.Troubles[0] != (relayTrouble{"parked", "x", 2}) {
		t.Errorf("troubles %+v", got.Troubles)
	}
}

type relayTrouble struct {
	State string `json:"state"`
	Error string `json:"error"`
	Count int    `json:"count"`
}

// TestStatusIsDocumented checks that docs/running.md lists exactly the fields of /status.
func TestStatusIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/running.md")
	must(t, err)
	_, section, _ := strings.Cut(string(text), "\n### `/status`\n")
	section, _, _ = strings.Cut(section, "\n### ")
	listed := map[string]bool{}
	for line := range strings.Lines(section) {
		names, _, _ := strings.Cut(line, ":")
		if !strings.HasPrefix(names, "- ") {
			continue
		}
		for _, m := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(names, -1) {
			listed[m[1]] = true
		}
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[report]()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "" && !listed[name] {
			t.Errorf("docs/running.md does not have %s", name)
		}
		delete(listed, name)
	}
	for name := range listed {
		t.Errorf("docs/running.md has %s, which /status has not", name)
	}
}

// serving starts the listener as `run` does.
func serving(t *testing.T, cfg *config.Config, reg *prometheus.Registry, log *slog.Logger, watch ...func(net.Conn, http.ConnState)) (addr string) {
	t.Helper()
	cfg.HTTP.Listen = "127.0.0.1:0"
	s, err := listen(cfg, reg, &fakeRelay{ready: true, status: relay.Status{State: relay.Streaming}}, log)
	must(t, err)
	for _, f := range watch {
		s.srv.ConnState = f
	}
	done := make(chan struct{})
	go func() { defer close(done); s.serve(t.Context()) }()
	t.Cleanup(func() { <-done }) // the context of the test has ended at that time
	return s.ln.Addr().String()
}

// stuckBytes is the size of a response that does not fit in the buffers of a socket.
const stuckBytes = 6 << 20

// TestClientsThatNeverRead checks that scrapes succeed promptly while more clients than the limit of connections send
// requests and never read.
func TestClientsThatNeverRead(t *testing.T) {
	reg := prometheus.NewRegistry()
	large := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "large", Help: strings.Repeat("x", stuckBytes)}, nil)
	large.WithLabelValues().Set(1)
	reg.MustRegister(large)
	var open atomic.Int32
	addr := serving(t, config.Default(), reg, slog.New(slog.DiscardHandler), func(_ net.Conn, s http.ConnState) {
		switch s {
		case http.StateNew:
			open.Add(1)
		case http.StateClosed, http.StateHijacked:
			open.Add(-1)
		case http.StateActive, http.StateIdle:
		}
	})
	for range maxConnections + 8 {
		c, err := net.Dial("tcp", addr)
		must(t, err)
		defer c.Close()
		if _, err := io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: slow\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		// The response has begun and is larger than the buffers of the kernel, so writing it blocks from now on.
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatalf("no answer begins: %v", err)
		}
	}
	for end := time.Now().Add(writeWithin / 2); open.Load() > maxConnections; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d connections are open, of which %d may be", open.Load(), maxConnections)
		}
	}
	for n := range 3 {
		// A scrape that waited for clients that do not read would wait until their connections are closed.
		client := &http.Client{Timeout: writeWithin * 8 / 10, Transport: &http.Transport{DisableKeepAlives: true}}
		res, err := client.Get("http://" + addr + "/metrics")
		if err != nil {
			t.Fatalf("scrape %d: %v", n, err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != 200 || !strings.HasSuffix(string(body), "large 1\n") {
			t.Fatalf("scrape %d: %d, %d bytes, %v", n, res.StatusCode, len(body), err)
		}
	}
}

// TestWriteDeadline checks that a client that does not read the response loses its connection after writeWithin.
func TestWriteDeadline(t *testing.T) {
	var deadline atomic.Value
	w := &deadlines{ResponseWriter: httptest.NewRecorder(), set: func(d time.Time) { deadline.Store(d) }}
	answer(w, true, "x")
	if d, ok := deadline.Load().(time.Time); !ok || time.Until(d) > writeWithin || time.Until(d) < writeWithin/2 {
		t.Errorf("the deadline is %v", deadline.Load())
	}
}

type deadlines struct {
	http.ResponseWriter
	set func(time.Time)
}

func (d *deadlines) SetWriteDeadline(t time.Time) error { d.set(t); return nil }
