package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/promtest"
)

const (
	alertsFile    = "../../deploy/prometheus/alerts.yaml"
	dashboardFile = "../../deploy/grafana/outboxcdc.json"
)

// A real Prometheus scrapes the daemon, which delivers, sends dead letters, drops poison and loses its connection once,
// and the metrics of two audits, of which the second has findings. It watches a standby that has a copy of the slot.
// Prometheus accepts every query of the dashboard and of the alerts, has data for each, and exactly the expected alerts
// fire.
func TestPrometheus(t *testing.T) {
	promtool := promtest.NeedTool(t, "promtool")
	t.Parallel()
	primary, standby := withStandby(t, map[string]string{"max_slot_wal_keep_size": "10GB"}, map[string]string{"sync_replication_slots": "on"})
	o := newPoisonOutbox(t, options{pg: primary})
	env := o.policy("dead_letter", "OUTBOXCDC_POISON_CAUSES=null_key=skip", fmt.Sprintf("OUTBOXCDC_POSTGRES_STANDBYS=host=127.0.0.1 port=%d", standby.Port))
	r := o.startStreaming(env...)
	audited, collector := serveTextfile(t)
	o.mustRunBinary(env, "audit", "--metrics", audited)
	p, err := promtest.Start(testContext(t), promtest.Options{Targets: []string{r.addr, collector}, Rules: []string{alertsFile}, Every: time.Second})
	must(t, err)
	t.Cleanup(p.Close)
	o.insertMixed(200, nullKey, 10, badTime, 200)
	o.awaitQuery(p, `increase(outboxcdc_events_delivered_total[1m])`) // two scrapes, so that rates have data
	o.exec(`SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '` + o.name + `'`)
	await(t, patience, "another session", func() error {
		return atLeast(r, `outboxcdc_replication_reconnects_total{reason="postgres_unavailable"}`, 1)
	})
	o.insertMixed(100, nullKey, 100, badTime)
	o.awaitQuery(p, `increase(outboxcdc_replication_reconnects_total{reason="postgres_unavailable"}[1m]) > 0`)
	o.awaitQuery(p, `sum(increase(outboxcdc_events_dead_lettered_total[1m])) > 0`)
	o.awaitQuery(p, `outboxcdc_slot_safe_wal_size_bytes`)
	o.exec(`SELECT pg_log_standby_snapshot()`) // else the copy is complete only after 15 s
	o.awaitQuery(p, `outboxcdc_standby_slot_ready == 1`)
	o.verifyGood(100)
	o.exec(`DELETE FROM outbox WHERE ctid = (SELECT min(ctid) FROM outbox)`)
	if out, notes, code := o.runBinary(env, "audit", "--metrics", audited); code != 1 || !strings.Contains(out, "FINDINGS: 1 phantom (") {
		t.Errorf("audit: exit code %d\n%s%s", code, out, notes)
	}
	o.awaitQuery(p, `outboxcdc_audit_findings{kind="phantom"} > 0`)

	t.Run("dashboard", func(t *testing.T) { checkDashboard(t, p) })
	t.Run("alerts", func(t *testing.T) {
		checkAlerts(t, p, "OutboxCDCDeadLetters", "OutboxCDCPoisonSkipped", "OutboxCDCAuditFindings/warning")
	})
	t.Run("promtool", func(t *testing.T) {
		_, text, err := r.get("/metrics")
		must(t, err)
		cmd := exec.Command(promtool, "check", "metrics")
		cmd.Stdin = strings.NewReader(string(text))
		if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "outboxcdc_") {
			t.Errorf("promtool check metrics: %v\n%s", err, out)
		}
	})
}

// serveTextfile returns the path of a file and the address at which it is served as metrics, as by node_exporter's
// textfile collector.
func serveTextfile(t *testing.T) (file, addr string) {
	file = filepath.Join(t.TempDir(), "audit.prom")
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		text, err := os.ReadFile(file)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_, _ = w.Write(text)
	}))
	t.Cleanup(s.Close)
	return file, s.Listener.Addr().String()
}

func atLeast(r *relay, series string, n float64) error {
	m, err := r.metrics()
	if err == nil && m[series] < n {
		err = fmt.Errorf("%s is %v", series, m[series])
	}
	return err
}

