// Package tasks tests events that become jobs of River by inbox/riverinbox, with real servers: consumers that insert
// the jobs, and workers. What docs/tasks.md says is tested here.
package tasks

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/inbox/kgoinbox"
	"github.com/outboxcdc/outboxcdc/inbox/riverinbox"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// processEnv makes a process of this test binary a consumer or a worker; its value is a process in JSON.
const processEnv = "OUTBOXCDC_ENDS_TASKS"

func TestMain(m *testing.M) {
	kafkatest.MaybeServe()
	if raw := os.Getenv(processEnv); raw != "" {
		var p process
		err := json.Unmarshal([]byte(raw), &p)
		if err == nil {
			ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
			defer stop()
			err = p.run(ctx)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// process describes a consumer or a worker.
type process struct {
	Role         string // consumer or worker
	Brokers      []string
	Postgres     string
	Group, Topic string
	JobTimeout   time.Duration
	RescueAfter  time.Duration
}

func (p process) run(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, p.Postgres)
	if err != nil {
		return err
	}
	defer pool.Close()
	if p.Role == "consumer" {
		return p.consume(ctx, pool)
	}
	client, err := p.worker(pool)
	if err != nil {
		return err
	}
	if err := client.Start(ctx); err != nil {
		return err
	}
	<-ctx.Done()
	<-client.Stopped()
	return nil
}

// consume makes each event a job.
func (p process) consume(ctx context.Context, pool *pgxpool.Pool) error {
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{})
	if err != nil {
		return err
	}
	consumer := kgoinbox.Consumer{
		Options: []kgo.Opt{
			kgo.SeedBrokers(p.Brokers...), kgo.SessionTimeout(2 * time.Second), kgo.HeartbeatInterval(200 * time.Millisecond), kgo.RebalanceTimeout(6 * time.Second),
		},
		Group: p.Group, Topics: []string{p.Topic}, Pool: pool,
	}
	return consumer.Run(ctx, func(ctx context.Context, tx pgx.Tx, r *kgo.Record) error {
		if _, err := tx.Exec(ctx, `INSERT INTO handled VALUES ($1, $2)`, p.Group, eventID(r)); err != nil {
			return err
		}
		var what report
		if err := json.Unmarshal(r.Value, &what); err != nil {
			return err
		}
		_, err := client.InsertTx(ctx, tx, riverinbox.Args[report]{Topic: r.Topic, EventID: eventID(r), Job: what}, nil)
		return err
	})
}

func eventID(r *kgo.Record) string {
	for _, h := range r.Headers {
		if h.Key == "id" {
			return string(h.Value)
		}
	}
	return ""
}

// report is the job of an event.
type report struct {
	Queue  string `json:"queue,omitempty"`
	Fails  bool   `json:"fails,omitempty"`  // each attempt
	Before string `json:"before,omitempty"` // it fails until this event has had its effect
	Waits  bool   `json:"waits,omitempty"`  // while the test holds a lock
}

func (report) Kind() string { return "report" }

func (r report) InsertOpts() river.InsertOpts {
	attempts := 1000 // more than any test waits for
	if r.Fails {
		attempts = 3
	}
	return river.InsertOpts{Queue: r.Queue, MaxAttempts: attempts}
}

// worker returns a client of River that works on reports.
func (p process) worker(pool *pgxpool.Pool) (*river.Client[pgx.Tx], error) {
	workers := river.NewWorkers()
	river.AddWorker(workers, &reporter{pool: pool})
	return river.NewClient(riverpgxv5.New(pool), &river.Config{
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 5}, "other": {MaxWorkers: 1}},
		Workers: workers, JobTimeout: p.JobTimeout, RescueStuckJobsAfter: p.RescueAfter, RetryPolicy: soon{},
		FetchPollInterval: 200 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
}

// soon retries a failed job soon.
type soon struct{}

func (soon) NextRetry(*rivertype.JobRow) time.Time { return time.Now().Add(200 * time.Millisecond) }

// reporter has its effect, the event's id and the end of the job in one transaction.
type reporter struct {
	river.WorkerDefaults[riverinbox.Args[report]]
	pool *pgxpool.Pool
}

func (w *reporter) Work(ctx context.Context, job *river.Job[riverinbox.Args[report]]) error {
	ctx = context.WithoutCancel(ctx) // a worker that does not notice its time-out
	what := job.Args.Job
	if _, err := w.pool.Exec(ctx, `INSERT INTO attempts (event, attempt) VALUES ($1, $2)`, job.Args.EventID, job.Attempt); err != nil {
		return err
	}
	var early bool
	if err := w.pool.QueryRow(ctx, `SELECT $1 <> '' AND NOT EXISTS (SELECT FROM effects WHERE event = $1)`, what.Before).Scan(&early); err != nil {
		return err
	}
	if what.Fails || early {
		return fmt.Errorf("attempt %d fails", job.Attempt)
	}
	if what.Waits {
		if _, err := w.pool.Exec(ctx, `SELECT pg_advisory_lock_shared(1), pg_advisory_unlock_shared(1)`); err != nil {
			return err
		}
	}
	err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		first, err := tx.Exec(ctx, `INSERT INTO effects VALUES ($1) ON CONFLICT DO NOTHING`, job.Args.EventID)
		if err == nil && first.RowsAffected() == 1 {
			_, err = tx.Exec(ctx, `UPDATE total SET n = n + 1`)
		}
		if err == nil {
			_, err = river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
		}
		return err
	})
	if _, ended := w.pool.Exec(ctx, `INSERT INTO endings VALUES ($1, $2)`, job.Args.EventID, fmt.Sprint(err)); ended != nil {
		return ended
	}
	return err
}
