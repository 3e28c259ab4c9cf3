package main

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/audit"
)

// TestMetricsNamedElsewhere checks that metrics, labels and fixed label values in alerts, dashboard and documents
// exist.
func TestMetricsNamedElsewhere(t *testing.T) {
	files := []string{"README.md", "deploy/prometheus/alerts.yaml", "deploy/prometheus/alerts_test.yaml", "deploy/prometheus/alerts_hours_test.yaml", "deploy/grafana/outboxcdc.json"}
	docs, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(docs) == 0 {
		t.Fatal("no documents", err)
	}
	for _, d := range docs {
		files = append(files, strings.TrimPrefix(d, "../../"))
	}
	known := knownMetrics(t)
	named := 0
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join("../..", file))
		must(t, err)
		found, wrong := known.check(string(text))
		named += found
		for _, w := range wrong {
			t.Errorf("%s: %s", file, w)
		}
	}
	if named < 200 {
		t.Errorf("only %d names were found: this proves nothing", named)
	}
}

// TestMetricsNamedWrongly checks that each kind of mistake is found.
func TestMetricsNamedWrongly(t *testing.T) {
	known := knownMetrics(t)
	for text, want := range map[string]string{
		`outboxcdc_lag`: "no metric outboxcdc_lag",
		`rate(outboxcdc_event_latency_seconds[5m])`:                        "",
		`outboxcdc_event_latency_seconds_bucket{le="5"}`:                   "",
		`outboxcdc_transactions_total_count`:                               "no metric outboxcdc_transactions_total_count",
		`outboxcdc_state{state="streaming", instance="a"}`:                 "",
		`outboxcdc_state{slot="s"}`:                                        "outboxcdc_state has no label slot",
		`outboxcdc_state{state=~"streaming|asleep"}`:                       `outboxcdc_state: state is never "asleep"`,
		`outboxcdc_kafka_produce_errors_total{topic="t",error="MESSAGE"}`:  "",
		`outboxcdc_event_latency_seconds{le="5"}`:                          "outboxcdc_event_latency_seconds has no label le",
		`sum by (job, sort) (outboxcdc_state)`:                             "no metric has the label sort",
		`outboxcdc_slot_wal_status{job=~\"$job\", status=\"gone\"}`:        `outboxcdc_slot_wal_status: status is never "gone"`,
		`outboxcdc_events_skipped_total{job=~\"$job\", reason=\"poison\"}`: "",
		`outboxcdc_audit_findings{slot="orders", kind="missing"}`:          "",
		`outboxcdc_audit_findings{kind="lost"}`:                            `outboxcdc_audit_findings: kind is never "lost"`,
	} {
		_, wrong := known.check(text)
		if got := strings.Join(wrong, "; "); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

// metricNames are the metrics of the daemon, of `audit --metrics`, and of consumers: the labels of each metric, and the
// values of labels that exist from the start.
type metricNames struct {
	labels map[string][]string
	values map[string]map[string][]string
}

func knownMetrics(t *testing.T) *metricNames {
	t.Helper()
	k := &metricNames{labels: map[string][]string{}, values: map[string]map[string][]string{}}
	registered := registeredMetrics(t)
	maps.Copy(registered, registeredAuditMetrics(t))
	maps.Copy(registered, registeredRetainMetrics(t))
	page, err := os.ReadFile("../../docs/metrics.md")
	must(t, err)
	_, consumers := cutConsumers(t, string(page))
	maps.Copy(registered, documentedMetrics(t, consumers))
	for name, text := range registered {
		kind, labels, _ := strings.Cut(strings.TrimSuffix(text, "}"), " {")
		list := strings.FieldsFunc(labels, func(r rune) bool { return r == ',' })
		k.labels[name] = list
		if kind == "histogram" {
			k.labels[name+"_bucket"] = append(slices.Clone(list), "le")
			k.labels[name+"_sum"], k.labels[name+"_count"] = list, list
		}
	}
	reg := wired(t)
	setAuditMetrics(reg, "s", &audit.Result{}, 0, time.Now(), time.Now())
	families, err := reg.Gather()
	must(t, err)
	for _, f := range families {
		values := map[string][]string{}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if !slices.Contains([]string{"topic", "slot"}, l.GetName()) {
					values[l.GetName()] = append(values[l.GetName()], l.GetValue())
				}
			}
		}
		k.values[f.GetName()] = values
	}
	return k
}

var (
	metricName = regexp.MustCompile(`\boutboxcdc_[a-z_]+\b(\{[^}\n]*\})?`)
	matcher    = regexp.MustCompile(`(\w+)\s*(=~|!=|!~|=)\s*\\?"([^"\\]*)`)
	grouping   = regexp.MustCompile(`\b(?:by|on|without|ignoring)\s*\(([a-z_, ]*)\)`)
)

// check returns the number of metrics in the text, and the errors.
func (k *metricNames) check(text string) (named int, wrong []string) {
	target := []string{"job", "instance"} // Prometheus adds these
	for _, m := range metricName.FindAllStringSubmatch(text, -1) {
		name, selector, _ := strings.Cut(m[0], "{")
		named++
		labels, ok := k.labels[name]
		if !ok {
			wrong = append(wrong, "no metric "+name)
			continue
		}
		for _, l := range matcher.FindAllStringSubmatch(selector, -1) {
			label, values := l[1], l[3]
			if slices.Contains(target, label) {
				continue
			}
			if !slices.Contains(labels, label) {
				wrong = append(wrong, name+" has no label "+label)
				continue
			}
			possible := k.values[name][label]
			for _, v := range strings.Split(values, "|") {
				if len(possible) > 0 && v != ".*" && !slices.Contains(possible, v) {
					wrong = append(wrong, name+": "+label+` is never "`+v+`"`)
				}
			}
		}
	}
	var all []string
	for _, labels := range k.labels {
		all = append(all, labels...)
	}
	for _, m := range grouping.FindAllStringSubmatch(text, -1) {
		for _, label := range strings.FieldsFunc(m[1], func(r rune) bool { return r == ',' || r == ' ' }) {
			if !slices.Contains(all, label) && !slices.Contains(target, label) {
				wrong = append(wrong, "no metric has the label "+label)
			}
		}
	}
	return named, wrong
}
