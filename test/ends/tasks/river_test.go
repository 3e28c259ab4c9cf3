package tasks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Jobs of one queue do not keep those of another one waiting. A failed job is tried again, meanwhile later events
// overtake it, and after the last attempt it is discarded, with its errors.
func TestStates(t *testing.T) {
	r := newRoom(t, 1)
	release := r.hold()
	r.produce(r.newEvents(5, 1, report{Waits: true})...) // as many as the workers of the queue
	r.start("consumer")
	r.start("worker")
	r.await(5, `SELECT count(*) FROM attempts`)
	r.produce(r.newEvents(1, 1, report{Queue: "other"})...)
	r.await(1, `SELECT count(*) FROM effects WHERE event = 'e5'`)
	if n := scan[int](r, `SELECT count(*) FROM effects`); n != 1 {
		t.Errorf("%d jobs are done while all workers of the default queue are busy, want one of the other queue", n)
	}
	release()

	r.produce(r.newEvents(1, 1, report{Before: "e7"})...)
	r.await(1, `SELECT count(*) FROM river_job WHERE args ->> 'event_id' = 'e6' AND errors[1] IS NOT NULL`)
	r.produce(r.newEvents(1, 1, report{})...)
	r.await(1, `SELECT count(*) FROM river_job WHERE args ->> 'event_id' = 'e6' AND state = 'completed' AND attempt > 1`)

	r.produce(r.newEvents(1, 1, report{Fails: true})...)
	r.await(1, `SELECT count(*) FROM river_job WHERE args ->> 'event_id' = 'e8' AND state = 'discarded' AND attempt = 3 AND errors[3] ->> 'error' = 'attempt 3 fails'`)
}

// fetchTracer remembers the statement by which River takes jobs.
type fetchTracer struct {
	mu    sync.Mutex
	query string
	args  []any
}

func (f *fetchTracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	f.mu.Lock()
	defer f.mu.Unlock()
	if strings.Contains(q.SQL, "SKIP LOCKED") && strings.Contains(q.SQL, "attempted_by") {
		f.query, f.args = q.SQL, q.Args
	}
	return ctx
}

