package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// table is every row of a run, for the folder of its results.
func (r *evidence) table() string {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	say("# All rows\n")
	say("Written by `make prove`; what was run again after it says so.\n")
	r.about(say)
	r.faults(say)
	r.cluster(say)
	r.simulator(say)
	r.mutants(say)
	return b.String()
}

func (r *evidence) faults(say func(string, ...any)) {
	say("\n## Faults on real servers\n")
	say("The built binary, real PostgreSQL, real Kafka except where the row says kfake, writers that lock their keys and log every")
	say("commit, a reader of its own, and a sampler that holds the slot's position against the ends of the broker's logs. *Missing*,")
	say("*phantom* and *out of order* must be 0 in every row; *repeats* must be within what the last column allows, 0 where it says")
	say("nothing. *Recovery* is the time from the end of the last fault until everything committed by then was confirmed.")
	say("")
	say("| fault | test | what was done | PostgreSQL | Kafka | events | missing | phantom | out of order | repeats | recovery | peak RSS | WAL held | remarks |")
	say("| --- | --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
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
		say("| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |", w.Faults, cell(w.Test), cell(w.Done), w.Postgres, w.Kafka,
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
