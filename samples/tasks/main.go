// Command tasks is a report service: an order asks for a report, which takes a while, and gets one.
//
//	tasks migrate          create the tables of inbox and River, and the reports
//	tasks order 100        write 100 orders, each with an event
//	tasks consume GROUP TOPIC
//	                       make each event a job
//	tasks work             write the reports
//
// DATABASE_URL is the database of the orders for order, and that of the reports otherwise. BOOTSTRAP_SERVERS is Kafka.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/inbox"
	"github.com/outboxcdc/outboxcdc/inbox/kgoinbox"
	"github.com/outboxcdc/outboxcdc/inbox/riverinbox"
	"github.com/outboxcdc/outboxcdc/outbox"
	"github.com/outboxcdc/outboxcdc/outbox/pgxoutbox"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	switch args := append(os.Args[1:], "", "", ""); args[0] {
	case "migrate":
		err = migrate(ctx, pool)
	case "order":
		err = order(ctx, pool, args[1])
	case "consume":
		err = consume(ctx, pool, args[1], args[2])
	case "work":
		err = work(ctx, pool)
	default:
		err = fmt.Errorf("there is no command %q", args[0])
	}
	if err != nil {
		log.Fatal(err)
	}
}

// Report is what a report is about. It is the payload of the event, and the job.
type Report struct {
	Order  int64 `json:"order"`
	Amount int64 `json:"amount"` // in cents
}

// Kind is the name of the job.
func (Report) Kind() string { return "report" }

// InsertOpts are the options of the job.
func (Report) InsertOpts() river.InsertOpts { return river.InsertOpts{MaxAttempts: 10} }

var requested = outbox.Define[Report]("order", "ReportRequested")

// order writes orders, each with its event in the same transaction.
func order(ctx context.Context, pool *pgxpool.Pool, count string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	writer, err := outbox.New(outbox.Config{})
	if err != nil {
		return err
	}
	for i := range n {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			report := Report{Amount: int64(1000 + i)}
			if err := tx.QueryRow(ctx, `INSERT INTO orders (amount) VALUES ($1) RETURNING id`, report.Amount).Scan(&report.Order); err != nil {
				return err
			}
			event, err := requested.Event(strconv.FormatInt(report.Order, 10), report)
			if err != nil {
				return err
			}
			return pgxoutbox.Emit(ctx, writer, tx, event)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// consume makes each event a job, in the transaction in which the inbox stores that the event was handled.
func consume(ctx context.Context, pool *pgxpool.Pool, group, topic string) error {
	jobs, err := river.NewClient(riverpgxv5.New(pool), &river.Config{}) // only inserts
	if err != nil {
		return err
	}
	consumer := kgoinbox.Consumer{
		Options: []kgo.Opt{
			kgo.SeedBrokers(strings.Split(os.Getenv("BOOTSTRAP_SERVERS"), ",")...), kgo.SessionTimeout(6 * time.Second), kgo.AutoCommitInterval(time.Second),
		},
		Group: group, Topics: []string{topic}, Pool: pool,
	}
	return consumer.Run(ctx, func(ctx context.Context, tx pgx.Tx, r *kgo.Record) error {
		var report Report
		if err := json.Unmarshal(r.Value, &report); err != nil {
			return err
		}
		_, err := jobs.InsertTx(ctx, tx, riverinbox.Args[Report]{Topic: r.Topic, EventID: header(r, "id"), Job: report}, nil)
		return err
	})
}

func header(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

// work writes the reports. The times are short, so that you can watch how the job of a killed worker is rescued.
func work(ctx context.Context, pool *pgxpool.Pool) error {
	workers := river.NewWorkers()
	river.AddWorker(workers, &reporter{pool: pool})
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 10}},
		Workers: workers, JobTimeout: 5 * time.Second, RescueStuckJobsAfter: 6 * time.Second,
	})
	if err != nil {
		return err
	}
	if err := client.Start(ctx); err != nil {
		return err
	}
	<-client.Stopped()
	return nil
}

type reporter struct {
	river.WorkerDefaults[riverinbox.Args[Report]]
	pool *pgxpool.Pool
}

// Work may run twice for one event: the id of the event, which is the key of the reports, leaves one of them.
func (w *reporter) Work(ctx context.Context, job *river.Job[riverinbox.Args[Report]]) error {
	report := job.Args.Job
	select { // a report takes a while
	case <-time.After(200 * time.Millisecond):
	case <-ctx.Done():
		return ctx.Err()
	}
	_, err := w.pool.Exec(ctx, `INSERT INTO reports (event_id, order_id, amount) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`,
		job.Args.EventID, report.Order, report.Amount)
	return err
}

// migrate creates the tables. A service has them in its migrations.
func migrate(ctx context.Context, pool *pgxpool.Pool) error {
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	_, err = pool.Exec(ctx, new(inbox.Store).Schema()+`;
		CREATE TABLE reports (event_id text PRIMARY KEY, order_id bigint NOT NULL, amount bigint NOT NULL)`)
	return err
}
