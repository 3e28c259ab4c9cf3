package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// declaration is a function, variable or constant of a package.
type declaration struct {
	faults []string // that it names in a string
	uses   []string // identifiers
}

var faultID = regexp.MustCompile(`\bF[0-9]{2,3}\b`)

// declarations returns the top-level declarations of a folder's files.
func declarations(t *testing.T, dir string) map[string]declaration {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../..", dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no Go files (%v)", dir, err)
	}
	out := map[string]declaration{}
	add := func(name string, n ast.Node) {
		d := out[name]
		ast.Inspect(n, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				d.faults = append(d.faults, faultID.FindAllString(n.Value, -1)...)
			case *ast.Ident:
				d.uses = append(d.uses, n.Name)
			}
			return true
		})
		slices.Sort(d.uses)
		d.uses = slices.Compact(d.uses)
		out[name] = d
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				add(d.Name.Name, d)
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if v, ok := s.(*ast.ValueSpec); ok {
						for _, n := range v.Names {
							add(n.Name, v)
						}
					}
				}
			}
		}
	}
	return out
}

// faultsOf returns the faults that a declaration names, itself or through what it uses.
func faultsOf(name string, decls map[string]declaration, seen map[string]bool) []string {
	d, ok := decls[name]
	if !ok || seen[name] {
		return nil
	}
	seen[name] = true
	ids := slices.Clone(d.faults)
	for _, used := range d.uses {
		if !seen[used] {
			ids = append(ids, faultsOf(used, decls, seen)...)
		}
	}
	return ids
}

// inQuick reports whether `make test` runs a test, or some of its subtests.
func inQuick(t *testing.T, pkg, test string) bool {
	t.Helper()
	c := choices()[pkg]
	if c.whole {
		return c.short
	}
	for _, p := range c.patterns {
		top, _, some := strings.Cut(p, "/")
		if ok, err := regexp.MatchString(top, test); err != nil {
			t.Fatalf("%s: %v", p, err)
		} else if ok {
			return c.only || some
		}
	}
	return !c.only
}

// Each fault that has a test, on real servers or in the simulator, keeps one in `make test`.
func TestEachFaultInTest(t *testing.T) {
	catalogue, err := os.ReadFile("../../test/faults.md")
	if err != nil {
		t.Fatal(err)
	}
	has, kept := map[string]bool{}, map[string]bool{}
	for _, pkg := range []string{"test/integration", "relay"} {
		decls := declarations(t, pkg)
		for name := range decls {
			if !strings.HasPrefix(name, "Test") {
				continue
			}
			for _, id := range faultsOf(name, decls, map[string]bool{}) {
				has[id], kept[id] = true, kept[id] || inQuick(t, pkg, name)
			}
		}
	}
	for id := range has {
		if !kept[id] {
			t.Errorf("no test of fault %s is in `make test`: add one to tiers.txt", id)
		}
		if !strings.Contains(string(catalogue), id) {
			t.Errorf("test/faults.md has no fault %s", id)
		}
	}
	for _, id := range coveredFaults() {
		if !has[id] {
			t.Errorf("no test has fault %s", id)
		}
	}
}

var testFunc = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9_]+)\(t \*testing\.T\)`)

// testNames returns the names of the tests of each package that has a folder below the root.
func testNames(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		pkg := filepath.ToSlash(strings.TrimPrefix(filepath.Dir(path), "../../"))
		for _, m := range testFunc.FindAllSubmatch(text, -1) {
			out[pkg] = append(out[pkg], string(m[1]))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Each pattern of tiers.txt chooses a test, so that no test changes its tier with its name. One run of go test has
// several packages and the patterns of all of them: a pattern must not choose tests of a package that it was not
// meant for.
func TestTiersNameTests(t *testing.T) {
	names := testNames(t)
	for pkg, c := range choices() {
		if len(names[pkg]) == 0 {
			t.Errorf("tiers.txt: package %s has no tests", pkg)
		}
		for _, p := range c.patterns {
			top, _, _ := strings.Cut(p, "/")
			re, err := regexp.Compile(top)
			if err != nil {
				t.Fatalf("%s: %v", pkg, err)
			}
			if top == "" || !slices.ContainsFunc(names[pkg], re.MatchString) {
				t.Errorf("%s has no test %s", pkg, p)
			}
			for other, tests := range names {
				if i := slices.IndexFunc(tests, re.MatchString); other != pkg && pkg != "test/integration" && other != "test/integration" && i >= 0 {
					t.Errorf("%s of %s is %s of %s as well", p, pkg, tests[i], other)
				}
			}
		}
	}
}

// promises are README's, by the beginning of their names, with a test of the built binary that `make test` runs for
// each.
var promises = map[string][]string{
	"No loss":    {"TestDeduplicatedKill9", "TestNothingConfirmedBeforeTheFirstAck", "TestRecoverGap", "TestRecoverLostSlot"},
	"Order":      {"TestRandomKafkaFaults", "TestKafkaNetwork"},
	"Duplicates": {"TestDeduplicatedPostgresDown", "TestTermUnderLoadDrains", "TestAuditFindsFaults"},
	"No phantom": {"TestAsynchronousCommitsLost", "TestTenThousandSavepoints"},
	"Poison":     {"TestHoldKeyCommands", "TestLimitLoweredUnderWay", "TestDeadLettersSurviveKills", "TestTopicMissingThenMade"},
	"No harm":    {"TestIdleOutboxFollowsForeignWAL", "TestKafkaAwayForManySenderTimeouts", "TestOneTransactionOfAMillionRows"},
}

var promiseLine = regexp.MustCompile(`(?m)^[0-9]+\. \*\*(.+?)\*\*`)

func TestEachPromiseInTest(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	names := promiseLine.FindAllSubmatch(readme, -1)
	if len(names) != len(promises) {
		t.Errorf("README has %d promises, and this test %d", len(names), len(promises))
	}
	decls := declarations(t, "test/integration")
	for begin, tests := range promises {
		if !slices.ContainsFunc(names, func(n [][]byte) bool { return strings.HasPrefix(string(n[1]), begin) }) {
			t.Errorf("README has no promise %q", begin)
		}
		for _, test := range tests {
			if _, ok := decls[test]; !ok || !inQuick(t, "test/integration", test) {
				t.Errorf("%s: %s is not in `make test`", begin, test)
			}
		}
	}
}

// What one tier skips is what the other one runs.
func TestTierFlags(t *testing.T) {
	for pkg, want := range map[string][2]string{"sink/kafka": {"-skip", "-run"}, "test/integration": {"-run", "-skip"}} {
		q, r := quick.flags(pkg), rest.flags(pkg)
		if len(q) != 2 || len(r) != 2 || q[0] != want[0] || r[0] != want[1] || q[1] != r[1] || q[1] == "" {
			t.Errorf("%s: %q and %q", pkg, q, r)
		}
		if all.flags(pkg) != nil {
			t.Errorf("%s: a run of all tests leaves some out", pkg)
		}
	}
	if quick.flags("router") != nil || rest.has("router") || !quick.has("router") {
		t.Error("router, which the list does not name, is not of `make test` alone")
	}
	if quick.has("test/pgtest") || !rest.has("test/pgtest") || !quick.has("relay") || !rest.has("relay") {
		t.Error("whole packages: test/pgtest is one of `make test-rest`, relay of both")
	}
}
