package main

import (
	"fmt"
	"io"
	"math"
)

// target is a figure that a change must keep, as far as one call of the benchmark can tell. ADR 13 and 14 have the
// reasons.
type target struct {
	what  string
	bound float64
	least bool // the figure must be at least, not at most, the bound
	of    func(*rows) float64
}

func ratio(load, other string, figure func(*drainRow) float64) func(*rows) float64 {
	return func(r *rows) float64 {
		return r.drainFigures(load, "outboxcdc", figure).median() / r.drainFigures(load, other, figure).median()
	}
}

func absolute(load string, figure func(*drainRow) float64) func(*rows) float64 {
	return func(r *rows) float64 { return r.drainFigures(load, "outboxcdc", figure).median() }
}

// warmRatio compares our whole run, cold start included, with the second half of Debezium's.
func warmRatio(load string) func(*rows) float64 {
	return func(r *rows) float64 {
		return r.drainFigures(load, "outboxcdc", rate).median() / r.drainFigures(load, rivalName, func(d *drainRow) float64 { return d.Warm }).median()
	}
}

func worst(figure func(*drainRow) float64) func(*rows) float64 {
	return func(r *rows) float64 {
		most := math.NaN()
		for i := range r.drains {
			if d := &r.drains[i]; d.Subject == "outboxcdc" && d.Void == "" && !(figure(d) <= most) {
				most = figure(d)
			}
		}
		return most
	}
}

func paceMedian(pace string, figure func(*steadyRow) float64) func(*rows) float64 {
	return func(r *rows) float64 { return r.paceOf(pace, figure).median() }
}

func p50(s *steadyRow) float64         { return s.Commit.P50 }
func p99(s *steadyRow) float64         { return s.Commit.P99 }
func daemonShare(s *steadyRow) float64 { return s.Daemon * 100 }

// targets name loads and subjects. CPU-s/M is that of a machine on which pg_recvlogical needs 11.6 (s1) and 4.2 (s100).
var targets = []target{
	{"s1: rate ÷ pg_recvlogical's", 2.2, true, ratio("s1", "pg_recvlogical", rate)},
	{"s100: rate ÷ pg_recvlogical's", 1.9, true, ratio("s100", "pg_recvlogical", rate)},
	{"s1: CPU ÷ pg_recvlogical's", 0.29, false, ratio("s1", "pg_recvlogical", client)},
	{"s100: CPU ÷ pg_recvlogical's", 0.57, false, ratio("s100", "pg_recvlogical", client)},
	{"s1: rate ÷ Debezium's, warmed up", 2.0, true, warmRatio("s1")},
	{"s100: rate ÷ Debezium's, warmed up", 2.0, true, warmRatio("s100")},
	{"s1: CPU ÷ Debezium's", 0.1, false, ratio("s1", rivalName, client)},
	{"s100: CPU ÷ Debezium's", 0.1, false, ratio("s100", rivalName, client)},
	{"k1: rate ÷ pg_recvlogical's", 1.5, true, ratio("k1", "pg_recvlogical", rate)},
	{"k100: rate ÷ pg_recvlogical's", 1.1, true, ratio("k100", "pg_recvlogical", rate)},
	{"s100-100t: rate ÷ pg_recvlogical's", 1.3, true, ratio("s100-100t", "pg_recvlogical", rate)},
	{"s1: rate ÷ without a sink", 0.95, true, ratio("s1", "no sink", rate)},
	{"s100: rate ÷ without a sink", 0.95, true, ratio("s100", "no sink", rate)},
	{"k1: walsender's core, %", 85, true, absolute("k1", busy)},
	{"k100: walsender's core, %", 85, true, absolute("k100", busy)},
	{"s100-100t: walsender's core, %", 85, true, absolute("s100-100t", busy)},
	{"s1: CPU-s/M", 3.3, false, absolute("s1", client)},
	{"s100: CPU-s/M", 2.4, false, absolute("s100", client)},
	{"k100: CPU-s/M", 3.2, false, absolute("k100", client)},
	{"s1: walsender's CPU ÷ for pg_recvlogical", 0.5, false, ratio("s1", "pg_recvlogical", walsender)},
	{"s100: walsender's CPU ÷ for pg_recvlogical", 0.55, false, ratio("s100", "pg_recvlogical", walsender)},
	{"k100: walsender's CPU ÷ for pg_recvlogical", 0.65, false, ratio("k100", "pg_recvlogical", walsender)},
	{"s1M: walsender's CPU ÷ for pg_recvlogical", 0.65, false, ratio("s1M", "pg_recvlogical", walsender)},
	{"allocations per event, worst load", 1.0, false, worst(allocs)},
	{"peak RSS, worst load, MB", 64, false, func(r *rows) float64 { return worst(memory)(r) * 1.048576 }},
	{"50/s: p50, ms", 1.2, false, paceMedian("50/s", p50)},
	{"1,000/s: p50, ms", 1.5, false, paceMedian("1,000/s", p50)},
	{"1,000/s: p99, ms", 8, false, paceMedian("1,000/s", p99)},
	{"1,000/s: % of a core", 15, false, paceMedian("1,000/s", daemonShare)},
	{"1,000/s: visible → confirmed, worst, ms", 1000, false, paceMedian("1,000/s", func(s *steadyRow) float64 { return s.Confirm.Max })},
	{"50/s: visible → confirmed, worst, ms", 1000, false, paceMedian("50/s", func(s *steadyRow) float64 { return s.Confirm.Max })},
	{"idle: % of a core", 0.2, false, paceMedian("idle", daemonShare)},
	{"start to first record, ms", 300, false, func(r *rows) float64 { return r.firstTimes().median() }},
	{"memory, last third ÷ first third of the long drain", 1.1, false, func(r *rows) float64 {
		if len(r.memory) < 3 {
			return math.NaN()
		}
		return r.memoryThird(2) / r.memoryThird(0)
	}},
}

// targets prints the targets whose figures were measured.
func (r *rows) targets(w io.Writer) {
	fmt.Fprint(w, "\n### Targets\n\n| what | target | measured | |\n| --- | --- | --- | --- |\n")
	for _, t := range targets {
		got := t.of(r)
		if math.IsNaN(got) {
			continue
		}
		sign, met := "≤", got <= t.bound
		if t.least {
			sign, met = "≥", got >= t.bound
		}
		verdict := "met"
		if !met {
			verdict = "**missed**"
		}
		fmt.Fprintf(w, "| %s | %s %g | %.2f | %s |\n", t.what, sign, t.bound, got, verdict)
	}
}
