package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/internal/config"
)

// TestPage checks that the page loads nothing else, and that its policy allows only what the page contains.
func TestPage(t *testing.T) {
	code, text, header := ask(t, handlerOf(config.Default(), prometheus.NewRegistry(), &fakeRelay{}), "GET", "/")
	if code != 200 || header.Get("Content-Type") != "text/html; charset=utf-8" {
		t.Fatalf("%d %v", code, header)
	}
	policy := header.Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"} {
		if !strings.Contains(policy, want) {
			t.Errorf("%s is not in the policy %q", want, policy)
		}
	}
	if strings.Contains(policy, "unsafe") || strings.Contains(policy, "*") {
		t.Errorf("the policy is %q", policy)
	}
	for _, tag := range []string{"style", "script"} {
		found := regexp.MustCompile("(?s)<"+tag+">(.*?)</"+tag+">").FindAllStringSubmatch(text, -1)
		if len(found) != 1 || strings.Contains(found[0][1], "{{") || len(found[0][1]) < 500 {
			t.Fatalf("%d of <%s>", len(found), tag)
		}
		if !strings.Contains(policy, tag+"-src "+hashSource(found[0][1])) {
			t.Errorf("the policy does not allow the page's own %s", tag)
		}
	}
	for _, no := range []string{"//", " src=", "style=", "onclick", "innerHTML", "eval", "@import", "url("} {
		lines := regexp.MustCompile(`(?m)^\s*//.*$`).ReplaceAllString(text, "")
		lines = regexp.MustCompile(`; // .*`).ReplaceAllString(lines, "")
		if i := strings.Index(lines, no); i >= 0 {
			t.Errorf("the page has %q: %.80s", no, lines[i:])
		}
	}
}

// TestPageKnowsStates checks that the page has a text for each state of the relay.
func TestPageKnowsStates(t *testing.T) {
	families, err := wired(t).Gather()
	must(t, err)
	states := 0
	for _, f := range families {
		if f.GetName() != "outboxcdc_state" {
			continue
		}
		for _, m := range f.GetMetric() {
			states++
			state := m.GetLabel()[0].GetValue()
			if !regexp.MustCompile(`(?m)^  ` + state + `: \['(ok|wait|bad)', '[^']+', '[^']+'\],$`).MatchString(pageJS) {
				t.Errorf("no words for %s", state)
			}
		}
	}
	if states < 10 {
		t.Errorf("%d states", states)
	}
}
