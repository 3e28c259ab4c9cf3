package relay

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/outboxcdc/outboxcdc/router"
)

// bench is a relay between a fake Postgres and a fake Kafka, in time that passes only when nothing else happens.
type bench struct {
	*testing.T
	pg    *postgres
	kafka *cluster
	relay *Relay
	reg   *prometheus.Registry
	log   *logbook

	mu sync.Mutex // guards pg and kafka

	stop context.CancelFunc
	done chan error // what Run returned
}

// testConfig is the default configuration with a small window, which tests can fill.
func testConfig() Config {
	cfg := DefaultConfig()
	cfg.MaxEvents = 100
	return cfg
}

func newRouter(t testing.TB) *router.Router {
	t.Helper()
	cfg := router.DefaultConfig()
	cfg.Topic = "{aggregate_type}"
	r, err := router.New(cfg)
	must(t, err)
	return r
}

// bubble runs f with a bench on which nothing is started yet. It stops everything that f leaves running.
func bubble(t *testing.T, cfg Config, f func(*bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, cfg)
		defer b.finish()
		f(b)
	})
}

// finish stops everything that a test left running, also after Fatal: a bubble must not end with goroutines in it.
func (b *bench) finish() {
	if b.stop == nil {
		return
	}
	b.stop()
	select {
	case err := <-b.done:
		b.Logf("left to itself, Run returned %v", err)
	case <-time.After(10 * time.Minute):
		b.Error("Run does not end")
	}
}

func newBench(t *testing.T, cfg Config) *bench {
	b := &bench{T: t, log: &logbook{}}
	b.pg, b.kafka = newPostgres(b), newCluster(b)
	b.process(cfg)
	return b
}

// process creates a relay that knows nothing of earlier ones, like a new process.
func (b *bench) process(cfg Config) {
	b.reg = prometheus.NewRegistry()
	b.relay = New(cfg, b.pg, b.kafka, newRouter(b), NewMetrics(b.reg, "outboxcdc"), slog.New(slog.NewTextHandler(b.log, nil)))
}

// start runs the relay until it has nothing to do.
func (b *bench) start() {
	b.Helper()
	var ctx context.Context
	ctx, b.stop = context.WithCancel(context.Background())
	b.done = make(chan error, 1)
	go func() { b.done <- b.relay.Run(ctx) }()
	synctest.Wait()
}

// sleep lets time pass, and waits until everything that is due has happened.
func (b *bench) sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// quit sends SIGTERM, waits for the end of Run, and returns its result.
func (b *bench) quit() error {
	b.Helper()
	b.stop()
	return b.result(5 * time.Minute)
}

// result waits for Run to return.
func (b *bench) result(within time.Duration) error {
	b.Helper()
	select {
	case err := <-b.done:
		b.stop()
		b.stop = nil
		return err
	case <-time.After(within):
		b.Fatalf("Run has not returned within %s; state %s: %s", within, b.state(), b.relay.Status().Reason)
		return nil
	}
}

// ends waits for Run to return an error of the class.
func (b *bench) ends(class Class, within time.Duration) Stopped {
	b.Helper()
	err := b.result(within)
	var s *Stopped
	if !errors.As(err, &s) || s.Class != class {
		b.Fatalf("Run returned %v (%+v), want class %d", err, s, class)
	}
	if b.state() != Failed && class != Fault {
		b.Errorf("state %s after the end", b.state())
	}
	return *s
}

func (b *bench) running() bool {
	select {
	case err := <-b.done:
		b.done <- err
		return false
	default:
		return true
	}
}

func (b *bench) state() State { return b.relay.Status().State }

func (b *bench) want(s State) {
	b.Helper()
	if got := b.relay.Status(); got.State != s {
		b.Fatalf("state %s (%s), want %s", got.State, got.Reason, s)
	}
}

// delivered checks that Kafka has exactly these events, once each and in this order.
func (b *bench) delivered(ids ...string) {
	b.Helper()
	if got := b.kafka.ids(); !slices.Equal(got, ids) {
		b.Fatalf("Kafka has %v\nwant      %v", got, ids)
	}
}

// inFlight checks that Kafka has exactly these events, and has not acknowledged them.
func (b *bench) inFlight(ids ...string) {
	b.Helper()
	if got := b.kafka.flying(); !slices.Equal(got, ids) {
		b.Fatalf("in flight %v, want %v", got, ids)
	}
}

func (b *bench) slotIs(want pglogrepl.LSN) {
	b.Helper()
	if got := b.pg.slotAt(); got != want {
		b.Errorf("the slot is at %s, want %s", got, want)
	}
}

func (b *bench) sessionsAre(want int) {
	b.Helper()
	if got := b.pg.sessions(); got != want {
		b.Fatalf("%d sessions, want %d", got, want)
	}
}

// logged checks how many lines of the log contain a text.
func (b *bench) logged(want int, text string) {
	b.Helper()
	if got := b.log.count(text); got != want {
		b.Errorf("%d lines with %q, want %d", got, text, want)
	}
}

// counts checks the value of a counter or gauge.
func (b *bench) counts(want float64, name string, labels ...string) {
	b.Helper()
	if got := b.metric(name, labels...); got != want {
		b.Errorf("%s%v is %v, want %v", name, labels, got, want)
	}
}

// metric returns the value of a counter or gauge; labels are "name=value".
func (b *bench) metric(name string, labels ...string) float64 {
	b.Helper()
	for _, m := range b.family(name) {
		if matches(m, labels) {
			switch {
			case m.Counter != nil:
				return m.GetCounter().GetValue()
			case m.Gauge != nil:
				return m.GetGauge().GetValue()
			case m.Histogram != nil:
				return float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	b.Fatalf("no metric %s%v", name, labels)
	return 0
}

func (b *bench) family(name string) []*dto.Metric {
	b.Helper()
	families, err := b.reg.Gather()
	must(b, err)
	for _, f := range families {
		if f.GetName() == "outboxcdc_"+name {
			return f.GetMetric()
		}
	}
	b.Fatalf("no metric %s", name)
	return nil
}

func matches(m *dto.Metric, labels []string) bool {
	for _, l := range labels {
		name, value, _ := strings.Cut(l, "=")
		if !slices.ContainsFunc(m.GetLabel(), func(p *dto.LabelPair) bool { return p.GetName() == name && p.GetValue() == value }) {
			return false
		}
	}
	return true
}

// logbook keeps the log.
type logbook struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// count returns the number of lines that contain s.
func (l *logbook) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for line := range strings.Lines(l.buf.String()) {
		if strings.Contains(line, s) {
			n++
		}
	}
	return n
}

// line returns the first line that contains s, "" if there is none.
func (l *logbook) line(s string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.buf.String()) {
		if strings.Contains(line, s) {
			return line
		}
	}
	return ""
}

// must fails the test with an error that no step of it expects.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
