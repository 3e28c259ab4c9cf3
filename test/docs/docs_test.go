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

// The files that ARCHITECTURE.md and CONTRIBUTING.md name exist: a name without a folder is that of a file in a folder
// that the same row or paragraph names.
func TestNamedFiles(t *testing.T) {
	named := 0
	for _, page := range []string{"ARCHITECTURE.md", "CONTRIBUTING.md"} {
		for _, block := range regexp.MustCompile(`\n\n|\n\||\n- |\n\d+\. `).Split(read(t, page), -1) {
			var folders, names []string
			for _, m := range regexp.MustCompile("`([\\w./-]+)`").FindAllStringSubmatch(block, -1) {
				info, err := os.Stat(filepath.Join(root, m[1]))
				switch {
				case err == nil && info.IsDir():
					folders = append(folders, m[1])
				case err == nil && strings.Contains(m[1], "/"):
					folders = append(folders, filepath.Dir(m[1]))
				}
				if slices.Contains([]string{".go", ".sql", ".pml", ".txt", ".yaml"}, filepath.Ext(m[1])) {
					names = append(names, m[1])
				}
			}
			for _, name := range names {
				named++
				exists := func(folder string) bool {
					_, err := os.Stat(filepath.Join(root, folder, name))
					return err == nil
				}
				if !exists("") && (strings.Contains(name, "/") || !slices.ContainsFunc(folders, exists)) {
					t.Errorf("%s names %s, which is in none of %q", page, name, folders)
				}
			}
		}
	}
	if named < 100 {
		t.Errorf("only %d files are named", named)
	}
}

// ARCHITECTURE.md names each folder with Go code, or the folder above it.
func TestFolders(t *testing.T) {
	page := read(t, "ARCHITECTURE.md")
	names := func(folder string) bool {
		return strings.Contains(page, "`"+folder+"`") || strings.Contains(page, "`"+folder+"/`")
	}
	seen := map[string]bool{}
	for _, file := range files(t, ".go") {
		folder := filepath.ToSlash(filepath.Dir(file))
		if seen[folder] || strings.Contains(folder, "testdata") || strings.HasPrefix(folder, "samples") {
			continue
		}
		seen[folder] = true
		named := false
		for above := folder; above != "." && above != "test" && above != "internal"; above = filepath.ToSlash(filepath.Dir(above)) {
			named = named || names(above)
		}
		if !named {
			t.Errorf("ARCHITECTURE.md does not name %s", folder)
		}
	}
	if len(seen) < 60 {
		t.Errorf("only %d folders", len(seen))
	}
}

