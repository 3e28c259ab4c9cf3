package main

import (
	"io"
	"slices"
	"strings"
	"testing"
	"time"
)

// Only an event of the watched server counts, whether its record or the answer to its COMMIT is seen first.
func TestFirstArrival(t *testing.T) {
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	a := newArrivals()
	a.committed("before", "old")
	a.watch("new")
	a.arrive("before", at(1))
	if got := a.firstArrival(); !got.IsZero() {
		t.Errorf("an event of the former primary counts, at %v", got)
	}
	a.arrive("early", at(2)) // the answer to its COMMIT follows
	a.committed("usual", "new")
	a.arrive("usual", at(3))
	if got := a.firstArrival(); got != at(3) {
		t.Errorf("the first arrival is at %v, want %v", got, at(3))
	}
	a.committed("early", "new")
	if got := a.firstArrival(); got != at(2) {
		t.Errorf("the first arrival is at %v, want %v", got, at(2))
	}
	a.watch("old")
	if got := a.firstArrival(); !got.IsZero() || a.records() != 3 {
		t.Errorf("after another watch the first arrival is at %v, and %d records were read", got, a.records())
	}
}

func TestParse(t *testing.T) {
	o, err := parse([]string{"-n", "3", "-postgres", "18", "-scenarios", "lossy,held"}, io.Discard)
	if err != nil || o.n != 3 || !slices.Equal(o.postgres, []string{"18"}) || !slices.Equal(o.scenarios, []string{"lossy", "held"}) {
		t.Errorf("%+v, %v", o, err)
	}
	for _, args := range []string{"-n 0", "-rate 0", "-kafka none", "-postgres 16", "-scenarios other", "more"} {
		if _, err := parse(strings.Fields(args), io.Discard); err == nil {
			t.Errorf("%s is accepted", args)
		}
	}
}

// The verdict fails a scenario, and the table has one row for each kind of round.
func TestResult(t *testing.T) {
	var out strings.Builder
	p := printer{out: &out}
	v := outcome{rounds: []round{{kind: switchover, resumed: time.Second}, {kind: switchover, resumed: 3 * time.Second}, {kind: kill, resumed: 9 * time.Second}}}
	v.expect(true, "fine")
	v.expect(false, "delivery resumed after %d s", 9)
	p.result("17", "held", v)
	p.table()
	for _, want := range []string{"BROKEN: delivery resumed after 9 s\n", "| 17 | held, switchover | 2 |", "3.0 / 3.0 s", "| 17 | held, kill -9 | 1 |"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("not printed: %s\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "fine") {
		t.Errorf("what holds is printed as broken:\n%s", &out)
	}
}
