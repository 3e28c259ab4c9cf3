package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// faultLine is the line of a fault in docs/proof.md. Each figure is the largest one of its rows.
type faultLine struct {
	id       string
	rows     int            // tests on real servers
	runs     int            // of the simulator
	counts   map[string]int // by column; a column that no row has is absent
	recovery float64
	peak     int64
	worst    row
}

// columns are those of faultLine.counts.
var columns = []string{"events", "wrong", "duplicates", "at least once"}

// wrong is how many events are missing, in Kafka without a committed row, or out of order.
func (r row) wrong() int { return r.Missing + r.Phantom + r.OutOfOrder }

// worse compares rows. Repeats of delivery at least once are part of its contract, so they do not count.
func worse(a, b row) int {
	rank := func(r row) []float64 {
		failed, duplicates := 1.0, 0
		if r.Passed {
			failed = 0
		}
		if r.Deduplicated {
			duplicates = r.Repeats
		}
		return []float64{failed, float64(r.wrong()), float64(duplicates), r.Recovery, r.Seconds, float64(r.Events)}
	}
	return slices.Compare(rank(a), rank(b))
}

func (l *faultLine) add(r row) {
	l.rows++
	l.recovery, l.peak = max(l.recovery, r.Recovery), max(l.peak, r.PeakRSS)
	if r.Checked {
		repeats := "at least once"
		if r.Deduplicated {
			repeats = "duplicates"
		}
		for column, n := range map[string]int{"events": r.Events, "wrong": r.wrong(), repeats: r.Repeats} {
			l.counts[column] = max(l.counts[column], n)
		}
	}
	if l.rows == 1 || worse(r, l.worst) > 0 {
		l.worst = r
	}
}

// faultLines returns the lines in the order of the faults' numbers.
func (r *evidence) faultLines() []*faultLine {
	lines := map[string]*faultLine{}
	of := func(faults string) (all []*faultLine) {
		for id := range strings.FieldsSeq(faults) {
			if lines[id] == nil {
				lines[id] = &faultLine{id: id, counts: map[string]int{}}
			}
			all = append(all, lines[id])
		}
		return all
	}
	for _, w := range r.Rows {
		for _, l := range of(w.Faults) {
			l.add(w)
		}
	}
	for _, s := range r.Sims {
		for _, l := range of(s.Faults) {
			l.runs += s.Runs
			if l.rows == 0 {
				l.worst = row{Test: s.Test, Passed: s.Passed}
			}
		}
	}
	return slices.SortedFunc(maps.Values(lines), func(a, b *faultLine) int { return cmp.Compare(number(a.id), number(b.id)) })
}

// page is docs/proof.md: a line for each fault, and counts.
func (r *evidence) page() string {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	say("# Proof\n")
	say("`make prove` writes this page; do not edit it. [faults.md](../test/faults.md) describes the faults. All rows of the")
	say("last run on this machine, with what was done in each, and all mutants are in `bin/proof/proof.md`.\n")
	r.about(say)
	say("\n## Faults on real servers\n")
	say("Each figure is the largest one of the fault's rows. *Wrong* are events that are missing, without a committed row, or")
	say("out of order: none may be. *Duplicates* are those of deduplicated delivery: none except for [the remaining")
	say("duplicates](delivery.md#remaining-duplicates). *At least once* are those of the other mode. *Recovery* is the time from")
	say("the end of the last fault until everything was confirmed. The test is that of the worst row.\n")
	say("| fault | rows | simulated | %s | recovery, s | peak RSS, MiB | test |", strings.Join(columns, " | "))
	say("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
	for _, l := range r.faultLines() {
		var counts []string
		for _, c := range columns {
			n, counted := l.counts[c]
			if counts = append(counts, strconv.Itoa(n)); !counted {
				counts[len(counts)-1] = "–"
			}
		}
		test, _, _ := strings.Cut(l.worst.Test, "/")
		if test = "`" + test + "`"; !l.worst.Passed {
			test += " **FAILED**"
		}
		say("| %s | %s | %s | %s | %s | %s | %s |", l.id, orDash(l.rows), orDash(l.runs), strings.Join(counts, " | "), strings.TrimSuffix(secondsOf(l.recovery), " s"), strings.TrimSuffix(mebibytes(l.peak), " MiB"), test)
	}
	r.totals(say)
	say("\n## Not covered\n")
	for _, n := range uncoveredFaults {
		say("- %s: %s", n.ids, n.why)
	}
	for _, l := range limits {
		say("- %s", l)
	}
	return b.String()
}

func orDash(n int) string {
	if n == 0 {
		return "–"
	}
	return strconv.Itoa(n)
}

// headline is the test whose figures README has.
const headline = "TestDeduplicatedKill9"

// totals counts the rows, the runs of the simulator and the mutants. What failed or survived is a gap, which the page
// names.
func (r *evidence) totals(say func(string, ...any)) {
	var events, runs, records int
	for _, w := range r.Rows {
		events += w.Events
	}
	for _, s := range r.Sims {
		runs += s.Runs
	}
	for _, c := range r.Cluster {
		records += c.Records
	}
	say("\n## Counts\n")
	say("- %d rows on real servers, with %d events", len(r.Rows), events)
	if i := slices.IndexFunc(r.Rows, func(w row) bool { return w.Test == headline }); i >= 0 {
		say("- `%s` (F01, settings that stay as they are): %d events, %d of them repeated", headline, r.Rows[i].Events, r.Rows[i].Repeats)
	}
	say("- %d runs of the simulator: the real relay, tracker, decoder and router between a fake WAL and a fake broker", runs)
	say("- %d runs of a cluster of three brokers under a fault, with %d records", len(r.Cluster), records)
	byPackage := map[string]int{}
	for _, m := range r.Mutants {
		pkg, _, _ := strings.Cut(m.KilledBy, ".")
		byPackage[cmp.Or(pkg, "**no test**")]++
	}
	var caught []string
	for _, pkg := range slices.Sorted(maps.Keys(byPackage)) {
		caught = append(caught, fmt.Sprintf("%s %d", pkg, byPackage[pkg]))
	}
	say("- %d mutants: the product with one rule wrong, which a test must notice. Caught by a test of:", len(r.Mutants))
	var lines []string
	for some := range slices.Chunk(caught, 8) {
		lines = append(lines, strings.Join(some, ", "))
	}
	say("  %s", strings.Join(lines, ",\n  "))
}