func (f *fetchTracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// Beside 100,000 finished jobs, neither River's fetching nor the query of docs/tasks.md reads the whole table.
func TestIndexes(t *testing.T) {
	r := newRoom(t, 1)
	r.exec(`INSERT INTO river_job (args, state, kind, max_attempts, attempted_at, finalized_at, scheduled_at)
		SELECT '{}', 'completed', 'report', 25, now() - interval '1 hour', now() - interval '1 hour', now() - interval '1 hour' FROM generate_series(1, 100000)`)
	r.exec(`INSERT INTO river_job (args, state, kind, max_attempts, scheduled_at, queue) SELECT '{}', 'available', 'report', 25, now(), 'waiting' FROM generate_series(1, 100)`)
	r.exec(`ANALYZE river_job`)
	config, err := pgxpool.ParseConfig(r.Postgres)
	must(t, err)
	tracer := &fetchTracer{}
	config.ConnConfig.Tracer = tracer
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	defer pool.Close()
	client, err := r.worker(pool)
	must(t, err)
	must(t, client.Start(t.Context()))
	r.awaitUntil(func() error {
		tracer.mu.Lock()
		defer tracer.mu.Unlock()
		if tracer.query == "" {
			return errors.New("River has taken no jobs")
		}
		return nil
	})
	must(t, client.Stop(t.Context()))
	for query, args := range map[string][]any{tracer.query: tracer.args, alertsOfPage(t): nil} {
		rows, err := r.pool.Query(t.Context(), "EXPLAIN (COSTS OFF) "+query, args...)
		must(t, err)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		must(t, err)
		if plan := strings.Join(lines, "\n"); strings.Contains(plan, "Seq Scan") || !strings.Contains(plan, "river_job_prioritized_fetching_index") {
			t.Errorf("%s\n%s", query, plan)
		}
	}
}

// alertsOfPage returns the query of docs/tasks.md.
func alertsOfPage(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../../docs/tasks.md")
	must(t, err)
	m := regexp.MustCompile("(?s)```sql\n(SELECT kind.*?);\n```").FindSubmatch(page)
	if m == nil {
		t.Fatal("the page has no query")
	}
	return string(m[1])
}

// The query of docs/tasks.md shows a backlog, a rate of errors, slow jobs and stuck jobs, and nothing where all is
// well.
func TestTaskAlerts(t *testing.T) {
	r := newRoom(t, 1)
	for _, job := range []string{ // kind, state, age of the schedule, of the attempt and of the end in seconds
		`'backlog', 'available', 600, NULL, NULL`, `'well', 'available', 1, NULL, NULL`,
		`'well', 'completed', 60, 60, 59`, `'well', 'completed', 60, 60, 59`, `'well', 'running', 1, 1, NULL`, `'well', 'discarded', 9000, 9000, 8000`,
		`'errors', 'completed', 60, 60, 59`, `'errors', 'retryable', -60, 60, NULL`, `'errors', 'discarded', 60, 60, 59`, `'errors', 'completed', 60, 60, 59`,
		`'slow', 'completed', 160, 160, 60`, `'slow', 'completed', 60, 60, 59`, `'stuck', 'running', 9000, 9000, NULL`, `'old', 'completed', 9000, 9000, 100`,
		`'gone', 'completed', 9000, 9000, 8000`,
	} {
		r.exec(`INSERT INTO river_job (args, kind, state, max_attempts, scheduled_at, attempted_at, finalized_at) SELECT '{}', kind, state::river_job_state, 25,
			now() - s * interval '1 s', now() - a::int * interval '1 s', now() - f::int * interval '1 s' FROM (VALUES (` + job + `)) AS v(kind, state, s, a, f)`)
	}
	rows, err := r.pool.Query(t.Context(), alertsOfPage(t))
	must(t, err)
	got := map[string]string{}
	var kind string
	var backlog, slow, stuck *time.Duration
	var rate *float64
	_, err = pgx.ForEachRow(rows, []any{&kind, &backlog, &rate, &slow, &stuck}, func() error {
		var alerts []string
		for name, is := range map[string]bool{
			"backlog": backlog != nil && *backlog > 5*time.Minute, "errors": rate != nil && *rate > 0.1,
			"slow": slow != nil && *slow > 30*time.Second, "stuck": stuck != nil && *stuck > time.Hour+2*time.Minute,
		} {
			if is {
				alerts = append(alerts, name)
			}
		}
		got[kind] = strings.Join(alerts, " ")
		return nil
	})
	must(t, err)
	want := map[string]string{"backlog": "backlog", "errors": "errors", "slow": "slow", "stuck": "stuck", "well": "", "old": "slow"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the alerts are %v, want %v", got, want)
	}
}

// The handler and the worker of docs/tasks.md compile.
func TestPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/tasks.md")
	must(t, err)
	m := regexp.MustCompile("(?s)```go\n(.*?)```").FindSubmatch(page)
	if m == nil {
		t.Fatal("the page has no program")
	}
	file := filepath.Join(t.TempDir(), "main.go")
	must(t, os.WriteFile(file, []byte(`package main

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/inbox/kgoinbox"
	"github.com/outboxcdc/outboxcdc/inbox/riverinbox"
)

var jobs *river.Client[pgx.Tx]

type Worker struct {
	river.WorkerDefaults[riverinbox.Args[Report]]
	pool *pgxpool.Pool
}

func header(*kgo.Record, string) string { return "" }

func text(Report) string { return "" }

func main() {
	river.AddWorker(river.NewWorkers(), &Worker{})
	_ = new(kgoinbox.Consumer).Run(context.Background(), handle)
}

`+string(m[1])), 0o600))
	if out, err := exec.CommandContext(t.Context(), "go", "vet", file).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
