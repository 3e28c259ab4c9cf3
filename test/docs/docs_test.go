// Package docs checks the documents against each other: links lead somewhere, the index is complete, and every fault is
// described.
package docs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/outboxcdc/outboxcdc/internal/advice"
)

const root = "../.."

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// files returns the files below root with one of the endings, by their relative paths. It skips build output and
// folders whose names begin with a dot.
func files(t *testing.T, ends ...string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		switch {
		case d.IsDir() && (name == "bin" || name != "." && strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case !d.IsDir() && slices.Contains(ends, filepath.Ext(name)):
			all = append(all, filepath.ToSlash(name))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

var (
	fenced  = regexp.MustCompile("(?ms)^```.*?^```$")
	heading = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
)

// anchors returns the anchors that GitHub gives the headings of a page.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		title := regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(m[1], "$1")
		slug := strings.Map(func(r rune) rune {
			switch {
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			case r == ' ':
				return '-'
			}
			return -1
		}, title)
		for n := 1; all[slug]; n++ {
			slug = strings.TrimSuffix(slug, fmt.Sprint("-", n-1)) + fmt.Sprint("-", n)
		}
		all[slug] = true
	}
	return all
}

// Every link to a file of the repository leads to a file and, with an anchor, to a heading of it.
func TestLinks(t *testing.T) {
	links := 0
	for _, page := range files(t, ".md") {
		for _, m := range link.FindAllStringSubmatch(fenced.ReplaceAllString(read(t, page), ""), -1) {
			if strings.Contains(m[1], ":") {
				continue // of another site
			}
			links++
			file, anchor, _ := strings.Cut(m[1], "#")
			to := page
			if file != "" {
				to = filepath.ToSlash(filepath.Join(filepath.Dir(page), file))
			}
			if _, err := os.Stat(filepath.Join(root, to)); err != nil {
				t.Errorf("%s links %s, which does not exist", page, m[1])
				continue
			}
			if anchor != "" && strings.HasSuffix(to, ".md") && !anchors(read(t, to))[anchor] {
				t.Errorf("%s links %s, and %s has no such heading", page, m[1], to)
			}
		}
	}
	if links < 200 {
		t.Errorf("only %d links", links)
	}
}

// docs/README.md links every page of docs/.
func TestIndex(t *testing.T) {
	index := read(t, "docs/README.md")
	pages, err := filepath.Glob(root + "/docs/*.md")
	if err != nil || len(pages) < 20 {
		t.Fatal(pages, err)
	}
	for _, page := range pages {
		if name := filepath.Base(page); name != "README.md" && !strings.Contains(index, "]("+name+")") {
			t.Errorf("docs/README.md does not link %s", name)
		}
	}
}

// Each decision that a document or a comment names has a page, and docs/adr/README.md links each page.
func TestDecisions(t *testing.T) {
	pages := map[string]bool{}
	index := read(t, "docs/adr/README.md")
	for _, file := range files(t, ".md") {
		if number, is := strings.CutPrefix(file, "docs/adr/00"); is {
			pages[strings.TrimPrefix(number[:2], "0")] = true
			if !strings.Contains(index, "]("+filepath.Base(file)+")") {
				t.Errorf("docs/adr/README.md does not link %s", file)
			}
		}
	}
	if len(pages) < 10 {
		t.Errorf("only %d pages", len(pages))
	}
	named := regexp.MustCompile(`\bADR (\d+)|\badr/00(\d\d)`)
	for _, file := range append(files(t, ".go", ".md", ".yaml", ".yml", ".sql"), "Makefile") {
		for _, m := range named.FindAllStringSubmatch(read(t, file), -1) {
			if number := m[1] + strings.TrimPrefix(m[2], "0"); !pages[number] {
				t.Errorf("%s names ADR %s, which has no page", file, number)
			}
		}
	}
}

// Lines of prose and of comments have at most 120 characters. Tables and code do not count, nor does a line of one
// word.
func TestColumns(t *testing.T) {
	long := func(file string, n int, line string) {
		if utf8.RuneCountInString(line) > 120 && strings.Contains(strings.TrimSpace(line), " ") {
			t.Errorf("%s:%d has %d columns", file, n, utf8.RuneCountInString(line))
		}
	}
	for _, page := range files(t, ".md") {
		code := false
		for n, line := range strings.Split(read(t, page), "\n") {
			start := strings.TrimSpace(line)
			if strings.HasPrefix(start, "```") {
				code = !code
			}
			if !code && !strings.HasPrefix(start, "|") {
				long(page, n+1, line)
			}
		}
	}
	for _, file := range files(t, ".go") {
		for n, line := range strings.Split(read(t, file), "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "// ") {
				long(file, n+1, line)
			}
		}
	}
}

