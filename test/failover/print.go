package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// printer prints the rounds as they happen, and a table at the end.
type printer struct {
	out  io.Writer
	rows [][]string
}

func (p *printer) text(format string, args ...any) {
	fmt.Fprintf(p.out, format+"\n", args...)
}

func (p *printer) indented(text string) {
	for line := range strings.Lines(strings.TrimSpace(text)) {
		p.text("    %s", strings.TrimRight(line, "\n"))
	}
}

// round prints one change of the primary.
func (p *printer) round(number int, r round, committed int64) {
	leftover := ""
	if l := r.leftover; l.found {
		leftover = fmt.Sprintf(", its leftover of the slot reported after %.1f s, the copy ready %.1f s after standby clean", l.reported.Seconds(), l.ready.Seconds())
	}
	p.text("  %s %d: no primary for %.1f s, former primary back after %.1f s, delivery after %.1f s%s, standby ready after %.1f s; %d events committed",
		r.kind, number, r.away.Seconds(), r.rejoined.Seconds(), r.resumed.Seconds(), leftover, r.ready.Seconds(), committed)
}

// result prints the verdict of a scenario and keeps it for the table.
func (p *printer) result(major, scenario string, v outcome) {
	verdict := "ok"
	if len(v.broken) > 0 {
		verdict = "BROKEN"
	}
	for _, broken := range v.broken {
		p.text("  BROKEN: %s", broken)
	}
	p.text("  %s: %d rows, %d records, %d missing, %d phantoms, %d duplicates", verdict, v.report.Rows, v.report.Records,
		len(v.report.Missing), len(v.report.Phantom), v.report.Repeats)
	row := func(what string, rounds []round) {
		p.rows = append(p.rows, []string{
			major, what, fmt.Sprint(len(rounds)), fmt.Sprint(v.report.Rows), fmt.Sprint(len(v.report.Missing)), fmt.Sprint(len(v.report.Phantom)),
			fmt.Sprint(v.report.Repeats), spread(rounds, func(r round) time.Duration { return r.away }), spread(rounds, func(r round) time.Duration { return r.resumed }),
			spread(rounds, func(r round) time.Duration { return r.late }), verdict,
		})
	}
	if len(v.rounds) == 0 {
		row(scenario, nil)
	}
	for _, kind := range []string{switchover, kill} {
		of := slices.DeleteFunc(slices.Clone(v.rounds), func(r round) bool { return r.kind != kind })
		if len(of) > 0 {
			row(scenario+", "+kind, of)
		}
	}
}

// table prints the results, as Markdown.
func (p *printer) table() {
	p.text("")
	head := []string{"PostgreSQL", "scenario", "rounds", "rows", "missing", "phantoms", "duplicates", "no primary", "resumed after", "of that, after the standby was back", "verdict"}
	p.text("| %s |", strings.Join(head, " | "))
	p.text("|%s", strings.Repeat(" --- |", len(head)))
	for _, row := range p.rows {
		p.text("| %s |", strings.Join(row, " | "))
	}
	p.text("\nRows, missing, phantoms and duplicates are those of the whole scenario; times are median / maximum, since the new primary accepted connections.")
}

// spread returns median and maximum of a time of the rounds.
func spread(rounds []round, of func(round) time.Duration) string {
	if len(rounds) == 0 {
		return "–"
	}
	var all []time.Duration
	for _, r := range rounds {
		all = append(all, of(r))
	}
	slices.SortFunc(all, cmp.Compare[time.Duration])
	return fmt.Sprintf("%.1f / %.1f s", all[len(all)/2].Seconds(), all[len(all)-1].Seconds())
}
