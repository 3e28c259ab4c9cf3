package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// row is a line of proof.jsonl, as test/integration writes it.
type row struct {
	Faults       string  `json:"faults"`
	Test         string  `json:"test"`
	Done         string  `json:"done"`
	Outcome      string  `json:"outcome"`
	Postgres     string  `json:"postgres"`
	Kafka        string  `json:"kafka"`
	Seed         uint64  `json:"seed"`
	Checked      bool    `json:"checked"`
	Events       int     `json:"events"`
	Missing      int     `json:"missing"`
	Phantom      int     `json:"phantom"`
	OutOfOrder   int     `json:"out_of_order"`
	Repeats      int     `json:"repeats"`
	Deduplicated bool    `json:"deduplicated"` // a daemon of the row delivers deduplicated
	Recovery     float64 `json:"recovery_seconds"`
	PeakRSS      int64   `json:"peak_rss_bytes"`
	WALHeld      int64   `json:"wal_held_bytes"`
	Seconds      float64 `json:"seconds"`
	Passed       bool    `json:"passed"`

	Began time.Time `json:"began"` // the process that ran it
}

// simulation is one test of the simulator, as relay writes it into simulator.jsonl.
type simulation struct {
	Test    string         `json:"test"`
	Done    string         `json:"done"`
	Faults  string         `json:"faults"`
	Runs    int            `json:"runs"`
	Seconds float64        `json:"seconds"`
	Reached map[string]int `json:"reached"`
	First   uint64         `json:"first_seed"`
	Passed  bool           `json:"passed"`
}

// clusterFault is one test of the sink on three brokers, as kafka writes it into cluster.jsonl.
type clusterFault struct {
	Fault    string  `json:"fault"`
	Requests int     `json:"requests"`
	Records  int     `json:"records"`
	Resent   int     `json:"resent"`
	Seconds  float64 `json:"seconds"`
	Passed   bool    `json:"passed"`
	again    bool
}

// mutant is one entry of mutants.json, as test/mutants writes it.
type mutant struct {
	Name     string  `json:"name"`
	Rule     string  `json:"rule"`
	KilledBy string  `json:"killed_by"`
	Seconds  float64 `json:"seconds"`
	Survived bool    `json:"survived"`
}

// evidence is the content of docs/proof.md (page.go), and of the table with all rows.
type evidence struct {
	proofRun
	Rows    []row
	Sims    []simulation
	Cluster []clusterFault
	Mutants []mutant

	Unpassed []string // tests of the suite
}

// load reads the results of the stages. A stage without results is a gap, which gaps names.
func load(dir string) (*evidence, error) {
	r := &evidence{}
	err := errors.Join(
		lines(filepath.Join(dir, "proof.jsonl"), &r.Rows),
		lines(filepath.Join(dir, "simulator.jsonl"), &r.Sims),
		lines(filepath.Join(dir, "cluster.jsonl"), &r.Cluster),
	)
	for _, file := range []string{mutantsFirst, mutantsAgain} {
		results, why := mutantsIn(filepath.Join(dir, file))
		if err = errors.Join(err, why); why != nil {
			continue
		}
		for _, m := range results {
			r.Mutants = append(slices.DeleteFunc(r.Mutants, func(old mutant) bool { return old.Name == m.Name }), m)
		}
	}
	r.Rows, r.Cluster = newestRows(r.Rows), lastOfEach(r.Cluster)
	slices.SortStableFunc(r.Rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(number(a.Faults), number(b.Faults)), cmp.Compare(a.Test, b.Test))
	})
	return r, err
}

// mutantsIn reads results of mutants. A file that does not exist has none.
func mutantsIn(file string) (results []mutant, err error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &results)
	}
	return results, err
}

// newestRows keeps, for each test, the rows of the last process that ran it.
func newestRows(rows []row) []row {
	last := map[string]time.Time{}
	for _, r := range rows {
		if r.Began.After(last[r.Test]) {
			last[r.Test] = r.Began
		}
	}
	return slices.DeleteFunc(rows, func(r row) bool { return r.Began.Before(last[r.Test]) })
}

// lastOfEach keeps, for each fault, the run that was written last.
func lastOfEach(all []clusterFault) (kept []clusterFault) {
	for _, c := range all {
		i := slices.IndexFunc(kept, func(k clusterFault) bool { return k.Fault == c.Fault && k.Requests == c.Requests })
		if i < 0 {
			kept = append(kept, c)
			continue
		}
		kept[i], kept[i].again = c, true
	}
	return kept
}

func lines[T any](file string, into *[]T) error {
	f, err := os.Open(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // only read
	in := bufio.NewScanner(f)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var one T
		if err := json.Unmarshal(in.Bytes(), &one); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		*into = append(*into, one)
	}
	return in.Err()
}

