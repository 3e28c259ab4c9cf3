package main

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A whole run that was cut off, or has failed, goes on with what it lacks, and with nothing else.
func TestGoOn(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	event := func(action, test string) string { return `{"Action":"` + action + `","Test":"` + test + "\"}\n" }
	log := event("run", "TestA") + event("run", "TestA/part") + event("pass", "TestA") + event("run", "TestB") + event("fail", "TestB") +
		event("run", "TestD") + event("skip", "TestD") + event("run", "TestE") + "not an event\n" + `{"Action":"run","Te`
	write("suite.log", log)
	run := proofRun{Versions: []string{"commit: abc"}, Seed: 7, Tests: []string{"TestA", "TestB", "TestC", "TestD", "TestE"}, Ended: []string{"simulator"}}
	lacking := func() (names []string, suite stage) {
		t.Helper()
		p := prover{dir: dir, again: true}
		stages, err := p.lacking(&run, "commit: abc")
		if err != nil || p.seed != 7 {
			t.Fatal(err, p.seed)
		}
		for _, s := range stages {
			if names = append(names, s.name); s.name == suiteStage {
				suite = s
			}
		}
		return names, suite
	}
	names, suite := lacking()
	if !slices.Equal(names, []string{"suite", "cluster", "samples", "mutants"}) || !slices.Equal(suite.args[len(suite.args)-2:], []string{"-skip", "^(TestA|TestD)$"}) {
		t.Errorf("%v, %v", names, suite.args)
	}
	r := evidence{proofRun: run, Unpassed: []string{"TestB", "TestC", "TestE"}, Rows: []row{{Test: "TestB/part", Faults: "F01"}}}
	var gaps []string
	for _, g := range r.gaps() {
		gaps = append(gaps, g.Error())
	}
	if text := strings.Join(gaps, "; "); !strings.Contains(text, "TestC has not passed; TestE has not passed; the samples have not passed") || strings.Contains(text, "TestB has") {
		t.Error(text) // TestB is named with its faults
	}

	run.Ended = append(run.Ended, "cluster", "samples", "mutants")
	write("suite.log", log+"\n"+event("run", "TestB")+event("pass", "TestB")+event("pass", "TestC")+event("run", "TestE")+event("pass", "TestE"))
	write(mutantsFirst, `[{"name":"a","survived":true},{"name":"b","killed_by":"relay.TestB"}]`)
	if names, _ := lacking(); !slices.Equal(names, []string{"mutants"}) {
		t.Errorf("all tests have passed: %v", names)
	}
	write("suite.log", log+"\n"+event("run", "TestA"))
	if _, suite := lacking(); suite.args[len(suite.args)-1] != "^(TestD)$" {
		t.Errorf("a test that was begun again: %v", suite.args)
	}

	p := prover{dir: dir, again: true, out: io.Discard}
	if _, err := p.lacking(&run, "commit: def"); err == nil || !strings.Contains(err.Error(), "another version, commit: abc, and this is commit: def") {
		t.Errorf("another commit: %v", err)
	}
	run.Again = []repetition{{Commit: "abc"}}
	if page := (&evidence{proofRun: run}).page(); !strings.Contains(page, "- gone on with at ") {
		t.Error(page)
	}
}

// Tests that a package has are listed by the compiler, not guessed.
func TestTestsOf(t *testing.T) {
	names, err := testsOf(t.Context(), ".")
	if err != nil || !slices.Contains(names, "TestTestsOf") || slices.Contains(names, "ok") {
		t.Errorf("%v, %v", names, err)
	}
	if _, err := testsOf(t.Context(), "./missing"); err == nil {
		t.Error("a folder that does not exist has tests")
	}
}