func (o *outbox) awaitQuery(p *promtest.Server, expr string) {
	o.t.Helper()
	await(o.t, patience, expr, func() error {
		got, err := p.Query(context.Background(), expr)
		if err == nil && len(got) == 0 {
			err = fmt.Errorf("no data")
		}
		return err
	})
}

// quietSelectors are selectors without data where all is well.
var quietSelectors = []string{`outboxcdc_kafka_produce_errors_total`, `outboxcdc_sink_errors_total`, `outboxcdc_certificate_expiry_timestamp_seconds`}

// quietPanels are parts of queries of panels without data unless there is an error, or a certificate.
var quietPanels = append([]string{"partitions_changed", "outboxcdc_slot_invalidated"}, quietSelectors...)

// checkDashboard runs each query as Grafana would.
func checkDashboard(t *testing.T, p *promtest.Server) {
	text, err := os.ReadFile(dashboardFile)
	must(t, err)
	var page any
	must(t, json.Unmarshal(text, &page))
	queries := exprs(page)
	if len(queries) < 50 {
		t.Fatalf("%d queries", len(queries))
	}
	fill := strings.NewReplacer("$job", ".*", "$instance", ".*", "$slot", ".*", "$__rate_interval", "10m") // long enough to cover the whole test on any machine
	for _, q := range queries {
		q = fill.Replace(q)
		got, err := p.Query(context.Background(), q)
		if err != nil {
			t.Error(err)
			continue
		}
		silent := isOfOtherProcess(q) || slices.ContainsFunc(quietPanels, func(part string) bool { return strings.Contains(q, part) })
		if len(got) == 0 != silent {
			t.Errorf("%s: %d series", q, len(got))
		}
		for _, s := range got {
			if s.Value != s.Value { // NaN
				t.Errorf("%s is no number", q)
			}
		}
	}
}

// isOfOtherProcess reports whether a query is about metrics of an application or of retain, which do not run here. The
// tests of deploy/prometheus and deploy/grafana have them.
func isOfOtherProcess(query string) bool {
	return strings.Contains(query, "outboxcdc_inbox_") || strings.Contains(query, "outboxcdc_retention_")
}

// exprs returns the values of all members called expr.
func exprs(x any) (out []string) {
	switch x := x.(type) {
	case map[string]any:
		for name, v := range x {
			if text, ok := v.(string); ok && name == "expr" {
				out = append(out, text)
			}
			out = append(out, exprs(v)...)
		}
	case []any:
		for _, v := range x {
			out = append(out, exprs(v)...)
		}
	}
	return out
}

// checkAlerts checks that the expected rules ("NAME" or "NAME/SEVERITY") fire by now; of all remaining rules each
// must at least have data.
func checkAlerts(t *testing.T, p *promtest.Server, must ...string) {
	for _, alert := range must {
		await(t, patience, alert, func() error {
			return checkFiring(p, alert)
		})
	}
	rules, err := p.Rules(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if len(rules) < 12 {
		t.Errorf("%d rules", len(rules))
	}
	for _, r := range rules {
		if r.Health != "ok" || r.LastError != "" {
			t.Errorf("%s: %s %s", r.Name, r.Health, r.LastError)
		}
		late := r.Name == "OutboxCDCLatencySLO" && r.State == "firing" // a machine busy with other tests
		expected := slices.Contains(must, r.Name) || slices.Contains(must, r.Name+"/"+r.Labels["severity"])
		if r.State == "firing" != expected && !late {
			t.Errorf("%s (%s) is %s", r.Name, r.Labels["severity"], r.State)
		}
		for _, s := range selectors(r.Query) {
			got, err := p.Query(context.Background(), s)
			if err != nil || len(got) == 0 && !isOfOtherProcess(s) && !slices.Contains(quietSelectors, s) {
				t.Errorf("%s uses %s, which has no data: %v", r.Name, s, err)
			}
		}
	}
}

func checkFiring(p *promtest.Server, alert string) error {
	rules, err := p.Rules(context.Background())
	if err != nil {
		return err
	}
	for _, r := range rules {
		if (r.Name == alert || r.Name+"/"+r.Labels["severity"] == alert) && r.State == "firing" {
			return nil
		}
	}
	return fmt.Errorf("it does not fire")
}

// selectors returns the series selectors of an expression.
func selectors(expr string) []string {
	return regexp.MustCompile(`\b(?:outboxcdc_[a-z_]+|up)\b(?:\{[^}]*\})?`).FindAllString(expr, -1)
}
