package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

const root = "github.com/outboxcdc/outboxcdc/"

// ev writes one event as go test does.
func ev(action, pkg, test, output string, elapsed float64) string {
	return fmt.Sprintf(`{"Time":"2026-11-21T11:00:00Z","Action":%q,"Package":%q,"Test":%q,"Output":%q,"Elapsed":%g}`,
		action, root+pkg, test, output, elapsed) + "\n"
}

// passing is a package in which one test passes.
func passing(pkg string) string {
	return ev("start", pkg, "", "", 0) + ev("run", pkg, "TestA", "", 0) + ev("output", pkg, "TestA", "noise\n", 0) +
		ev("pass", pkg, "TestA", "", 1.5) + ev("output", pkg, "", "PASS\n", 0) + ev("pass", pkg, "", "", 1.6)
}

func TestReport(t *testing.T) {
	kafka := func(line string) string {
		return ev("start", "test/integration", "", "", 0) + ev("output", "test/integration", "", line+"\n", 0)
	}
	tests := []struct {
		name       string
		in         string
		kafka, ci  bool
		ok         bool
		want, deny []string
		last       string
	}{
		{
			name: "all pass", in: passing("relay") + passing("router"), ok: true,
			want: []string{"ok", "relay", "the 2 slowest tests"}, deny: []string{"noise", root},
			last: "tests: 2 passed, 0 failed, 0 skipped",
		},
		{
			name: "a failure keeps its output and the package's",
			in: ev("run", "relay", "TestB", "", 0) + ev("output", "relay", "TestB", "=== RUN   TestB\n", 0) +
				ev("output", "relay", "TestB", "b_test.go:7: want 1\n", 0) +
				ev("fail", "relay", "TestB", "", 0.1) + ev("output", "relay", "", "FAIL\n", 0) + ev("fail", "relay", "", "", 0.2),
			want: []string{"--- FAIL: relay TestB", "b_test.go:7: want 1", "failed: " + root + "relay", "failed: relay TestB\n        b_test.go:7: want 1\n"},
			deny: []string{"=== RUN"},
			last: "tests: 0 passed, 1 failed, 0 skipped",
		},
		{
			name: "a failing subtest is counted once",
			in: ev("run", "relay", "TestB", "", 0) + ev("run", "relay", "TestB/x/y", "", 0) + ev("run", "relay", "TestB/z", "", 0) +
				ev("fail", "relay", "TestB/x/y", "", 0.1) + ev("pass", "relay", "TestB/z", "", 0.3) +
				ev("fail", "relay", "TestB", "", 0.5) + ev("fail", "relay", "", "", 0.6),
			want: []string{"(of which z:"},
			last: "tests: 1 passed, 1 failed, 0 skipped",
		},
		{
			name: "a panic leaves tests unfinished",
			in: passing("router") + ev("run", "relay", "TestP", "", 0) + ev("output", "relay", "TestP", "about to\n", 0) +
				ev("output", "relay", "", "panic: oh\n", 0) + ev("fail", "relay", "", "", 0.2),
			want: []string{"--- NOT FINISHED: relay TestP", "about to", "panic: oh"},
			last: "tests: 1 passed, 1 failed, 0 skipped",
		},
		{
			name: "the stream breaks off", in: passing("router") + ev("start", "relay", "", "", 0),
			want: []string{"relay did not finish"},
			last: "tests: 1 passed, 0 failed, 0 skipped",
		},
		{
			name: "a build fails",
			in: passing("router") + `{"ImportPath":"x/y","Action":"build-output","Output":"y.go:1:1: no\n"}` + "\n" +
				`{"ImportPath":"x/y","Action":"build-fail"}` + "\n" + ev("start", "y", "", "", 0) + ev("fail", "y", "", "", 0),
			want: []string{"y.go:1:1: no", "failed: x/y"},
			last: "tests: 1 passed, 0 failed, 0 skipped",
		},
		{name: "nothing ran", in: "", want: []string{"no test ran"}, last: "tests: 0 passed, 0 failed, 0 skipped"},
		{
			name: "only skips are nothing",
			in: ev("run", "kafka", "TestS", "", 0) + ev("output", "kafka", "TestS", "    s_test.go:9: no java\n", 0) +
				ev("output", "kafka", "TestS", "--- SKIP: TestS (0.00s)\n", 0) + ev("skip", "kafka", "TestS", "", 0) + ev("pass", "kafka", "", "", 0),
			want: []string{"skipped 1: no java", "no test ran"},
			last: "tests: 0 passed, 0 failed, 1 skipped",
		},
		{name: "other output is printed unchanged", in: "go: warning\n" + passing("relay"), ok: true, want: []string{"go: warning"}, last: "tests: 1 passed, 0 failed, 0 skipped"},
		{
			name: "real Kafka", in: kafka("REAL-KAFKA: 4.3.1") + passing("test/integration"), kafka: true, ci: true, ok: true,
			last: "TESTED ON A REAL KAFKA: 4.3.1",
		},
		{
			name: "no real Kafka", in: kafka("NO-REAL-KAFKA: there is no java") + passing("test/integration"), kafka: true, ok: true,
			last: "NOT TESTED ON A REAL KAFKA: there is no java",
		},
		{
			name: "no real Kafka in CI", in: kafka("NO-REAL-KAFKA: there is no java") + passing("test/integration"), kafka: true, ci: true,
			last: "NOT TESTED ON A REAL KAFKA: there is no java",
		},
		{
			name: "not reported", in: passing("relay"), kafka: true, ci: true,
			last: "NOT TESTED ON A REAL KAFKA: the integration tests ended before they reported their Kafka",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			r := newReport(&out, 10)
			r.needKafka, r.ci = tt.kafka, tt.ci
			if ok := follow(strings.NewReader(tt.in), r); ok != tt.ok {
				t.Errorf("well = %v, want %v", ok, tt.ok)
			}
			got := out.String()
			for _, s := range tt.want {
				if !strings.Contains(got, s) {
					t.Errorf("%q is missing", s)
				}
			}
			for _, s := range tt.deny {
				if strings.Contains(got, s) {
					t.Errorf("%q is there", s)
				}
			}
			lines := strings.Split(strings.TrimSpace(got), "\n")
			if last := lines[len(lines)-1]; last != tt.last {
				t.Errorf("the last line is %q, want %q", last, tt.last)
			}
			if t.Failed() {
				t.Log(got)
			}
		})
	}
}

