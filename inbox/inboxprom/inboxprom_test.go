package inboxprom

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/inbox"
)

// TestDocumented: docs/metrics.md has these metrics with their labels, in its section about consumers.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Consumers\n")
	section, _, _ = strings.Cut(section, "\n## ")
	documented := map[string][]string{}
	for _, m := range regexp.MustCompile("(?m)^- `(outboxcdc_[a-z_]+)` \\(\\w+((?:,\\s+`[a-z]+`)*)\\):").FindAllStringSubmatch(section, -1) {
		for _, l := range regexp.MustCompile("`([a-z]+)`").FindAllStringSubmatch(m[2], -1) {
			documented[m[1]] = append(documented[m[1]], l[1])
		}
	}
	descs := make(chan *prometheus.Desc, 100)
	New(nil, inbox.Store{}, "group", nil).Describe(descs)
	close(descs)
	n := 0
	for d := range descs {
		n++
		parts := regexp.MustCompile(`fqName: "(\w+)".*variableLabels: \{([^}]*)\}`).FindStringSubmatch(d.String())
		if parts == nil {
			t.Fatal(d)
		}
		if labels := strings.Split(parts[2], ","); !slices.Equal(labels, documented[parts[1]]) {
			t.Errorf("%s has the labels %q, and the page %q", parts[1], labels, documented[parts[1]])
		}
	}
	if n != len(documented) || n == 0 {
		t.Errorf("%d metrics, and %d in the page", n, len(documented))
	}
}
