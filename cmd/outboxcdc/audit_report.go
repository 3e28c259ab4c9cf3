package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/outboxcdc/outboxcdc/internal/audit"
	"github.com/outboxcdc/outboxcdc/internal/human"
)

// auditText is the summary of an audit.
func auditText(t *tableSet, res *audit.Result, shown map[audit.Kind]int, notes []string, took time.Duration) string {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	for _, k := range audit.Kinds {
		if more := shown[k] - shownAtMost; more > 0 {
			say("%s … and %d more: -o json prints all", k, more)
		}
	}
	say("%s of %s, %s of %s, in %s", human.Count(int(res.Rows), "row", "rows"), t.names(),
		human.Count(int(res.Records), "record", "records"), human.Count(readTopics(res), "topic", "topics"), human.Duration(took))
	if res.Confirmed {
		say("the slot has confirmed every row, up to %s", res.SnapshotAt)
	}
	for _, c := range []struct {
		n    int64
		what string
	}{
		{res.Delivered, "rows have a record"},
		{res.Waiting, "rows wait in the slot"},
		{res.DeadLettered, "rows are dead letters"},
		{res.Skipped, "rows are skipped by the poison policy"},
		{res.Unjudged, "rows are not judged: Kafka may have deleted their records (retention or compaction)"},
		{res.Repeated, "records are identical duplicates"},
		{res.Resent, "records were recovered, replayed or retried"},
		{res.Newer, "records are newer than the snapshot"},
		{res.Counts.Outside, "records have a row outside the range"},
		{res.Foreign, "records are of another server"},
	} {
		if c.n > 0 || c.what == "rows have a record" {
			say("  %10d %s", c.n, c.what)
		}
	}
	for _, n := range notes {
		say("note: %s", n)
	}
	if res.Clean() && res.Unjudged > 0 {
		say("no findings, but rows that are not judged may be missing (docs/audit.md)")
		return b.String()
	}
	if res.Clean() {
		say("clean: nothing is missing, unknown, altered or out of order")
		return b.String()
	}
	var found []string
	for _, k := range audit.Kinds {
		if n := res.Findings[k]; n > 0 {
			found = append(found, fmt.Sprintf("%d %s", n, k))
		}
	}
	say("FINDINGS: %s (docs/audit.md says what each means and what to do)", strings.Join(found, ", "))
	return b.String()
}

func readTopics(res *audit.Result) int {
	names := map[string]bool{}
	for i := range res.Spans {
		names[res.Spans[i].Topic] = true
	}
	return len(names)
}

const lastCleanName = "outboxcdc_audit_last_clean_timestamp_seconds"

// writeAuditMetrics writes the result for node_exporter's textfile collector. The time of the last clean audit is kept from the file
// before.
func writeAuditMetrics(file, slot string, res *audit.Result, began, ended time.Time) error {
	lastClean := float64(ended.Unix())
	if !res.Clean() {
		var err error
		if lastClean, err = readLastClean(file, slot); err != nil {
			return err
		}
	}
	reg := prometheus.NewRegistry()
	gauge := func(name, help string, value float64, labels ...string) {
		names, values := []string{"slot"}, []string{slot}
		for i := 0; i < len(labels); i += 2 {
			names, values = append(names, labels[i]), append(values, labels[i+1])
		}
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, names)
		if err := reg.Register(g); err != nil {
			existing, _ := errors.AsType[prometheus.AlreadyRegisteredError](err)
			g = existing.ExistingCollector.(*prometheus.GaugeVec)
		}
		g.WithLabelValues(values...).Set(value)
	}
	gauge("outboxcdc_audit_timestamp_seconds", "When the last audit ended, in Unix time.", float64(ended.Unix()))
	gauge(lastCleanName, "When the last audit without findings ended, in Unix time; 0: there was none.", lastClean)
	gauge("outboxcdc_audit_duration_seconds", "How long the last audit took.", ended.Sub(began).Seconds())
	gauge("outboxcdc_audit_rows", "Rows that the last audit compared.", float64(res.Rows))
	gauge("outboxcdc_audit_records", "Records that the last audit read.", float64(res.Records))
	for _, k := range audit.Kinds {
		gauge("outboxcdc_audit_findings", "Findings of the last audit.", float64(res.Findings[k]), "kind", string(k))
	}
	return prometheus.WriteToTextfile(file, reg)
}

// readLastClean is the time of the last clean audit in a file of writeAuditMetrics; 0: there was none.
func readLastClean(file, slot string) (float64, error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close() //nolint:errcheck // only read
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(f)
	if err != nil {
		return 0, fmt.Errorf("read the metrics of the audit before from %s: %w", file, err)
	}
	for _, m := range families[lastCleanName].GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetName() == "slot" && l.GetValue() == slot {
				return m.GetGauge().GetValue(), nil
			}
		}
	}
	return 0, nil
}
