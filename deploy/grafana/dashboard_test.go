// Package grafana holds the tests of the dashboard in outboxcdc.json.
package grafana

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
)

const (
	file    = "outboxcdc.json"
	runbook = "https://github.com/outboxcdc/outboxcdc/blob/main/docs/runbook.md"
	// gridWidth is the number of columns of a dashboard.
	gridWidth = 24
)

// TestPanels checks that panels do not overlap and that every panel has a description.
func TestPanels(t *testing.T) {
	var d struct {
		Panels []placed
	}
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &d)
	}
	if err != nil {
		t.Fatal(err)
	}
	var all []placed
	for _, p := range d.Panels {
		all = append(append(all, p), p.Panels...)
	}
	ids, taken := map[int]bool{}, map[[2]int]string{}
	for _, p := range all {
		if ids[p.ID] {
			t.Errorf("%s: id %d is another's", p.Title, p.ID)
		}
		ids[p.ID] = true
		for x := p.At.X; x < p.At.X+p.At.W; x++ {
			for y := p.At.Y; y < p.At.Y+p.At.H; y++ {
				if was := taken[[2]int{x, y}]; was != "" || x >= gridWidth {
					t.Fatalf("%s is where %q is, or past the edge, at %d, %d", p.Title, was, x, y)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Title == "" || !strings.HasSuffix(p.Description, ".") {
			t.Errorf("panel %d (%s) says nothing of itself", p.ID, p.Title)
		}
		for _, q := range p.Targets {
			selects := "$instance"
			switch {
			case strings.Contains(q.Expr, "outboxcdc_retention_"):
				continue // retain has them, which has no instance of the daemon
			case strings.Contains(q.Expr, "outboxcdc_audit_"):
				selects = `slot=~"$slot"` // a file has them, and not the daemon
			case strings.Contains(q.Expr, "outboxcdc_inbox_"):
				selects = `consumer=~"$consumer"` // an application has them
			}
			if !strings.Contains(q.Expr, selects) {
				t.Errorf("%s: %s does not select %s", p.Title, q.Expr, selects)
			}
		}
	}
	if len(all) < 30 {
		t.Errorf("%d panels", len(all))
	}
}

// TestPanelsLinkTheRunbook checks that every alert has a panel, and that every link of a panel leads to a section of
// the runbook.
func TestPanelsLinkTheRunbook(t *testing.T) {
	read := func(file string) string {
		t.Helper()
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	sections, linked := map[string]bool{}, map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^## (\w+)$`).FindAllStringSubmatch(read("../../docs/runbook.md"), -1) {
		sections[strings.ToLower(m[1])] = true
	}
	for _, m := range regexp.MustCompile(regexp.QuoteMeta(runbook)+`#(\w+)`).FindAllStringSubmatch(read(file), -1) {
		linked[m[1]] = true
		if !sections[m[1]] {
			t.Errorf("a panel links %s, which the runbook does not have", m[1])
		}
	}
	alerts := regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(read("../prometheus/alerts.yaml"), -1)
	for _, m := range alerts {
		if !linked[strings.ToLower(m[1])] {
			t.Errorf("no panel links the runbook for %s", m[1])
		}
	}
	if len(alerts) < 20 {
		t.Errorf("%d alerts", len(alerts))
	}
}

type placed struct {
	ID                       int
	Type, Title, Description string
	At                       struct{ X, Y, W, H int } `json:"gridPos"`
	Targets                  []struct{ Expr string }
	Panels                   []placed
}
