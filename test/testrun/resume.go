package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// A whole run takes two hours, and a machine may not last that long: `testrun prove -again` goes on with it.

const suiteStage, suiteFolder, samplesStage, mutantsStage = "suite", "./test/integration", "samples", "mutants"

// lacking returns the stages that the last whole run lacks, without the tests of the suite that have passed.
func (p *prover) lacking(last *proofRun, commit string) ([]stage, error) {
	if last.Versions[0] != commit {
		return nil, fmt.Errorf("the last whole run is of another version, %s, and this is %s: check that out, or choose tests with RUN", last.Versions[0], commit)
	}
	p.seed, p.short = last.Seed, last.Short
	passed, err := passedTests(p.dir)
	if err != nil {
		return nil, err
	}
	var stages []stage
	for _, s := range p.stages() {
		switch {
		case s.name == suiteStage:
			if len(without(last.Tests, passed)) > 0 {
				if len(passed) > 0 {
					s.args = append(s.args, "-skip", "^("+strings.Join(passed, "|")+")$")
				}
				stages = append(stages, s)
			}
		case !slices.Contains(last.Ended, s.name):
			stages = append(stages, s)
		}
	}
	if survivors := p.survivors(); len(survivors) > 0 && slices.Contains(last.Ended, mutantsStage) {
		stages = append(stages, mutantsOf(p.dir, mutantsAgain, "-run", "^("+strings.Join(survivors, "|")+")$"))
	}
	return stages, nil
}

// testsOf returns the names of a package's tests.
func testsOf(ctx context.Context, folder string) (names []string, err error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-list", "^Test", folder)
	cmd.Env, cmd.Stderr = append(os.Environ(), "CGO_ENABLED=0"), os.Stderr
	b, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the tests of %s: %w", folder, err)
	}
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "Test") {
			names = append(names, line)
		}
	}
	return names, nil
}

// passedTests returns the tests of the suite whose last result is that they have passed, or were skipped.
func passedTests(dir string) ([]string, error) {
	f, err := os.Open(filepath.Join(dir, suiteStage+".log"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	passed := map[string]bool{}
	in := bufio.NewScanner(f)
	in.Buffer(nil, 16<<20)
	for in.Scan() {
		var e event
		if json.Unmarshal(in.Bytes(), &e) != nil || e.Test == "" || strings.Contains(e.Test, "/") {
			continue // a line that is no event: standard error, or the last line before the end
		}
		switch e.Action {
		case "pass", "skip":
			passed[e.Test] = true
		case "run", "fail":
			delete(passed, e.Test)
		}
	}
	return slices.Sorted(maps.Keys(passed)), in.Err()
}

// without returns the names of all that are not among some.
func without(all, some []string) (rest []string) {
	for _, name := range all {
		if !slices.Contains(some, name) {
			rest = append(rest, name)
		}
	}
	return rest
}
