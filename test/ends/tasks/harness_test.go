package tasks

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/inbox"
	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// patience bounds each wait for something that has to happen. River looks for stuck jobs every 30 s.
const patience = 3 * time.Minute

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// room is a database with the tables of inbox and River, and a topic.
type room struct {
	t    *testing.T
	pool *pgxpool.Pool
	process
	events []*kgo.Record // in the order of newEvents
}

func newRoom(t *testing.T, partitions int) *room {
	t.Helper()
	t.Parallel()
	pg := pgtest.ForTest(t, pgtest.Options{Major: "17"})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	kafka, err := kafkatest.StartFake(ctx, kafkatest.FakeOptions{Settings: map[string]string{"group.min.session.timeout.ms": "1000"}})
	must(t, err)
	t.Cleanup(func() { must(t, kafka.Close()) })
	name := fmt.Sprintf("tasks_%06x", rand.IntN(1<<24))
	must(t, pg.Exec(ctx, "postgres", "CREATE DATABASE "+name))
	r := &room{t: t, process: process{
		Brokers: kafka.Brokers(), Postgres: pg.SuperURL(name) + "&pool_max_conns=20", Group: "reports", Topic: "outbox.event.report", JobTimeout: 2 * time.Second, RescueAfter: 3 * time.Second,
	}}
	r.pool, err = pgxpool.New(ctx, r.Postgres)
	must(t, err)
	t.Cleanup(r.pool.Close)
	migrator, err := rivermigrate.New(riverpgxv5.New(r.pool), nil)
	must(t, err)
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	must(t, err)
	r.exec(new(inbox.Store).Schema())
	r.exec(`CREATE TABLE handled (consumer text, event text); CREATE TABLE attempts (event text, attempt int);
		CREATE TABLE effects (event text PRIMARY KEY); CREATE TABLE total AS SELECT 0 AS n; CREATE TABLE endings (event text, err text)`)
	must(t, kafkatest.CreateTopic(ctx, r.Brokers, r.Topic, partitions, nil))
	return r
}

func (r *room) exec(sql string, args ...any) {
	r.t.Helper()
	_, err := r.pool.Exec(r.t.Context(), sql, args...)
	must(r.t, err)
}

// scan reads one value.
func scan[T any](r *room, sql string, args ...any) (v T) {
	r.t.Helper()
	must(r.t, r.pool.QueryRow(r.t.Context(), sql, args...).Scan(&v))
	return v
}

// await waits until the query returns the value.
func (r *room) await(want int, sql string, args ...any) {
	r.t.Helper()
	r.awaitUntil(func() error {
		if got := scan[int](r, sql, args...); got != want {
			return fmt.Errorf("%s returns %d, want %d", sql, got, want)
		}
		return nil
	})
}

func (r *room) awaitUntil(check func() error) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	must(r.t, child.Await(ctx, check))
}

// start starts a consumer or a worker as a process of its own.
func (r *room) start(role string) *child.Process {
	r.t.Helper()
	p := r.process
	p.Role = role
	text, err := json.Marshal(p)
	must(r.t, err)
	log := filepath.Join(r.t.TempDir(), role)
	proc, err := child.Start(child.Spec{Path: os.Args[0], Env: append(os.Environ(), processEnv+"="+string(text)), LogFile: log})
	must(r.t, err)
	r.t.Cleanup(func() {
		exited := proc.Exited()
		_ = proc.Kill()
		if r.t.Failed() {
			r.t.Logf("%s, ended before: %v\n%s", role, exited, child.Tail(log))
		}
	})
	return proc
}

// newEvents returns n events of the daemon, each in a random partition.
func (r *room) newEvents(n, partitions int, what report) (records []*kgo.Record) {
	r.t.Helper()
	value, err := json.Marshal(what)
	must(r.t, err)
	for range n {
		i := len(r.events)
		record := &kgo.Record{
			Topic: r.Topic, Partition: rand.Int32N(int32(partitions)), Key: fmt.Append(nil, i), Value: value,
			Headers: []kgo.RecordHeader{{Key: "id", Value: fmt.Append(nil, "e", i)}, {Key: "outboxcdc-position", Value: fmt.Appendf(nil, "2:7:16384:s:1:1:%016x:0", 16+i)}},
		}
		r.events = append(r.events, record)
		records = append(records, record)
	}
	return records
}

// hold makes jobs that wait wait, until release is called.
func (r *room) hold() (release func()) {
	r.t.Helper()
	conn, err := r.pool.Acquire(r.t.Context())
	must(r.t, err)
	_, err = conn.Exec(r.t.Context(), `SELECT pg_advisory_lock(1)`)
	must(r.t, err)
	return func() {
		_, err := conn.Exec(r.t.Context(), `SELECT pg_advisory_unlock(1)`)
		must(r.t, err)
		conn.Release()
	}
}

// produce stores records in the topic. A record can be produced again, as after a crash of the daemon.
func (r *room) produce(records ...*kgo.Record) {
	r.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(r.Brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	must(r.t, err)
	defer client.Close()
	var copies []*kgo.Record
	for _, record := range records {
		again := *record
		copies = append(copies, &again)
	}
	must(r.t, client.ProduceSync(r.t.Context(), copies...).FirstErr())
}
