package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// Each fault of the catalogue is in a row of a whole run, or the page says why not.
func TestCatalogue(t *testing.T) {
	text, err := os.ReadFile("../faults.md")
	if err != nil {
		t.Fatal(err)
	}
	ids := func(list string) (out []string) {
		for _, part := range strings.Split(list, ", ") {
			var from, to int
			if n, _ := fmt.Sscanf(part, "F%d to F%d", &from, &to); n == 1 {
				to = from
			}
			for id := from; id <= to; id++ {
				out = append(out, fmt.Sprintf("F%02d", id))
			}
		}
		return out
	}
	var faults []string
	for _, m := range regexp.MustCompile(`(?m)^- (F[F\d, to]*) \*\*`).FindAllStringSubmatch(string(text), -1) {
		faults = append(faults, ids(m[1])...)
	}
	listed := coveredFaults()
	for _, g := range uncoveredFaults {
		listed = append(listed, ids(g.ids)...)
	}
	slices.Sort(faults)
	slices.Sort(listed)
	if !slices.Equal(faults, listed) {
		t.Errorf("test/faults.md has %v,\nand the two lists of catalogue.go have %v", faults, listed)
	}
}

// A run that lacks a fault, failed in one, or let a mutant live reports that, in the file and in its status.
func TestGapsAreSaid(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	whole := func() *evidence {
		var rows []string
		for _, id := range coveredFaults() {
			rows = append(rows, `{"faults":"`+id+`","test":"Test`+id+`","done":"a | b","checked":true,"events":7,"passed":true,"recovery_seconds":1.25,"peak_rss_bytes":31457280}`)
		}
		write("proof.jsonl", strings.Join(rows, "\n"))
		write("simulator.jsonl", `{"test":"TestSim","done":"random runs.","faults":"F02","runs":1000,"seconds":2,"reached":{"x":3},"passed":true}`)
		write("cluster.jsonl", `{"fault":"elections","requests":1,"records":9,"resent":2,"seconds":3,"passed":true}`)
		write("mutants.json", `[{"name":"m","rule":"r","killed_by":"relay.TestSim","seconds":1}]`)
		r, err := load(dir)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	good := whole()
	good.Ended = []string{samplesStage}
	if gaps := good.gaps(); len(gaps) > 0 {
		t.Errorf("nothing is missing: %v", gaps)
	}
	text, page := good.table(), good.page()
	for _, want := range []string{
		"| F21 | TestF21 | a \\| b |  |  | 7 | 0 | 0 | 0 | 0 | 1.2 s | 30 MiB | – |", "| m | r | relay.TestSim | 1.0 s |", "| x | 3 |", "random runs (F02): 1000 runs",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in the table", want)
		}
	}
	for _, want := range []string{
		"| F21 | 1 | – | 7 | 0 | – | 0 | 1.2 | 30 | `TestF21` |", "| F02 | 1 | 1000 | 7 |", "1000 runs of the simulator",
		"- 1 mutants: the product with one rule wrong, which a test must notice. Caught by a test of:\n  relay 1\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is not in the page", want)
		}
	}
	if strings.Contains(text+page, "lacking") {
		t.Error("a whole run is reported as no proof")
	}
	for want, spoil := range map[string]func(*evidence){
		"mutant m has no verdict":                     func(r *evidence) { r.Mutants = []mutant{{Name: "m"}} },
		"not run: F76":                                func(r *evidence) { r.Rows = slices.DeleteFunc(r.Rows, func(w row) bool { return w.Faults == "F76" }) },
		"TestF21 failed (F21)":                        func(r *evidence) { r.Rows[18].Passed, r.Rows[18].Faults, r.Rows[18].Test = false, "F21", "TestF21" },
		"the simulator left no result":                func(r *evidence) { r.Sims = nil },
		"the mutants left no result":                  func(r *evidence) { r.Mutants = nil },
		"the cluster of three brokers left no result": func(r *evidence) { r.Cluster = nil },
		"elections, 1 requests: failed":               func(r *evidence) { r.Cluster[0].Passed = false },
		"mutant m survived":                           func(r *evidence) { r.Mutants[0].Survived = true },
		"simulator test TestSim failed":               func(r *evidence) { r.Sims[0].Passed = false },
		"TestF03 has 1 missing":                       func(r *evidence) { r.Rows[2].Missing = 1 },
		"TestF03 has 1 out of order":                  func(r *evidence) { r.Rows[2].OutOfOrder = 1 },
	} {
		r := whole()
		spoil(r)
		var said bool
		for _, g := range r.gaps() {
			said = said || strings.Contains(g.Error(), want)
		}
		if !said || !strings.Contains(r.page(), want) || !strings.Contains(r.table(), want) {
			t.Errorf("%q is not reported: %v", want, r.gaps())
		}
	}
}

