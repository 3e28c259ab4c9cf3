package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/outboxcdc/outboxcdc/internal/retention"
)

const lastRemovedName = "outboxcdc_retention_last_removed_timestamp_seconds"

// retainMetrics are the metrics of `retain`. They are not among those of the daemon.
type retainMetrics struct {
	reg     *prometheus.Registry
	at      prometheus.Gauge
	removed *prometheus.GaugeVec
	bytes   *prometheus.GaugeVec
	oldest  *prometheus.GaugeVec
	overdue *prometheus.GaugeVec
	blocks  *prometheus.GaugeVec
}

// newRetainMetrics registers the metrics. When rows were removed last is read from the file of an earlier run, if there
// is one.
func newRetainMetrics(file string) (*retainMetrics, error) {
	reg := prometheus.NewRegistry()
	m, err := registerRetainMetrics(reg, file)
	if m != nil {
		m.reg = reg
	}
	return m, err
}

func registerRetainMetrics(reg prometheus.Registerer, file string) (*retainMetrics, error) {
	m := &retainMetrics{}
	vec := func(name, help string, labels ...string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
		reg.MustRegister(g)
		return g
	}
	m.at = prometheus.NewGauge(prometheus.GaugeOpts{Name: "outboxcdc_retention_timestamp_seconds", Help: "When the last run of retain ended, in Unix time."})
	reg.MustRegister(m.at)
	m.removed = vec(lastRemovedName, "When retain has removed rows of a table last, in Unix time; 0: not known.", "table")
	m.bytes = vec("outboxcdc_retention_table_bytes", "Size of a table with its indexes before the last run of retain.", "table")
	m.oldest = vec("outboxcdc_retention_oldest_row_timestamp_seconds", "Time of the oldest row that the last run of retain has left, in Unix time; without an index of the times that of the first row of the table; 0: not known.", "table")
	m.overdue = vec("outboxcdc_retention_overdue_partitions", "Partitions whose rows are old enough and had to stay, by reason.", "table", "reason")
	m.blocks = vec("outboxcdc_retention_slot_blocks", "Whether rows had to stay because a slot has not confirmed them.", "slot")
	if file == "" {
		return m, nil
	}
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the metrics of the last run: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(f)
	if err != nil {
		return nil, fmt.Errorf("read the metrics of the last run from %s: %w; remedy: remove this file", file, err)
	}
	for _, old := range families[lastRemovedName].GetMetric() {
		for _, l := range old.GetLabel() {
			m.removed.WithLabelValues(l.GetValue()).Set(old.GetGauge().GetValue())
		}
	}
	return m, nil
}

// set sets the metrics after a run. slots are those that had to confirm.
func (m *retainMetrics) set(slots []string, results []retention.TableResult, now time.Time) {
	m.at.Set(float64(now.Unix()))
	m.blocks.Reset()
	for _, slot := range slots {
		m.blocks.WithLabelValues(slot).Set(0)
	}
	for i := range results {
		res := &results[i]
		m.bytes.WithLabelValues(res.Table).Set(float64(res.Bytes))
		removed := m.removed.WithLabelValues(res.Table)
		if res.Removed() > 0 {
			removed.Set(float64(now.Unix()))
		}
		oldest := 0.0
		if !res.Oldest.IsZero() {
			oldest = float64(res.Oldest.Unix())
		}
		m.oldest.WithLabelValues(res.Table).Set(oldest)
		overdue := res.Overdue()
		for _, reason := range retention.Reasons {
			m.overdue.WithLabelValues(res.Table, string(reason)).Set(float64(overdue[reason]))
		}
		for _, leaf := range res.Leaves {
			if leaf.Slot != "" {
				m.blocks.WithLabelValues(leaf.Slot).Set(1)
			}
		}
	}
}

// write replaces the file for node_exporter's textfile collector.
func (m *retainMetrics) write(file string) error { return prometheus.WriteToTextfile(file, m.reg) }
