package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// event is one line of `go test -json` (go doc test2json).
type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64
}

// result is the state of one test. Its name is unique in a package while it runs, and -count repeats it.
type result struct {
	pkg, name string
	started   time.Time
	output    tail
	seconds   float64
	children  int
	ended     string  // pass, fail or skip
	failed    bool    // one of its subtests failed
	slowest   *result // of its subtests
}

// pkg is the state of one package.
type pkg struct {
	output tail
	tests  map[string]*result // unfinished, by name
	count  int
}

// report gathers events and writes the summary to out.
type report struct {
	out       io.Writer
	most      int // number of slowest tests
	needKafka bool
	ci        bool

	pkgs                    map[string]*pkg // unfinished
	done                    []*result       // top-level tests
	passed, failed, skipped int
	broken                  []string       // packages and builds that failed
	failures                []string       // of tests, in a few lines: the end of a long log is what is kept
	skips                   map[string]int // reasons
	kafka, noKafka          string
	stages                  []stageResult
	shown                   time.Time  // last output
	expected                []expected // patterns that have chosen no test yet
}

func newReport(out io.Writer, slowest int) *report {
	return &report{out: out, most: slowest, pkgs: map[string]*pkg{}, skips: map[string]int{}, shown: time.Now()}
}

// split sends the lines of in, of any length.
func split(in io.Reader, lines chan<- []byte) error {
	r := bufio.NewReader(in)
	for {
		line, err := r.ReadBytes('\n')
		if len(line) > 0 {
			lines <- line
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *report) printf(format string, args ...any) {
	r.shown = time.Now()
	fmt.Fprintf(r.out, format, args...) //nolint:errcheck // if printing fails, there is no way to report it
}

// line handles one line of the stream. Lines that are not events (a tool's own error) are printed unchanged.
func (r *report) line(line []byte) {
	var e event
	if !bytes.HasPrefix(line, []byte("{")) || json.Unmarshal(line, &e) != nil || e.Action == "" {
		r.printf("%s\n", bytes.TrimRight(line, "\n"))
		return
	}
	switch e.Action {
	case "build-output":
		r.printf("%s", e.Output)
	case "build-fail":
		r.broken = append(r.broken, e.ImportPath)
	default:
		if e.Test == "" {
			r.packageEvent(e)
		} else {
			r.testEvent(e)
		}
	}
}

func (r *report) pkg(name string) *pkg {
	p, ok := r.pkgs[name]
	if !ok {
		p = &pkg{tests: map[string]*result{}}
		r.pkgs[name] = p
	}
	return p
}

func (r *report) packageEvent(e event) {
	p := r.pkg(e.Package)
	switch e.Action {
	case "output":
		p.output.add(e.Output)
		r.sawKafka(e.Output)
	case "pass":
		r.printf("ok    %s  %s  %d tests\n", seconds(e.Elapsed), shortName(e.Package), p.count)
		delete(r.pkgs, e.Package)
	case "fail":
		r.printUnfinished(e.Package, p)
		r.printf("FAIL  %s  %s\n%s", seconds(e.Elapsed), shortName(e.Package), p.output.text())
		r.broken = append(r.broken, e.Package)
		delete(r.pkgs, e.Package)
	case "skip": // no test files
		delete(r.pkgs, e.Package)
	}
}

// sawKafka notes what the tests say about their Kafka. One without a real Kafka outweighs all with one.
func (r *report) sawKafka(output string) {
	line := strings.TrimSpace(output)
	if v, ok := strings.CutPrefix(line, "REAL-KAFKA:"); ok {
		r.kafka = strings.TrimSpace(v)
	}
	if v, ok := strings.CutPrefix(line, "NO-REAL-KAFKA:"); ok {
		r.noKafka = strings.TrimSpace(v)
	}
}

func (r *report) testEvent(e event) {
	p := r.pkg(e.Package)
	t, ok := p.tests[e.Test]
	if !ok {
		t = &result{pkg: e.Package, name: e.Test, started: time.Now()}
		p.tests[e.Test] = t
		if parent := p.parent(e.Test); parent != nil {
			parent.children++
		}
	}
	switch e.Action {
	case "output":
		t.output.add(e.Output)
	case "pass", "fail", "skip":
		t.seconds, t.ended = e.Elapsed, e.Action
		r.expected = slices.DeleteFunc(r.expected, func(x expected) bool { return x.fits(shortName(e.Package), e.Test) })
		delete(p.tests, e.Test)
		r.noteFinished(p, t, e.Action)
	}
}

// parent returns the unfinished test that name is a subtest of, if there is one. A subtest's own name may contain
// slashes.
func (p *pkg) parent(name string) *result {
	for {
		i := strings.LastIndexByte(name, '/')
		if i < 0 {
			return nil
		}
		name = name[:i]
		if t, ok := p.tests[name]; ok {
			return t
		}
	}
}

// noteFinished counts the tests without subtests, and a test with subtests only if it failed by itself.
func (r *report) noteFinished(p *pkg, t *result, action string) {
	parent := p.parent(t.name)
	if parent == nil {
		r.done = append(r.done, t)
	} else if parent.slowest == nil || t.seconds > parent.slowest.seconds {
		parent.slowest = t
	}
	switch {
	case action == "fail":
		if parent != nil {
			parent.failed = true
		}
		r.printf("--- FAIL: %s %s (%.1fs)\n%s", shortName(t.pkg), t.name, t.seconds, t.output.ownOutput())
		r.failures = append(r.failures, shortName(t.pkg)+" "+t.name+"\n"+t.output.beginning())
		if !t.failed {
			p.count++
			r.failed++
		}
	case t.children > 0:
	case action == "skip":
		r.skipped++
		r.skips[t.output.reason()]++
	default:
		p.count++
		r.passed++
	}
	if action == "pass" && parent == nil && t.seconds >= 2 {
		r.printf("      %s  %s %s\n", seconds(t.seconds), shortName(t.pkg), t.name)
	}
	t.output = tail{}
}

// printUnfinished prints the tests that were running when their package ended: one of them is usually the cause.
func (r *report) printUnfinished(name string, p *pkg) {
	for _, n := range slices.Sorted(maps.Keys(p.tests)) {
		t := p.tests[n]
		r.printf("--- NOT FINISHED: %s %s\n%s", shortName(name), n, t.output.ownOutput())
		r.failures = append(r.failures, "not finished: "+shortName(name)+" "+n+"\n")
		if t.children == 0 {
			r.failed++
		}
	}
	clear(p.tests)
}

// progress prints a sign of life if nothing was shown for a while.
func (r *report) progress(now time.Time) {
	if now.Sub(r.shown) < progressInterval {
		return
	}
	var running []string
	for _, name := range slices.Sorted(maps.Keys(r.pkgs)) {
		p := r.pkgs[name]
		for _, n := range slices.Sorted(maps.Keys(p.tests)) {
			if t := p.tests[n]; t.children == 0 {
				running = append(running, fmt.Sprintf("%s (%.0fs)", n, now.Sub(t.started).Seconds()))
			}
		}
		if len(p.tests) == 0 {
			running = append(running, shortName(name))
		}
	}
	const most = 4
	if n := len(running) - most; n > 0 {
		running = append(running[:most], fmt.Sprintf("%d more", n))
	}
	if len(running) == 0 {
		running = []string{"the compiler"}
	}
	r.printf("      … %d passed, running: %s\n", r.passed, strings.Join(running, ", "))
}

// end prints the summary and returns whether all tests passed. err is what went wrong besides tests.
func (r *report) end(err error) bool {
	for _, name := range slices.Sorted(maps.Keys(r.pkgs)) {
		r.printUnfinished(name, r.pkgs[name])
		r.printf("FAIL  %s did not finish\n%s", shortName(name), r.pkgs[name].output.text())
		r.broken = append(r.broken, name)
	}
	r.printSlowest()
	for _, reason := range slices.Sorted(maps.Keys(r.skips)) {
		r.printf("skipped %d: %s\n", r.skips[reason], reason)
	}
	for _, name := range r.broken {
		r.printf("failed: %s\n", name)
	}
	for _, text := range r.failures {
		r.printf("failed: %s", text)
	}
	for _, s := range r.stages {
		r.printf("stage %-16s %s, %.0f s of processor time\n", s.name, seconds(s.wall.Seconds()), s.worked.Seconds())
	}
	ok := r.failed == 0 && len(r.broken) == 0 && len(r.expected) == 0
	for _, x := range r.expected {
		r.printf("no test of %s was chosen by %s: correct tiers.txt\n", x.pkg, x.pattern)
	}
	if err != nil {
		r.printf("%v\n", err)
		ok = false
	}
	if r.passed+r.failed == 0 {
		r.printf("no test ran\n")
		ok = false
	}
	r.printf("tests: %d passed, %d failed, %d skipped\n", r.passed, r.failed, r.skipped)
	if r.needKafka && !r.sayKafka() && r.ci {
		ok = false
	}
	return ok
}

// sayKafka prints the last line and returns whether a real Kafka was tested.
func (r *report) sayKafka() bool {
	why := r.noKafka
	switch {
	case why == "" && r.kafka != "":
		r.printf("TESTED ON A REAL KAFKA: %s\n", r.kafka)
		return true
	case why == "":
		why = "the integration tests ended before they reported their Kafka"
	}
	r.printf("NOT TESTED ON A REAL KAFKA: %s\n", why)
	return false
}

func (r *report) printSlowest() {
	slices.SortStableFunc(r.done, func(a, b *result) int {
		switch {
		case a.seconds > b.seconds:
			return -1
		case a.seconds < b.seconds:
			return 1
		}
		return 0
	})
	n := min(r.most, len(r.done))
	if n == 0 {
		return
	}
	r.printf("the %d slowest tests:\n", n)
	for _, t := range r.done[:n] {
		part := ""
		if t.slowest != nil {
			part = fmt.Sprintf(" (of which %s: %.1fs)", strings.TrimPrefix(t.slowest.name, t.name+"/"), t.slowest.seconds)
		}
		r.printf("      %s  %s %s%s\n", seconds(t.seconds), shortName(t.pkg), t.name, part)
	}
}

func seconds(s float64) string { return fmt.Sprintf("%6.1fs", s) }

// shortName removes the prefix of our packages.
func shortName(name string) string {
	return strings.TrimPrefix(name, "github.com/outboxcdc/outboxcdc/")
}
