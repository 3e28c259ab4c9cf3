package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/outboxcdc/outboxcdc/test/daemon"
)

// module is a small module: correct code, and a test for half of it.
var module = map[string]string{
	"go.mod": "module example.org/small\n\ngo 1.26\n",
	"a/a.go": `package a

func Add(x, y int) int { return x + y }

func Sub(x, y int) int { return x - y }
`,
	"a/a_test.go": `package a

import "testing"

func TestAdd(t *testing.T) {
	t.Run("small", func(t *testing.T) {
		t.Log("panic: this is only said")
		if Add(1, 2) != 3 {
			t.Error("no")
		}
	})
}

func TestBroken(t *testing.T) { t.Error("always") }
`,
	"b/b.go": "package b\n\nvar Table = []int{1, 2, 3}\n",
	"b/b_test.go": `package b

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	_ = Table[2]
	os.Exit(m.Run())
}

func TestTable(t *testing.T) { _ = Table[0] }
`,
	"deploy/c/pods": "one\n",
	"deploy/c/c_test.go": `package c

import (
	"cmp"
	"os"
	"testing"
)

func TestPods(t *testing.T) {
	if text, err := os.ReadFile(cmp.Or(os.Getenv("OUTBOXCDC_TEST_DEPLOY"), "..") + "/c/pods"); string(text) != "one\n" || err != nil {
		t.Error(string(text), err)
	}
}
`,
}

func small(t *testing.T) *bench {
	t.Helper()
	root := t.TempDir()
	for name, text := range module {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return &bench{root: root, out: &bytes.Buffer{}, bound: 4 * time.Second}
}

func TestVerdicts(t *testing.T) {
	adds := []suite{{"./a", "^TestAdd$"}}
	tables := []suite{{"./b", "^TestTable$"}}
	pods := []suite{{"./deploy/c", "^TestPods$"}}
	const add = "func Add(x, y int) int { return x + y }"
	cases := []struct {
		mutant
		killed, problem string // both empty: the mutant survives
	}{
		{mutant{name: "wrong sum", edits: []edit{{"a/a.go", "x + y", "x * y"}}, tests: adds}, "a.TestAdd/small", ""},
		{mutant{name: "harmless", edits: []edit{{"a/a.go", "x + y", "y + x"}}, tests: adds}, "", ""},
		{mutant{name: "untested", edits: []edit{{"a/a.go", "x - y", "x"}, {"a/a.go", "func Sub(x, y int)", "func Sub(x, _ int)"}}, tests: adds}, "", ""},
		{mutant{name: "gone", edits: []edit{{"a/a.go", "x % y", "x"}}, tests: adds}, "", "no longer applies: a/a.go has 0 places"},
		{mutant{name: "file gone", edits: []edit{{"c/c.go", "x", "y"}}, tests: adds}, "", "no longer applies"},
		{mutant{name: "twice", edits: []edit{{"a/a.go", "return x", "return y"}}, tests: adds}, "", "no longer applies: a/a.go has 2 places"},
		{mutant{name: "not Go", edits: []edit{{"a/a.go", "x + y", "x +"}}, tests: adds}, "", "does not compile"},
		{mutant{name: "panics", edits: []edit{{"a/a.go", add, `func Add(x, y int) int { panic("oh") }`}}, tests: adds}, "", "ended with a panic"},
		{mutant{name: "may panic", ends: "panic", edits: []edit{{"a/a.go", add, `func Add(x, y int) int { panic("oh") }`}}, tests: adds}, "a.TestAdd/small", ""},
		{mutant{name: "hangs", edits: []edit{{"a/a.go", add, "func Add(x, y int) int { select {} }"}}, tests: adds}, "", "ended with a timeout"},
		{mutant{name: "may hang", ends: "timeout", edits: []edit{{"a/a.go", add, "func Add(x, y int) int { select {} }"}}, tests: adds}, "a.TestAdd", ""},
		{mutant{name: "may hang, and panics", ends: "timeout", edits: []edit{{"a/a.go", add, `func Add(x, y int) int { panic("oh") }`}}, tests: adds}, "", "ended with a panic"},
		{mutant{name: "may hang, and does not", ends: "timeout", edits: []edit{{"a/a.go", "x + y", "y + x"}}, tests: adds}, "", ""},
		{mutant{name: "set-up", edits: []edit{{"b/b.go", "1, 2, 3", "1, 2"}}, tests: tables}, "", "ended with a panic"},
		{mutant{name: "exits", edits: []edit{{"b/b.go", "var Table", "import \"os\"\n\nfunc init() { os.Exit(3) }\n\nvar Table"}}, tests: tables}, "", "failed outside of its tests"},
		{mutant{name: "read at run time", edits: []edit{{"deploy/c/pods", "one", "two"}}, tests: pods}, "c.TestPods", ""},
		{mutant{name: "second suite", edits: []edit{{"a/a.go", "x + y", "x * y"}}, tests: append(tables, adds...)}, "a.TestAdd/small", ""},
		{mutant{name: "fails anyway", edits: []edit{{"a/a.go", "x + y", "x * y"}}, tests: []suite{{"./a", "^TestBroken$"}}}, "", "fails without the mutant, too"},
		{mutant{name: "no test", edits: []edit{{"a/a.go", "x + y", "x * y"}}, tests: []suite{{"./a", "^TestNone$"}}}, "", "no test ran"},
	}
	b := small(t)
	var mutants []mutant
	for _, c := range cases {
		mutants = append(mutants, c.mutant)
	}
	results, err := b.run(t.Context(), mutants, 2)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range cases {
		r := results[i]
		survives := c.killed == "" && c.problem == ""
		if r.Name != c.name || r.KilledBy != c.killed || r.Survived != survives || (r.Problem != "") != (c.problem != "") || !strings.Contains(r.Problem, c.problem) {
			t.Errorf("%s: %+v", c.name, r)
		}
	}
	said := b.out.(*bytes.Buffer).String()
	for _, want := range []string{"killed by a.TestAdd/small", "SURVIVED", "PROVES NOTHING: the mutant no longer applies"} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not printed", want)
		}
	}
	if text, err := os.ReadFile(filepath.Join(b.root, "a/a.go")); err != nil || string(text) != module["a/a.go"] {
		t.Errorf("the tree was changed: %v\n%s", err, text)
	}
	for _, n := range []int{2, 4} { // a survivor, and one that no longer applies
		if err := summary(&bytes.Buffer{}, results[:n], 0); err == nil {
			t.Errorf("the first %d results are reported as a success", n)
		}
	}
	if err := summary(&bytes.Buffer{}, results[:1], 0); err != nil {
		t.Error(err)
	}
}