func TestSlowest(t *testing.T) {
	var in strings.Builder
	for i := range 15 {
		name := fmt.Sprintf("Test%02d", i)
		in.WriteString(ev("run", "relay", name, "", 0) + ev("pass", "relay", name, "", float64(i)/10))
	}
	in.WriteString(ev("pass", "relay", "", "", 2))
	var out strings.Builder
	if !follow(strings.NewReader(in.String()), newReport(&out, 10)) {
		t.Error("not well")
	}
	got := out.String()
	if strings.Contains(got, "Test04") || !strings.Contains(got, "Test05") || strings.Index(got, "Test14") > strings.Index(got, "Test05") {
		t.Errorf("want Test14 down to Test05:\n%s", got)
	}
}

func TestProgress(t *testing.T) {
	var out strings.Builder
	r := newReport(&out, 10)
	r.line([]byte(ev("run", "relay", "TestLong", "", 0)))
	r.progress(r.shown.Add(time.Second))
	if out.Len() != 0 {
		t.Errorf("printed too early: %s", out.String())
	}
	r.progress(r.shown.Add(2 * progressInterval))
	if !strings.Contains(out.String(), "running: TestLong") {
		t.Errorf("says %q", out.String())
	}
}

func TestTail(t *testing.T) {
	var tl tail
	for range 10 {
		tl.add(strings.Repeat("x", tailBytes/4) + "\n")
	}
	if s := tl.text(); len(s) > tailBytes+100 || !strings.HasPrefix(s, "[the beginning is omitted]") {
		t.Errorf("%d bytes, begins %q", len(s), s[:30])
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("pipe burst") }

func TestReadError(t *testing.T) {
	var out strings.Builder
	if follow(broken{}, newReport(&out, 10)) || !strings.Contains(out.String(), "pipe burst") {
		t.Errorf("a read error is not a failure: %s", out.String())
	}
}

// A pattern of tiers.txt that chooses no test, because a subtest has another name now, fails the run.
func TestExpected(t *testing.T) {
	in := ev("run", "relay", "TestB", "", 0) + ev("run", "relay", "TestB/17/x y", "", 0) + ev("pass", "relay", "TestB/17/x y", "", 0.1) +
		ev("pass", "relay", "TestB", "", 0.5) + ev("pass", "relay", "", "", 0.6)
	for pattern, want := range map[string]bool{"^TestB$": true, "^TestB$/^17$": true, "^TestB$/^(16|17)$/^x": true, "^TestB$/^x": false, "^TestA$": false} {
		var out strings.Builder
		r := newReport(&out, 10)
		r.expected = []expected{{"relay", pattern}}
		if ok := follow(strings.NewReader(in), r); ok != want || strings.Contains(out.String(), "was chosen by "+pattern) == want {
			t.Errorf("%s: passed %v, want %v:\n%s", pattern, ok, want, out.String())
		}
	}
}

// The lanes of a plan run at the same time: each of these waits for the other. A stage that fails without an event is a
// failure too, and the next stage of its lane runs.
func TestPlan(t *testing.T) {
	dir := t.TempDir()
	print := func(pkg string) string { return "printf %s '" + passing(pkg) + "'; " }
	meet := func(mine, other string) string {
		return "touch " + mine + "; while ! test -e " + other + "; do sleep 0.01; done"
	}
	sh := func(name, script string) stage {
		return stage{name: name, dir: dir, args: []string{"sh", "-c", script}}
	}
	var out strings.Builder
	p := plan{{sh("one", print("relay")+meet("a", "b"))}, {sh("broken", "exit 3"), sh("two", print("router")+meet("b", "a"))}}
	if p.run(t.Context(), newReport(&out, 10)) {
		t.Error("a failed stage is no failure")
	}
	for _, want := range []string{"stage broken: exit status 3", "ok       1.6s  relay", "ok       1.6s  router", "stage two", "2 passed, 0 failed"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing:\n%s", want, out.String())
		}
	}
	out.Reset()
	if p := (plan{{sh("one", print("relay"))}}); !p.run(t.Context(), newReport(&out, 10)) {
		t.Errorf("everything passed, and the plan failed:\n%s", out.String())
	}
}
