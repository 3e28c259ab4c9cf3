package main

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/pgtest"
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

// A transaction that the server commits after close would be missing in the rows, and its record would be called a
// phantom.
func TestLoadEndsItsTransactions(t *testing.T) {
	const name = "load_ends"
	ctx := t.Context()
	pg := pgtest.ForTest(t, pgtest.Options{Major: "17"})
	for _, exec := range [][]string{
		{
			"postgres", "DROP DATABASE IF EXISTS " + name + " WITH (FORCE)", "CREATE DATABASE " + name,
			"ALTER DATABASE " + name + " SET commit_delay = 100000", "ALTER DATABASE " + name + " SET commit_siblings = 0",
		},
		{name, "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregate_type text, aggregate_id text, event_type text, payload jsonb)"},
	} {
		if err := pg.Exec(ctx, exec[0], exec[1:]...); err != nil {
			t.Fatal(err)
		}
	}
	conn := pgtest.Connect(t, pg.SuperURL(name))
	l := startLoad(ctx, pg.SuperURL(name), 500, newArrivals())
	if err := poll(ctx, "the first commits", func(context.Context) error {
		if l.committed.Load() < writers {
			return errNotYet
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	l.close()
	var rows, open int64
	if err := conn.QueryRow(ctx, `SELECT (SELECT count(*) FROM outbox), (SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND state = 'active' AND pid <> pg_backend_pid())`).Scan(&rows, &open); err != nil {
		t.Fatal(err)
	}
	if committed := l.committed.Load(); rows != committed || open != 0 {
		t.Errorf("after close there are %d rows of %d answered transactions, and %d are open", rows, committed, open)
	}
}
