// Package prometheus holds the tests of the alerts in alerts.yaml.
package prometheus

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/outboxcdc/outboxcdc/test/promtest"
)

// caseFiles have the cases: each alert fires in one, and does not fire in a similar one.
var caseFiles = []string{"alerts_test.yaml", "alerts_hours_test.yaml"}

// TestAlerts checks the rules with promtool, and runs the cases.
func TestAlerts(t *testing.T) {
	promtool := promtest.NeedTool(t, "promtool")
	for _, args := range [][]string{{"check", "rules", "--lint-fatal", "alerts.yaml"}, append([]string{"test", "rules"}, caseFiles...), {"check", "config", "prometheus.yml"}} {
		if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

type rules struct {
	Groups []struct {
		Rules []struct {
			Alert       string
			Expr        string
			Labels      map[string]string
			Annotations map[string]string
		}
	}
}

// TestEachAlertIsExplained checks that each alert has a severity, a section of the runbook with all its parts, and two
// cases: one that fires and one that does not.
func TestEachAlertIsExplained(t *testing.T) {
	var all rules
	read(t, "alerts.yaml", &all)
	fires, rests := map[string]int{}, map[string]int{}
	for _, file := range caseFiles {
		var cases struct {
			Tests []struct {
				Cases []struct {
					Alert string `yaml:"alertname"`
					Fires []any  `yaml:"exp_alerts"`
				} `yaml:"alert_rule_test"`
			}
		}
		read(t, file, &cases)
		for _, test := range cases.Tests {
			for _, c := range test.Cases {
				if len(c.Fires) > 0 {
					fires[c.Alert]++
				} else {
					rests[c.Alert]++
				}
			}
		}
	}
	runbook := sections(t, "../../docs/runbook.md")
	count, seen := 0, map[string]bool{}
	for _, g := range all.Groups {
		for _, r := range g.Rules {
			count++
			seen[r.Alert] = true
			if !slices.Contains([]string{"warning", "critical"}, r.Labels["severity"]) {
				t.Errorf("%s has severity %q", r.Alert, r.Labels["severity"])
			}
			want := "https://github.com/outboxcdc/outboxcdc/blob/main/docs/runbook.md#" + strings.ToLower(r.Alert)
			if got := r.Annotations["runbook_url"]; got != want {
				t.Errorf("%s: runbook_url is %q, want %q", r.Alert, got, want)
			}
			if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s has no summary or no description", r.Alert)
			}
			for _, part := range []string{"**Meaning.**", "**Look.**", "**Do.**", "**Do not**"} {
				if !strings.Contains(runbook[r.Alert], part) {
					t.Errorf("docs/runbook.md, section %s: %s is missing", r.Alert, part)
				}
			}
			if fires[r.Alert] == 0 || rests[r.Alert] == 0 {
				t.Errorf("%s fires in %d cases and rests in %d", r.Alert, fires[r.Alert], rests[r.Alert])
			}
		}
	}
	if count == 0 {
		t.Fatal("no rules were found")
	}
	for alert := range runbook {
		if strings.HasPrefix(alert, "OutboxCDC") && !seen[alert] {
			t.Errorf("docs/runbook.md has a section %s, and there is no such alert", alert)
		}
	}
}

func read(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err == nil {
		err = yaml.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatal(fmt.Errorf("%s: %w", file, err))
	}
}

// sections returns the sections of a document by their second-level headings.
func sections(t *testing.T, file string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, s := range strings.Split("\n"+string(text), "\n## ")[1:] {
		heading, body, _ := strings.Cut(s, "\n")
		out[heading] = body
	}
	return out
}