// The tests and settings that documents name exist. CHANGELOG.md also names former settings.
func TestNames(t *testing.T) {
	tests := "\n"
	for _, file := range files(t, ".go") {
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(read(t, file), -1) {
			tests += m[1] + "\n"
		}
	}
	settings := "\n"
	for _, m := range regexp.MustCompile("(?m)^- `([a-z_.]+)`:").FindAllStringSubmatch(read(t, "docs/configuration.md"), -1) {
		settings += m[1] + ".\n"
	}
	others := []string{"retention.ms", "retention.bytes", "http.scheme", "http.probeHeaders", "outbox.event.order", "outbox.event.order_v2", "outbox.dead_letter", "delivery.pml", "retention.enabled"}
	named := 0
	for _, page := range files(t, ".md") {
		text := fenced.ReplaceAllString(read(t, page), "")
		for _, name := range regexp.MustCompile(`\bTest[A-Z]\w*`).FindAllString(text, -1) {
			if !strings.Contains(tests, "\n"+name) { // TestPark… are several
				t.Errorf("%s names %s, which does not exist", page, name)
			}
		}
		if page == "CHANGELOG.md" || page == "docs/debezium.md" || page == "ARCHITECTURE.md" { // options of Debezium, names in Go
			continue
		}
		for _, m := range regexp.MustCompile("`([a-z_]+\\.)([a-z][\\w.]*)").FindAllStringSubmatch(text, -1) {
			if name := m[1] + m[2]; strings.Contains(settings, "\n"+m[1]) && !slices.Contains(others, name) {
				if named++; !strings.Contains(settings, "\n"+strings.TrimSuffix(name, ".")+".") {
					t.Errorf("%s names the setting %s, which does not exist", page, name)
				}
			}
		}
	}
	if named < 200 {
		t.Errorf("only %d settings are named", named)
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
	for _, m := range regexp.MustCompile(`(?m)^- ([FI]\d[^*]*) \*\*`).FindAllStringSubmatch(read(t, "test/faults.md"), -1) {
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
	for id, n := range described {
		if n != 1 {
			t.Errorf("test/faults.md describes %s %d times", id, n)
		}
	}
	named := regexp.MustCompile(`\b(F\d{2,3}|I\d\d?)\b`)
	for _, file := range files(t, ".go", ".md") {
		for _, m := range named.FindAllString(read(t, file), -1) {
			if described[m] == 0 {
				t.Errorf("%s names %s, which test/faults.md does not describe", file, m)
			}
		}
	}
}

// TestAdviceIsOneText: documents and alerts say the same as daemon, doctor and setup about a slot that cannot
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

// docs/proof.md names only mutants that exist; TestNames compares its tests. What is gone needs a new `make prove`.
func TestProof(t *testing.T) {
	exist := map[string]bool{}
	for _, file := range files(t, ".go") {
		if strings.HasPrefix(file, "test/mutants/rules") {
			for _, m := range regexp.MustCompile(`(?:\bname:\s+|\bwrong\()"([^"]+)"`).FindAllStringSubmatch(read(t, file), -1) {
				exist[m[1]] = true
			}
		}
	}
	for _, m := range regexp.MustCompile(`(?m)\*: mutant (\S+) (?:survived|has)`).FindAllStringSubmatch(read(t, "docs/proof.md"), -1) {
		if !exist[m[1]] {
			t.Errorf("docs/proof.md names %s, which does not exist: run make prove", m[1])
		}
	}
}

// The figures of README.md are those of the last `make prove` and of the benchmark's page.
func TestFigures(t *testing.T) {
	group := func(file, pattern string) string {
		m := regexp.MustCompile(pattern).FindStringSubmatch(read(t, file))
		if m == nil {
			t.Fatalf("%s has nothing like %s", file, pattern)
		}
		return m[1]
	}
	bench := func(row string, column int) string {
		return strings.Split(group("test/bench/README.md", "(?m)^\\| `"+row+" \\|(.*)$"), " | ")[column]
	}
	rounded := func(digits int, figure string) string {
		f, err := strconv.ParseFloat(strings.TrimSpace(figure), 64)
		if err != nil {
			t.Fatal(err)
		}
		return strconv.FormatFloat(f, 'f', digits, 64)
	}
	counted := strings.Join(strings.Fields(read(t, "docs/proof.md")), " ")
	m := regexp.MustCompile("`TestDeduplicatedKill9` \\(F01, .*\\): (\\d+) events, (\\d+) of them repeated").FindStringSubmatch(counted)
	if m == nil {
		t.Fatal("docs/proof.md has no figures of TestDeduplicatedKill9")
	}
	events, repeated := m[1], m[2]
	large := strings.TrimSuffix(bench("k100`: 1 KB, 100 rows", 7), " |")
	readme := strings.Join(strings.Fields(read(t, "README.md")), " ")
	for _, want := range []string{
		fmt.Sprintf("[%s of %s,%s events,", repeated, events[:len(events)-3], events[len(events)-3:]), "at commit " + group("docs/proof.md", `- commit: (\w+)`),
		fmt.Sprintf("[%s and %s MiB]", bench("s1` \\| outboxcdc", 3)[:2], bench("s100` \\| outboxcdc", 3)[:2]),
		fmt.Sprintf("[%s and %s MiB]", bench("s1` \\| Debezium", 3)[:3], bench("s100` \\| Debezium", 3)[:3]),
		fmt.Sprintf("[%s and %s]", rounded(1, bench("s1` \\| outboxcdc", 1)), rounded(1, bench("s100` \\| outboxcdc", 1))),
		fmt.Sprintf("[%s and %s]", rounded(0, bench("s1` \\| Debezium", 1)), rounded(0, bench("s100` \\| Debezium", 1))),
		"of commit " + group("test/bench/README.md", `The binaries are (\w+)`),
		fmt.Sprintf("needs up to %s MiB, and %s CPU-seconds", large, rounded(1, bench("k1`: 1 KB, 1 row", 3))),
		"[" + group("test/bench/README.md", `first record is with the reader ([\d.]+ s)`) + "]",
	} {
		if !strings.Contains(readme, want) {
			t.Errorf("README.md has to say %q", want)
		}
	}
}
