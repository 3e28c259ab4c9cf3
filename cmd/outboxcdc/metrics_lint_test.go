package main

import (
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"github.com/outboxcdc/outboxcdc/internal/audit"
	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/wire"
)

// TestMetricsLint runs the linter of Prometheus on all metrics. Metrics without a series, which /metrics omits, are
// taken from registeredMetrics.
func TestMetricsLint(t *testing.T) {
	reg := newRegistry()
	all := &both{Registry: reg}
	cfg := config.Default()
	cfg.TLS.Enabled, cfg.TLS.CAFile = true, validUntil(t, time.Now().Add(time.Hour))
	newReloader(cfg, nil, nil, all, nil)
	if _, err := wire.Relay(wire.Fixed(config.Default()), all, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	if _, err := newWatcher(wire.Fixed(config.Default()), all, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	setAuditMetrics(all, "s", &audit.Result{}, 0, time.Time{}, time.Time{})
	ofHTTP := &both{Registry: prometheus.NewRegistry()} // some have the names of those for Kafka
	if _, err := wire.OpenReceiver(wire.Fixed(config.Default()), ofHTTP, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	redis := config.Default()
	redis.Sink = config.SinkRedis
	ofRedis := &both{Registry: prometheus.NewRegistry()}
	if _, err := wire.OpenReceiver(wire.Fixed(redis), ofRedis, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	for _, c := range slices.Concat(all.collectors, ofHTTP.collectors, ofRedis.collectors) {
		fill(c)
	}
	var families []*dto.MetricFamily
	for _, r := range []*prometheus.Registry{reg, ofHTTP.Registry, ofRedis.Registry} {
		problems, err := testutil.GatherAndLint(r)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
		gathered, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		families = append(families, gathered...)
	}
	seen := map[string]bool{}
	for _, f := range families {
		seen[f.GetName()] = true
		if h := f.GetMetric()[0].GetHistogram(); f.GetName() == "outboxcdc_event_latency_seconds" && (h.Schema == nil || len(h.GetBucket()) == 0) {
			t.Error("the latency is not a classic and a native histogram")
		}
	}
	names := registeredMetrics(t)
	maps.Copy(names, registeredAuditMetrics(t))
	for name := range names {
		if !seen[name] {
			t.Errorf("%s was not checked", name)
		}
	}
}

// TestSeriesExistFromTheStart checks that series with known labels exist from the start, at zero: otherwise rate() and
// increase() would not count the first event.
func TestSeriesExistFromTheStart(t *testing.T) {
	reg := wired(t)
	for name, least := range map[string]int{
		"outboxcdc_state": 10, "outboxcdc_replication_reconnects_total": 15, "outboxcdc_events_skipped_total": 4,
		"outboxcdc_events_dead_lettered_total": 13, "outboxcdc_replication_messages_total": 5,
		"outboxcdc_status_updates_total": 2, "outboxcdc_slot_wal_status": 4, "outboxcdc_slot_invalidated": 5,
	} {
		n, err := testutil.GatherAndCount(reg, name)
		if err != nil || n < least {
			t.Errorf("%s has %d series at the start, want at least %d (%v)", name, n, least, err)
		}
	}
}

// wired are the metrics of a daemon that has not started.
func wired(t *testing.T) *prometheus.Registry {
	t.Helper()
	reg := prometheus.NewRegistry()
	if _, err := wire.Relay(wire.Fixed(config.Default()), reg, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	return reg
}

// both is a Registerer that also records the collectors.
type both struct {
	*prometheus.Registry
	recorder
}

func (b *both) Register(c prometheus.Collector) error {
	_ = b.recorder.Register(c)
	return b.Registry.Register(c)
}

func (b *both) MustRegister(cs ...prometheus.Collector) {
	b.recorder.MustRegister(cs...)
	b.Registry.MustRegister(cs...)
}
func (b *both) Unregister(c prometheus.Collector) bool { return b.Registry.Unregister(c) }

// fill adds a series to a vector without series, so that Gather returns it.
func fill(c prometheus.Collector) {
	if testutil.CollectAndCount(c) > 0 {
		return
	}
	for _, labels := range [][]string{{"a"}, {"a", "b"}} {
		switch v := c.(type) {
		case *prometheus.CounterVec:
			_, _ = v.GetMetricWithLabelValues(labels...)
		case *prometheus.GaugeVec:
			_, _ = v.GetMetricWithLabelValues(labels...)
		case *prometheus.HistogramVec:
			_, _ = v.GetMetricWithLabelValues(labels...)
		}
	}
}
