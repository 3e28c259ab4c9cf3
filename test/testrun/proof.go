package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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
	Faults     string  `json:"faults"`
	Test       string  `json:"test"`
	Done       string  `json:"done"`
	Outcome    string  `json:"outcome"`
	Postgres   string  `json:"postgres"`
	Kafka      string  `json:"kafka"`
	Seed       uint64  `json:"seed"`
	Checked    bool    `json:"checked"`
	Events     int     `json:"events"`
	Missing    int     `json:"missing"`
	Phantom    int     `json:"phantom"`
	OutOfOrder int     `json:"out_of_order"`
	Repeats    int     `json:"repeats"`
	Recovery   float64 `json:"recovery_seconds"`
	PeakRSS    int64   `json:"peak_rss_bytes"`
	WALHeld    int64   `json:"wal_held_bytes"`
	Seconds    float64 `json:"seconds"`
	Passed     bool    `json:"passed"`

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

// evidence is the content of docs/proof.md.
type evidence struct {
	proofRun
	Rows    []row
	Sims    []simulation
	Cluster []clusterFault
	Mutants []mutant
}

// load reads the results of the stages. A stage without results is a gap, which gaps names.
func load(dir string) (*evidence, error) {
	r := &evidence{}
	err := errors.Join(
		lines(filepath.Join(dir, "proof.jsonl"), &r.Rows),
		lines(filepath.Join(dir, "simulator.jsonl"), &r.Sims),
		lines(filepath.Join(dir, "cluster.jsonl"), &r.Cluster),
	)
	b, readErr := os.ReadFile(filepath.Join(dir, "mutants.json"))
	switch {
	case errors.Is(readErr, os.ErrNotExist):
	case readErr != nil:
		err = errors.Join(err, readErr)
	default:
		err = errors.Join(err, json.Unmarshal(b, &r.Mutants))
	}
	r.Rows, r.Cluster = newestRows(r.Rows), lastOfEach(r.Cluster)
	slices.SortStableFunc(r.Rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(number(a.Faults), number(b.Faults)), cmp.Compare(a.Test, b.Test))
	})
	return r, err
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
	for _, id := range coveredFaults() {
		if !seen[id] {
			gaps = append(gaps, fmt.Errorf("%s was not run", id))
		}
	}
	if len(r.Sims) == 0 {
		gaps = append(gaps, errors.New("the simulator left no result"))
	}
	if len(r.Mutants) == 0 {
		gaps = append(gaps, errors.New("the mutants left no result"))
	}
	for _, m := range r.Mutants {
		if m.Survived {
			gaps = append(gaps, fmt.Errorf("mutant %s survived", m.Name))
		}
	}
	return gaps
}

func (r *evidence) markdown() string {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	say("# Proof")
	say("")
	say("Written by `make prove`; do not edit. Every row below is a run of that call; what was run again after it says so.")
	if r.Short {
		say("")
		say("**In the short form**: each fault as short as in `make test`; the full length (`make prove` without SHORT=1) was run only where a row says that it was run again.")
	}
	say("")
	say("- date: %s, %s in all", r.Date.UTC().Format("2006-01-02 15:04 MST"), r.Took.Round(time.Second))
	for _, v := range r.Versions {
		say("- %s", v)
	}
	say("- seed of the fault suite: %d (`OUTBOXCDC_TEST_SEED=%d`); schedules of real servers repeat only roughly, the simulator's runs exactly", r.Seed, r.Seed)
	if gaps := r.gaps(); len(gaps) > 0 {
		say("\n**This run is no proof:**\n")
		for _, g := range gaps {
			say("- %s", g)
		}
	}
	r.faults(say)
	r.cluster(say)
	r.simulator(say)
	r.mutants(say)
	say("\n## What is not covered, and why\n")
	say("Of the catalogue (the numbers are its ids):\n")
	for _, n := range uncoveredFaults {
		say("- %s: %s", n.ids, n.why)
	}
	say("")
	for _, l := range limits {
		say("- %s", l)
	}
	return b.String()
}