func TestTimeOut(t *testing.T) {
	var out bytes.Buffer
	for _, e := range []map[string]any{
		{"Action": "output", "Package": "x/a", "Test": "TestA", "Output": "panic: test timed out after 1s\n"},
		{"Action": "output", "Package": "x/a", "Test": "TestA", "Output": "panic: more of it\n"},
		{"Action": "fail", "Package": "x/a", "Test": "TestA"},
		{"Action": "fail", "Package": "x/a"},
	} {
		line, _ := json.Marshal(e)
		out.Write(append(line, '\n'))
	}
	if o := read(out.Bytes()); o.ended != "timeout" || o.failed != "a.TestA" || !o.broken {
		t.Errorf("%+v", o)
	}
}

// TestRules checks that every wrong rule still applies to the tree and compiles, so that a change of the code fails
// here and not when the mutants are run.
func TestRules(t *testing.T) {
	root, err := daemon.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{root: root}
	c, err := newChecker(t.Context(), root, "inbox", "inbox/riverinbox", "outbox", "outbox/registry")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, m := range all() {
		if names[m.name] || m.rule == "" || len(m.edits) == 0 || len(m.tests) == 0 || m.ends != "" && m.ends != "panic" && m.ends != "timeout" {
			t.Errorf("%s: not a rule", m.name)
		}
		names[m.name] = true
		texts, err := b.texts(&m)
		if err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		for file := range texts {
			check := func() error { return c.check(filepath.Dir(file), texts) }
			if strings.HasPrefix(file, deploy+"/") {
				check = func() error { return parses(file, texts[file]) }
			}
			if err := check(); err != nil {
				t.Errorf("%s: does not compile: %v", m.name, err)
			}
		}
		for _, s := range m.tests {
			if _, err := regexp.Compile(s.run); err != nil {
				t.Errorf("%s: %v", m.name, err)
			}
			if files, _ := filepath.Glob(filepath.Join(root, s.pkg, "*_test.go")); len(files) == 0 {
				t.Errorf("%s: %s has no tests", m.name, s.pkg)
			}
		}
	}
	if _, err := choose(all(), "no such name"); err == nil {
		t.Error("a name that nothing has chose something")
	}
	if chosen, err := choose(all(), "^guard-"); err != nil || len(chosen) < 5 {
		t.Errorf("%d chosen, %v", len(chosen), err)
	}
}

// TestRuleTexts holds the rules to the phrases of the language check, which reads comments and pages and no strings.
func TestRuleTexts(t *testing.T) {
	root, err := daemon.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, ".vale/outboxcdc/Banned.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var banned struct{ Swap map[string]string }
	if err := yaml.Unmarshal(text, &banned); err != nil || len(banned.Swap) < 10 {
		t.Fatal(len(banned.Swap), err)
	}
	for phrase, better := range banned.Swap {
		is := regexp.MustCompile(`(?i)\b(?:` + phrase + `)\b`)
		for _, m := range all() {
			if found := is.FindString(m.rule); found != "" {
				t.Errorf("%s: write %q instead of %q: %s", m.name, better, found, m.rule)
			}
		}
	}
}
