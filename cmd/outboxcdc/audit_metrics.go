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

	"github.com/outboxcdc/outboxcdc/internal/audit"
)

const lastCleanName = "outboxcdc_audit_last_clean_timestamp_seconds"

// setAuditMetrics registers the metrics of `audit --metrics`, which are in a file for node_exporter, and not among
// those of the daemon. There is a series for each kind of finding, also for those that were not found.
func setAuditMetrics(reg prometheus.Registerer, slot string, res *audit.Result, lastClean float64, began, ended time.Time) {
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, append([]string{"slot"}, labels...))
		reg.MustRegister(g)
		return g
	}
	set := func(value float64, name, help string) { gauge(name, help).WithLabelValues(slot).Set(value) }
	set(float64(ended.Unix()), "outboxcdc_audit_timestamp_seconds", "When the last audit ended, in Unix time.")
	set(lastClean, lastCleanName, "When the last audit ended that had no findings and could judge every row that Kafka should have, in Unix time; 0: there was none.")
	set(ended.Sub(began).Seconds(), "outboxcdc_audit_duration_seconds", "How long the last audit took.")
	set(float64(res.Rows), "outboxcdc_audit_rows", "Rows that the last audit compared.")
	set(float64(res.Unjudged), "outboxcdc_audit_unjudged", "Rows that the last audit could not judge, because Kafka may have deleted their records, or has others with their ids.")
	set(float64(res.Records), "outboxcdc_audit_records", "Records that the last audit read.")
	findings := gauge("outboxcdc_audit_findings", "Findings of the last audit.", "kind")
	for _, k := range audit.Kinds {
		findings.WithLabelValues(slot, string(k)).Set(float64(res.Findings[k]))
	}
}

// writeAuditMetrics replaces the file for node_exporter's textfile collector. After an audit with findings, or one that
// could not judge any row, the time of the last clean audit is that of the previous file.
func writeAuditMetrics(file, slot string, res *audit.Result, began, ended time.Time) error {
	lastClean, err := readLastClean(file, slot)
	if res.Clean() {
		lastClean = float64(ended.Unix())
		if _, damaged := errors.AsType[damagedFileError](err); damaged {
			err = nil // nothing of that file is needed
		}
	}
	if err != nil {
		return err
	}
	reg := prometheus.NewRegistry()
	setAuditMetrics(reg, slot, res, lastClean, began, ended)
	return prometheus.WriteToTextfile(file, reg)
}

// damagedFileError says that a file does not have the text format of Prometheus.
type damagedFileError struct{ error }

// readLastClean reads the time of the last clean audit from a file of writeAuditMetrics; 0: there was none. A file with
// the audit of another slot is an error: that slot's metrics, and with them its alerts, would vanish without a trace.
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
		return 0, damagedFileError{fmt.Errorf("read the time of the last clean audit from %s: %w: remove this file, and run the audit again", file, err)}
	}
	var lastClean float64
	for _, m := range families[lastCleanName].GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetName() == "slot" && l.GetValue() != slot {
				return 0, fmt.Errorf("%s has the audit of slot %q: choose another file for slot %q, or remove this file if slot %[2]q does not exist any more",
					file, l.GetValue(), slot)
			}
		}
		lastClean = m.GetGauge().GetValue()
	}
	return lastClean, nil
}