// number returns the number of the first fault, "F21 F27" → 21.
func number(faults string) int {
	for _, id := range strings.Fields(faults) {
		if n, err := strconv.Atoi(strings.TrimPrefix(id, "F")); err == nil {
			return n
		}
	}
	return 1000
}

// gaps returns what this run lacks to be a proof.
func (r *evidence) gaps() []error {
	var gaps []error
	seen := map[string]bool{}
	for _, row := range r.Rows {
		for _, id := range strings.Fields(row.Faults) {
			seen[id] = true
		}
		if !row.Passed {
			gaps = append(gaps, fmt.Errorf("%s failed (%s)", row.Test, row.Faults))
		}
		for what, n := range map[string]int{"missing": row.Missing, "phantom": row.Phantom, "out of order": row.OutOfOrder} {
			if n > 0 {
				gaps = append(gaps, fmt.Errorf("%s has %d %s", row.Test, n, what))
			}
		}
	}
	for _, s := range r.Sims {
		if !s.Passed {
			gaps = append(gaps, fmt.Errorf("simulator test %s failed", s.Test))
		}
		for _, id := range strings.Fields(s.Faults) {
			seen[id] = true
		}
	}
	for _, c := range r.Cluster {
		if !c.Passed {
			gaps = append(gaps, fmt.Errorf("three brokers, %s, %d requests: failed", c.Fault, c.Requests))
		}
	}
	if len(r.Cluster) == 0 && !r.Short {
		gaps = append(gaps, errors.New("the cluster of three brokers left no result"))
	}
	if ids := slices.DeleteFunc(coveredFaults(), func(id string) bool { return seen[id] }); len(ids) > 0 {
		gaps = append(gaps, fmt.Errorf("not run: %s", strings.Join(ids, ", ")))
	}
	for _, name := range r.Unpassed {
		if !slices.ContainsFunc(r.Rows, func(row row) bool { return !row.Passed && strings.HasPrefix(row.Test+"/", name+"/") }) {
			gaps = append(gaps, fmt.Errorf("%s has not passed", name))
		}
	}
	if !slices.Contains(r.Ended, samplesStage) {
		gaps = append(gaps, errors.New("the samples have not passed"))
	}
	if len(r.Sims) == 0 {
		gaps = append(gaps, errors.New("the simulator left no result"))
	}
	if len(r.Mutants) == 0 {
		gaps = append(gaps, errors.New("the mutants left no result"))
	}
	for _, m := range r.Mutants {
		switch {
		case m.Survived:
			gaps = append(gaps, fmt.Errorf("mutant %s survived", m.Name))
		case m.KilledBy == "": // its tests ended with a panic or a time-out
			gaps = append(gaps, fmt.Errorf("mutant %s has no verdict", m.Name))
		}
	}
	return gaps
}

// about is the commit, the date and the versions of a run, and what it lacks to be a proof.
func (r *evidence) about(say func(string, ...any)) {
	for _, v := range r.Versions {
		say("- %s", v)
	}
	say("- date: %s, %s in all", r.Date.UTC().Format("2006-01-02 15:04 MST"), r.Took.Round(time.Second))
	say("- seed of the fault suite: %d (`OUTBOXCDC_TEST_SEED`)", r.Seed)
	for _, a := range r.Again {
		if a.Tests == "" {
			say("- gone on with at %s: what had no result yet, or had failed", a.Date.UTC().Format("2006-01-02 15:04 MST"))
			continue
		}
		say("- run again later, with commit %s, %s: the mutants that no test had noticed, and\n  `%s`", a.Commit, a.Date.UTC().Format("2006-01-02 15:04 MST"), a.Tests)
	}
	if r.Short {
		say("- **in the short form**: each fault as short as in `make test`")
	}
	for _, g := range r.gaps() {
		say("- **lacking**: %s", g)
	}
}

// versions returns the versions of the tested software and of the machine.
func versions(ctx context.Context) []string {
	out := func(name string, args ...string) string {
		b, err := exec.CommandContext(ctx, name, args...).Output()
		if err != nil {
			return "unknown"
		}
		return strings.TrimSpace(string(b))
	}
	commit := out("git", "describe", "--tags", "--always")
	if out("git", "status", "--porcelain", "--untracked-files=no", "--", ":/", ":!/docs/proof.md") != "" { // which a run writes
		commit += "-dirty"
	}
	vs := []string{
		"commit: " + commit,
		fmt.Sprintf("%s, %s/%s, %d cores", runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU()),
	}
	if k := out("uname", "-r"); k != "unknown" {
		vs = append(vs, "kernel "+k)
	}
	return vs
}