func (r *evidence) faults(say func(string, ...any)) {
	say("\n## Faults on real servers\n")
	say("The built binary, real PostgreSQL, real Kafka except where the row says kfake, writers that lock their keys and log every")
	say("commit, a reader of its own, and a sampler that holds the slot's position against the ends of the broker's logs. *Missing*,")
	say("*phantom* and *out of order* must be 0 in every row; *repeats* must be within what the last column allows, 0 where it says")
	say("nothing. *Recovery* is the time from the end of the last fault until everything committed by then was confirmed.")
	say("")
	say("| fault | what was done | PostgreSQL | Kafka | events | missing | phantom | out of order | repeats | recovery | peak RSS | WAL held | remarks |")
	say("| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
	for _, w := range r.Rows {
		counts := []string{"–", "–", "–", "–", "–"}
		if w.Checked {
			for i, n := range []int{w.Events, w.Missing, w.Phantom, w.OutOfOrder, w.Repeats} {
				counts[i] = strconv.Itoa(n)
			}
		}
		remarks := w.Outcome
		if !w.Passed {
			remarks = strings.TrimSuffix("**FAILED** "+remarks, " ")
		}
		if end := r.Date.Add(r.Took); !w.Began.IsZero() && w.Began.After(end) {
			remarks = strings.TrimPrefix(remarks+"; run again at "+w.Began.UTC().Format("15:04 MST"), "; ")
		}
		say("| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |", w.Faults, cell(w.Done), w.Postgres, w.Kafka,
			counts[0], counts[1], counts[2], counts[3], counts[4], secondsOf(w.Recovery), mebibytes(w.PeakRSS), mebibytes(w.WALHeld), cell(remarks))
	}
}

func (r *evidence) cluster(say func(string, ...any)) {
	if len(r.Cluster) == 0 {
		return
	}
	say("\n## Three brokers\n")
	say("The sink alone, within one session, on three real nodes with three replicas of which two must be in sync. None is missing,")
	say("repeated, out of order, or acknowledged out of order.\n")
	say("| fault | requests open | records | batches sent again | took |")
	say("| --- | ---: | ---: | ---: | ---: |")
	for _, c := range r.Cluster {
		fault := c.Fault
		if !c.Passed {
			fault += " **FAILED**"
		}
		if c.again {
			fault += " (run again)"
		}
		say("| %s | %d | %d | %d | %s |", cell(fault), c.Requests, c.Records, c.Resent, secondsOf(c.Seconds))
	}
}

func (r *evidence) simulator(say func(string, ...any)) {
	say("\n## Simulator\n")
	say("The real relay, tracker, decoder and router between a fake WAL and a fake broker, in fake time; a run is one seed. After each:")
	say("nothing missing, nothing phantom, order, repeats only after a fault, confirmed never beyond an unacknowledged commit, lag back to 0.")
	for _, s := range r.Sims {
		verdict := ""
		if !s.Passed {
			verdict = " **FAILED**"
		}
		ids := ""
		if s.Faults != "" {
			ids = " (" + s.Faults + ")"
		}
		say("\n%s%s: %d runs in %s%s", strings.TrimSuffix(s.Done, "."), ids, s.Runs, secondsOf(s.Seconds), verdict)
		if len(s.Reached) == 0 || s.Test != "TestSim" { // the other tests each check one rule
			continue
		}
		say("\n| state that must have been reached | times |\n| --- | ---: |")
		for _, what := range slices.Sorted(maps.Keys(s.Reached)) {
			say("| %s | %d |", cell(what), s.Reached[what])
		}
	}
}

func (r *evidence) mutants(say func(string, ...any)) {
	say("\n## Mutants\n")
	say("Each is the product with one rule deliberately wrong; the named test fails on it (`make mutants`).\n")
	say("| mutant | the wrong rule | caught by | after |")
	say("| --- | --- | --- | ---: |")
	for _, m := range r.Mutants {
		by := m.KilledBy
		if m.Survived {
			by = "**SURVIVED**"
		}
		say("| %s | %s | %s | %s |", cell(m.Name), cell(m.Rule), cell(by), secondsOf(m.Seconds))
	}
}

// cell escapes a text for a table cell.
func cell(s string) string {
	return strings.NewReplacer("|", "\\|", "\n", " ", "\t", " ").Replace(strings.TrimSpace(s))
}

func secondsOf(s float64) string {
	switch {
	case s == 0:
		return "–"
	case s < 10:
		return fmt.Sprintf("%.1f s", s)
	}
	return fmt.Sprintf("%.0f s", s)
}

func mebibytes(n int64) string {
	if n <= 0 {
		return "–"
	}
	return fmt.Sprintf("%d MiB", (n+1<<19)>>20)
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
	vs := []string{
		"outboxcdc: " + out("git", "describe", "--tags", "--always", "--dirty"),
		fmt.Sprintf("%s, %s/%s, %d cores", runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU()),
	}
	if k := out("uname", "-r"); k != "unknown" {
		vs = append(vs, "kernel "+k)
	}
	return vs
}
