package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/internal/config"
)

// TestCausesAreOneList checks that the causes of poison are the same in router and relay, in poison.causes, and in the
// table of docs/poison.md.
func TestCausesAreOneList(t *testing.T) {
	code, err := os.ReadFile("../../router/poison.go")
	must(t, err)
	var causes []string
	for _, m := range regexp.MustCompile(`Cause = "(\w+)"`).FindAllStringSubmatch(string(code), -1) {
		causes = append(causes, m[1])
	}
	file := filepath.Join(t.TempDir(), "outboxcdc.yaml")
	load := func(cause string) error {
		must(t, os.WriteFile(file, []byte("postgres: {url: postgres://x@y/z}\npoison: {causes: {"+cause+": skip}}"), 0o600))
		_, err := config.Load([]string{file}, nil)
		return err
	}
	for _, c := range causes {
		if err := load(c); err != nil {
			t.Errorf("%s: %v", c, err)
		}
	}
	err = load("nothing")
	if err == nil {
		t.Fatal("any cause is taken")
	}
	_, taken, _ := strings.Cut(err.Error(), "; write ")
	doc, err := os.ReadFile("../../docs/poison.md")
	must(t, err)
	table, _, _ := strings.Cut(string(doc), "`poison.decisions`")
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]*) \\|").FindAllStringSubmatch(table, -1) {
		for _, c := range strings.Split(row[1], ",") {
			documented = append(documented, strings.Trim(c, " `"))
		}
	}
	list := strings.Split(strings.TrimSpace(taken), " | ")
	for _, l := range [][]string{causes, list, documented} {
		slices.Sort(l)
	}
	if !slices.Equal(causes, list) || !slices.Equal(causes, documented) || len(causes) < 10 {
		t.Errorf("the router knows %v\nthe setting takes %v\ndocs/poison.md has %v", causes, list, documented)
	}
}