// The page has the largest figures of a fault, and names the worst of its rows. Repeats of delivery at least once do
// not make a row the worst one.
func TestWorstOfAFault(t *testing.T) {
	fine := row{Faults: "F01", Test: "TestFine/17", Checked: true, Events: 900, Repeats: 50, Recovery: 9, PeakRSS: 1 << 20, Passed: true}
	twice := row{Faults: "F01 F02", Test: "TestTwice/18", Checked: true, Deduplicated: true, Events: 5, Repeats: 1, Recovery: 1, Passed: true}
	lost := row{Faults: "F01", Test: "TestLost", Checked: true, Events: 7, Missing: 3, Passed: true}
	failed := row{Faults: "F01", Test: "TestFailed"}
	for want, rows := range map[string][]row{
		"| F01 | 1 | – | 900 | 0 | – | 50 | 9.0 | 1 | `TestFine` |":              {fine},
		"| F01 | 2 | – | 900 | 0 | 1 | 50 | 9.0 | 1 | `TestTwice` |":             {twice, fine},
		"| F02 | 1 | – | 5 | 0 | 1 | – | 1.0 | – | `TestTwice` |":                {twice, fine},
		"| F01 | 3 | – | 900 | 3 | 1 | 50 | 9.0 | 1 | `TestLost` |":              {lost, twice, fine},
		"| F01 | 4 | – | 900 | 3 | 1 | 50 | 9.0 | 1 | `TestFailed` **FAILED** |": {failed, lost, twice, fine},
		"| F02 | – | 40 | – | – | – | – | – | – | `TestSimX` |":                  nil,
	} {
		r := evidence{Rows: rows}
		if rows == nil {
			r.Sims = []simulation{{Test: "TestSimX", Faults: "F02", Runs: 40, Passed: true}}
		}
		if page := r.page(); !strings.Contains(page, want) {
			t.Errorf("%q is not in the page\n%s", want, page)
		}
	}
}

// A repeated fault of the three brokers replaces the old result, and the page says so.
func TestClusterRunAgain(t *testing.T) {
	kept := lastOfEach([]clusterFault{{Fault: "a", Requests: 1}, {Fault: "a", Requests: 5, Passed: true}, {Fault: "a", Requests: 1, Records: 7, Passed: true}})
	text := (&evidence{Cluster: kept}).table()
	if len(kept) != 2 || strings.Count(text, "a (run again) | 1 | 7 |") != 1 || strings.Contains(text, "FAILED") || strings.Count(text, "run again)") != 1 {
		t.Errorf("%+v\n%s", kept, text)
	}
}

// A repeated row replaces the old one, and the page says so.
func TestRunAgain(t *testing.T) {
	begun := time.Date(2026, 11, 21, 16, 0, 0, 0, time.UTC)
	old := row{Faults: "F21", Test: "TestX", Done: "stopped", Began: begun.Add(time.Minute)}
	other := row{Faults: "F22", Test: "TestY", Done: "stopped", Began: begun.Add(time.Minute), Passed: true}
	again := old
	again.Passed, again.Began = true, begun.Add(2*time.Hour)
	r := evidence{proofRun: proofRun{Date: begun, Took: time.Hour}, Rows: newestRows([]row{old, other, again})}
	text := r.table()
	if len(r.Rows) != 2 || strings.Count(text, "run again at 18:00 UTC") != 1 || strings.Contains(text, "**FAILED**") {
		t.Errorf("%d rows:\n%s", len(r.Rows), text)
	}
	dir := t.TempDir()
	if _, err := lastRun(dir); err == nil {
		t.Error("there is no run to add to")
	}
	r.Again = []repetition{{Date: begun.Add(2 * time.Hour), Commit: "1234abcd", Tests: "^TestX$"}}
	if page := r.page(); !strings.Contains(page, "- run again later, with commit 1234abcd, 2026-11-21 18:00 UTC: the mutants that no test had noticed, and\n  `^TestX$`") {
		t.Errorf("the page does not say what is of another commit:\n%s", page)
	}
	for file, text := range map[string]string{
		mutantsFirst: `[{"name":"a","survived":true},{"name":"b","killed_by":"relay.TestB"}]`, mutantsAgain: `[{"name":"a","killed_by":"relay.TestA"}]`,
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p := prover{dir: dir, again: true, only: "TestX"}
	if stages := p.stages(); len(stages) != 2 || stages[1].args[len(stages[1].args)-1] != "^(a)$" {
		t.Errorf("not the tests and the survivors: %+v", stages)
	}
	if all, err := load(dir); err != nil || len(all.Mutants) != 2 || slices.ContainsFunc(all.Mutants, func(m mutant) bool { return m.Survived }) {
		t.Errorf("%v, %+v", err, all)
	}
	if err := r.keep(dir); err != nil {
		t.Fatal(err)
	}
	if same, err := lastRun(dir); err != nil || !same.Date.Equal(begun) || same.Took != time.Hour {
		t.Errorf("%+v, %v", same, err)
	}
}

// `testrun prove -page` writes the page and the table from the last whole run, and runs nothing.
func TestPageAgain(t *testing.T) {
	dir := t.TempDir()
	p := prover{dir: dir, file: filepath.Join(dir, "page.md"), page: true, out: io.Discard}
	if err := p.prove(t.Context()); err == nil || !strings.Contains(err.Error(), "last whole run") {
		t.Errorf("without a run: %v", err)
	}
	if err := (proofRun{Date: time.Now(), Versions: []string{"commit: abc"}}).keep(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "proof.jsonl"), []byte(`{"faults":"F01","test":"TestX","done":"killed","passed":true}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := p.prove(t.Context()); err == nil || !strings.Contains(err.Error(), "not run: F02") {
		t.Errorf("a part of a run: %v", err)
	}
	for name, want := range map[string]string{"page.md": "| F01 | 1 | – | – | – | – | – | – | – | `TestX` |", "proof.md": "| F01 | TestX | killed |"} {
		if text, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !strings.Contains(string(text), want) || !strings.Contains(string(text), "- commit: abc") {
			t.Errorf("%s: %v\n%s", name, err, text)
		}
	}
}

func TestRowsAreOrderedByFault(t *testing.T) {
	for faults, want := range map[string]int{"F21 F27": 21, "F09": 9, "": 1000} {
		if got := number(faults); got != want {
			t.Errorf("number(%q) = %d, want %d", faults, got, want)
		}
	}
}