// No document refers to a section of a document that is not in this repository.
func TestReferences(t *testing.T) {
	sections := regexp.MustCompile(`\b(design|surface|failures\.md),? §`)
	for _, file := range files(t, ".go", ".md", ".yaml", ".yml", ".sql") {
		if m := sections.FindString(read(t, file)); m != "" {
			t.Errorf("%s refers to %q", file, m)
		}
	}
}

// test/faults.md lists each fault and invariant named by a test exactly once.
func TestFaults(t *testing.T) {
	described := map[string]int{}
	for _, m := range regexp.MustCompile(`(?m)^\| ([FI][^|]+) \|`).FindAllStringSubmatch(read(t, "test/faults.md"), -1) {
		from, to, isRange := strings.Cut(m[1], " to ")
		if !isRange {
			for _, id := range strings.Split(m[1], ", ") {
				described[id]++
			}
			continue
		}
		first, _ := strconv.Atoi(from[1:])
		last, _ := strconv.Atoi(to[1:])
		for n := first; n <= last; n++ {
			described[fmt.Sprintf("F%02d", n)]++
		}
	}
	for n := 1; n <= 85; n++ {
		if id := fmt.Sprintf("F%02d", n); described[id] != 1 {
			t.Errorf("test/faults.md describes %s %d times", id, described[id])
		}
	}
	named := regexp.MustCompile(`\b(F\d\d|I\d\d?)\b`)
	for _, file := range files(t, ".go", ".md") {
		for _, m := range named.FindAllString(read(t, file), -1) {
			if described[m] == 0 {
				t.Errorf("%s names %s, which test/faults.md does not describe", file, m)
			}
		}
	}
}

// TestAdviceIsOneText: documents and alerts say the same as daemon, doctor, setup and status about a slot that cannot
// be trusted.
func TestAdviceIsOneText(t *testing.T) {
	for file, texts := range map[string][]string{
		"docs/runbook.md":               {advice.Recover, advice.RecoverAgain},
		"deploy/prometheus/alerts.yaml": {advice.Recover},
	} {
		plain := strings.Join(strings.Fields(strings.ReplaceAll(read(t, file), "`", "")), " ")
		for _, text := range texts {
			if !strings.Contains(plain, text) {
				t.Errorf("%s does not say: %s", file, text)
			}
		}
	}
	alerts := strings.Split(read(t, "deploy/prometheus/alerts.yaml"), "- alert: ")
	for _, name := range []string{"OutboxCDCSlotLost", "OutboxCDCNoFailoverSlot", "OutboxCDCStandbySlotNotReady"} {
		if at := slices.IndexFunc(alerts, func(a string) bool { return strings.HasPrefix(a, name+"\n") }); at < 0 || !strings.Contains(alerts[at], advice.Recover) {
			t.Errorf("%s does not say: %s", name, advice.Recover)
		}
	}
}

// docs/proof.md names only tests and mutants that exist. What is gone since the last `make prove` needs a new one.
func TestProof(t *testing.T) {
	exist := map[string]bool{}
	for _, file := range files(t, ".go") {
		text := read(t, file)
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(text, -1) {
			exist[m[1]] = true
		}
		if strings.HasPrefix(file, "test/mutants/rules") {
			for _, m := range regexp.MustCompile(`\bname:\s+"([^"]+)"`).FindAllStringSubmatch(text, -1) {
				exist[m[1]] = true
			}
		}
	}
	page := read(t, "docs/proof.md")
	tests := regexp.MustCompile(`\bTest\w+`).FindAllString(page, -1)
	var mutants []string
	for _, m := range regexp.MustCompile("(?m)^\\| [a-z ]+ \\| \\d+ \\| `([^`]+)` \\|").FindAllStringSubmatch(page, -1) {
		mutants = append(mutants, m[1])
	}
	if len(tests) < 50 || len(mutants) < 3 {
		t.Errorf("only %d tests and %d mutants", len(tests), len(mutants))
	}
	for _, name := range slices.Concat(tests, mutants) {
		if !exist[name] {
			t.Errorf("docs/proof.md names %s, which does not exist: run make prove", name)
		}
	}
}
