package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/audit"
)

// TestAuditMetrics checks the file of `audit --metrics` over several audits: the time of the last clean audit
// outlives an audit with findings, and each kind of finding has a series.
func TestAuditMetrics(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "orders.prom")
	began := time.Unix(1_800_000_000, 0)
	day := func(n int) time.Time { return began.AddDate(0, 0, n) }
	write := func(n int, res audit.Counts) string {
		t.Helper()
		must(t, writeAuditMetrics(file, "orders", &audit.Result{Counts: res}, day(n), day(n).Add(21*time.Second)))
		text, err := os.ReadFile(file)
		must(t, err)
		return string(text)
	}
	has := func(text string, lines ...string) {
		t.Helper()
		for _, line := range lines {
			if !slices.Contains(strings.Split(text, "\n"), line) {
				t.Errorf("no line %q in\n%s", line, text)
			}
		}
	}
	missing := audit.Counts{Rows: 7, Findings: map[audit.Kind]int64{audit.Missing: 3}}
	has(write(0, missing), `outboxcdc_audit_last_clean_timestamp_seconds{slot="orders"} 0`)
	has(write(1, audit.Counts{Rows: 5, Records: 6}),
		`outboxcdc_audit_timestamp_seconds{slot="orders"} 1.800086421e+09`,
		`outboxcdc_audit_last_clean_timestamp_seconds{slot="orders"} 1.800086421e+09`,
		`outboxcdc_audit_duration_seconds{slot="orders"} 21`,
		`outboxcdc_audit_rows{slot="orders"} 5`,
		`outboxcdc_audit_records{slot="orders"} 6`,
		`outboxcdc_audit_findings{kind="missing",slot="orders"} 0`,
		`outboxcdc_audit_findings{kind="phantom",slot="orders"} 0`,
		`outboxcdc_audit_findings{kind="differs",slot="orders"} 0`,
		`outboxcdc_audit_findings{kind="duplicate",slot="orders"} 0`,
		`outboxcdc_audit_findings{kind="inversion",slot="orders"} 0`)
	for n := 2; n <= 3; n++ {
		has(write(n, missing),
			`outboxcdc_audit_last_clean_timestamp_seconds{slot="orders"} 1.800086421e+09`,
			`outboxcdc_audit_findings{kind="missing",slot="orders"} 3`)
	}
	has(write(3, audit.Counts{Rows: 4, Unjudged: 4}),
		`outboxcdc_audit_last_clean_timestamp_seconds{slot="orders"} 1.800086421e+09`,
		`outboxcdc_audit_unjudged{slot="orders"} 4`)
	has(write(4, audit.Counts{}),
		`outboxcdc_audit_last_clean_timestamp_seconds{slot="orders"} 1.800345621e+09`,
		`outboxcdc_audit_findings{kind="missing",slot="orders"} 0`)
	noOtherFile(t, file)
}

// TestAuditMetricsOfAnotherSlot checks that an audit does not replace the metrics of another slot, clean or not: its
// alerts would end.
func TestAuditMetricsOfAnotherSlot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.prom")
	now := time.Now()
	must(t, writeAuditMetrics(file, "orders", &audit.Result{}, now, now))
	before := readFile(t, file)
	for name, res := range outcomes() {
		err := writeAuditMetrics(file, "payments", res, now, now)
		errorHas(t, name, err, file, `the audit of slot "orders"`, `choose another file for slot "payments"`)
	}
	if after := readFile(t, file); after != before {
		t.Errorf("the file is now\n%s", after)
	}
}

// TestAuditMetricsDamaged checks that an audit with findings refuses a damaged file, because the time of the last clean
// audit is lost, and that a clean audit replaces the file.
func TestAuditMetricsDamaged(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.prom")
	now := time.Now()
	for _, damage := range []string{"\x00\x00\x00", "outboxcdc_audit_last_clean_timestamp_seconds{slot=\"orders\"} 1.8e", "{"} {
		must(t, os.WriteFile(file, []byte(damage), 0o600))
		err := writeAuditMetrics(file, "orders", outcomes()["findings"], now, now)
		errorHas(t, damage, err, file, "the time of the last clean audit", "remove this file")
		if after := readFile(t, file); after != damage {
			t.Errorf("the damaged file is now\n%s", after)
		}
		if err := writeAuditMetrics(file, "orders", outcomes()["clean"], now, now); err != nil {
			t.Errorf("%q: %v", damage, err)
		}
	}
}

// TestAuditMetricsAreReplaced checks that a reader sees the previous or the new file as a whole, with permissions for
// node_exporter, and that a failure leaves the previous file and no other.
func TestAuditMetricsAreReplaced(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.prom")
	now := time.Now()
	must(t, writeAuditMetrics(file, "orders", &audit.Result{}, now, now))
	previous, err := os.Open(file)
	must(t, err)
	defer previous.Close() //nolint:errcheck // only read
	before := readFile(t, file)
	must(t, writeAuditMetrics(file, "orders", outcomes()["findings"], now, now.Add(time.Hour)))
	held := make([]byte, len(before)+1)
	if n, _ := previous.Read(held); string(held[:n]) != before {
		t.Errorf("the file was written in place: a reader has\n%s", held[:n])
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	noOtherFile(t, file)
	away := filepath.Join(filepath.Dir(file), "nosuch", "audit.prom")
	errorHas(t, "no directory", writeAuditMetrics(away, "orders", &audit.Result{}, now, now), away)
}

// outcomes are the results of a clean audit and of one with findings.
func outcomes() map[string]*audit.Result {
	return map[string]*audit.Result{
		"clean":    {},
		"findings": {Counts: audit.Counts{Findings: map[audit.Kind]int64{audit.Phantom: 1}}},
	}
}

func errorHas(t *testing.T, what string, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error", what)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %q is not in %q", what, part, err)
		}
	}
}

// noOtherFile checks that the directory has only this file: node_exporter reads all files of its directory.
func noOtherFile(t *testing.T, file string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(file))
	if err != nil || len(entries) != 1 || entries[0].Name() != filepath.Base(file) {
		t.Errorf("%v %v", entries, err)
	}
}

func readFile(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	return string(text)
}
