package main

import (
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/outboxcdc/outboxcdc/internal/audit"
	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/wire"
)

// TestMetricsAreDocumented checks that docs/metrics.md lists exactly the metrics, with their types and labels: those of
// `audit --metrics` and of `retain` in sections of their own, and those of the daemon before and after.
func TestMetricsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/metrics.md")
	must(t, err)
	daemon, _ := cutConsumers(t, string(text))
	before, rest, found := strings.Cut(daemon, "\n## The audit\n")
	section, rest, ends := strings.Cut(rest, "\n## Retention\n")
	retains, after, more := strings.Cut(rest, "\n## ")
	if !found || !ends || !more {
		t.Fatal("docs/metrics.md has no section about the audit, and after it one about retention")
	}
	compareDocumented(t, before+"\n## "+after, registeredMetrics(t))
	compareDocumented(t, section, registeredAuditMetrics(t))
	compareDocumented(t, retains, registeredRetainMetrics(t))
}

// cutConsumers cuts the section about the metrics of consumers out of docs/metrics.md. A test of the module inbox
// compares it.
func cutConsumers(t *testing.T, text string) (rest, section string) {
	t.Helper()
	before, after, found := strings.Cut(text, "\n## Consumers\n")
	section, after, ends := strings.Cut(after, "\n## ")
	if !found || !ends {
		t.Fatal("docs/metrics.md has no section about consumers")
	}
	return before + "\n## " + after, section
}

// documentedMetrics returns kind and labels of the metrics in a list.
func documentedMetrics(t *testing.T, text string) map[string]string {
	t.Helper()
	documented := map[string]string{}
	row := regexp.MustCompile("(?m)^- `(outboxcdc_[a-z_]+)` \\((\\w+)((?:,\\s+`[a-z]+`)*)\\):")
	for _, m := range row.FindAllStringSubmatch(text, -1) {
		labels := regexp.MustCompile("`([a-z]+)`").FindAllStringSubmatch(m[3], -1)
		var names []string
		for _, l := range labels {
			names = append(names, l[1])
		}
		if _, twice := documented[m[1]]; twice {
			t.Errorf("%s is documented twice", m[1])
		}
		documented[m[1]] = kindAndLabels(m[2], names)
	}
	return documented
}

func compareDocumented(t *testing.T, text string, registered map[string]string) {
	t.Helper()
	documented := documentedMetrics(t, text)
	for name, is := range registered {
		switch got := documented[name]; got {
		case "":
			t.Errorf("%s (%s) is missing in docs/metrics.md", name, is)
		case is:
		default:
			t.Errorf("docs/metrics.md says that %s is %s, but it is %s", name, got, is)
		}
		delete(documented, name)
	}
	for name := range documented {
		t.Errorf("docs/metrics.md documents %s, which is not registered", name)
	}
}

func kindAndLabels(kind string, labels []string) string {
	slices.Sort(labels)
	return kind + " {" + strings.Join(labels, ",") + "}"
}

// registeredMetrics builds the daemon without connecting to anything and returns the types and labels of all metrics.
func registeredMetrics(t *testing.T) map[string]string {
	t.Helper()
	var reg recorder
	registerBuildInfo(&reg)
	newReloader(config.Default(), nil, nil, &reg, nil)
	if _, err := wire.Relay(wire.Fixed(config.Default()), &reg, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	if _, err := newWatcher(wire.Fixed(config.Default()), &reg, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	all := reg.described(t)
	var http recorder
	if _, err := wire.OpenReceiver(wire.Fixed(config.Default()), &http, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	redis := config.Default()
	redis.Sink = config.SinkRedis
	var ofRedis recorder
	if _, err := wire.OpenReceiver(wire.Fixed(redis), &ofRedis, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	for name, is := range ofRedis.described(t) {
		all[name] = is
	}
	for name, is := range http.described(t) {
		if was := all[name]; was != "" && was != is {
			t.Errorf("%s is %s for Kafka and %s for HTTP", name, was, is)
		}
		all[name] = is
	}
	return all
}

// registeredAuditMetrics returns the types and labels of the metrics of `audit --metrics`.
func registeredAuditMetrics(t *testing.T) map[string]string {
	t.Helper()
	var reg recorder
	setAuditMetrics(&reg, "s", &audit.Result{}, 0, time.Time{}, time.Time{})
	return reg.described(t)
}

// registeredRetainMetrics returns the types and labels of the metrics of `retain`.
func registeredRetainMetrics(t *testing.T) map[string]string {
	t.Helper()
	var reg recorder
	if _, err := registerRetainMetrics(&reg, ""); err != nil {
		t.Fatal(err)
	}
	return reg.described(t)
}

// described returns the types and labels of the recorded collectors by their names.
func (r *recorder) described(t *testing.T) map[string]string {
	t.Helper()
	desc := regexp.MustCompile(`^Desc\{fqName: "([^"]+)", .*constLabels: \{([^}]*)\}, variableLabels: \{([^}]*)\}\}$`)
	label := regexp.MustCompile(`[a-z]+`)
	out := map[string]string{}
	for _, c := range r.collectors {
		ch := make(chan *prometheus.Desc, 100)
		c.Describe(ch)
		close(ch)
		for d := range ch {
			m := desc.FindStringSubmatch(d.String())
			if m == nil {
				t.Fatalf("cannot read %s", d)
			}
			labels := label.FindAllString(m[3], -1)
			for _, pair := range strings.Split(m[2], ",") {
				if name, _, ok := strings.Cut(pair, "="); ok {
					labels = append(labels, name)
				}
			}
			out[m[1]] = kindAndLabels(kindOf(t, c), labels)
		}
	}
	return out
}

// kindOf is the type of the metric. A vector may have no series.
func kindOf(t *testing.T, c prometheus.Collector) string {
	t.Helper()
	switch c.(type) {
	case *prometheus.CounterVec:
		return "counter"
	case *prometheus.GaugeVec, certificates:
		return "gauge"
	case *prometheus.HistogramVec:
		return "histogram"
	}
	ch := make(chan prometheus.Metric, 100)
	c.Collect(ch)
	var m dto.Metric
	must(t, (<-ch).Write(&m))
	switch {
	case m.Counter != nil:
		return "counter"
	case m.Gauge != nil:
		return "gauge"
	case m.Histogram != nil:
		return "histogram"
	}
	return "unknown"
}

// recorder is a Registerer that records the collectors.
type recorder struct{ collectors []prometheus.Collector }

func (r *recorder) Register(c prometheus.Collector) error {
	r.collectors = append(r.collectors, c)
	return nil
}

func (r *recorder) MustRegister(cs ...prometheus.Collector) {
	r.collectors = append(r.collectors, cs...)
}
func (r *recorder) Unregister(prometheus.Collector) bool { return false }
