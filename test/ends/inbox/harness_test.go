package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// patience bounds each wait for something that has to happen.
const patience = 2 * time.Minute

func isProving() bool { return os.Getenv("OUTBOXCDC_PROVE") != "" }

// fullOrShort is full if the tests run in full length.
func fullOrShort[T any](full, short T) T {
	if isProving() {
		return full
	}
	return short
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// shared are servers for all tests that only need a database and a topic of their own. The last of these tests stops
// them.
var shared struct {
	sync.Mutex
	users int
	rooms int
	pg    *pgtest.Server
	kafka *kafkatest.Fake
}

// useShared must be called before t.Parallel: then the servers stay until the last parallel test has ended.
func useShared(t testing.TB) {
	shared.Lock()
	defer shared.Unlock()
	shared.users++
	t.Cleanup(func() {
		shared.Lock()
		defer shared.Unlock()
		if shared.users--; shared.users == 0 && shared.kafka != nil {
			must(t, errors.Join(shared.pg.Close(), shared.kafka.Close()))
			shared.pg, shared.kafka = nil, nil
		}
	})
}

func startShared(t testing.TB) (*pgtest.Server, kafkatest.Cluster) {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.kafka == nil {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		var isOutside bool
		var err error
		if shared.pg, isOutside, err = pgtest.FromEnv("17"); err == nil && !isOutside {
			shared.pg, err = pgtest.Start(ctx, pgtest.Options{Major: "17"})
		}
		must(t, err)
		shared.kafka, err = kafkatest.StartFake(ctx, kafkatest.FakeOptions{Settings: map[string]string{"group.min.session.timeout.ms": "1000"}})
		must(t, err)
	}
	return shared.pg, shared.kafka
}

// forClients runs a test for each client, on shared servers.
func forClients(t *testing.T, partitions int, test func(t *testing.T, r *room)) {
	useShared(t)
	t.Parallel()
	pg, kafka := startShared(t)
	for _, client := range clients {
		t.Run(client, func(t *testing.T) { test(t, roomOn(t, pg, kafka, client, partitions)) })
	}
}

// room is a database, a topic and a consumer of its own for one test.
type room struct {
	t    testing.TB
	pg   *pgtest.Server
	pool *pgxpool.Pool // of the test itself
	consumer
	system  uint64
	ordinal int // of the last event

	ended atomic.Pointer[error] // of a consumer that start has started
}

// roomOn creates a room on servers that other rooms may use as well.
func roomOn(t testing.TB, pg *pgtest.Server, kafka kafkatest.Cluster, client string, partitions int) *room {
	t.Helper()
	shared.Lock()
	shared.rooms++
	name := fmt.Sprint("room", shared.rooms)
	shared.Unlock()
	r := &room{t: t, pg: pg, system: 7}
	must(t, pg.Exec(t.Context(), "postgres", "CREATE DATABASE "+name))
	r.consumer = consumer{Client: client, Brokers: kafka.Brokers(), Postgres: pg.SuperURL(name), Group: name, Topic: name + ".events"}
	r.log = slog.New(slog.NewTextHandler(t.Output(), nil))
	var err error
	r.pool, err = pgxpool.New(t.Context(), r.Postgres)
	must(t, err)
	t.Cleanup(r.pool.Close)
	r.exec(r.Store.Schema())
	r.exec(`CREATE TABLE ledger (id text, part int, offs bigint, amount int)`)
	must(t, kafkatest.CreateTopic(t.Context(), r.Brokers, r.Topic, partitions, nil))
	return r
}

func (r *room) client() *kgo.Client {
	r.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(r.Brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	must(r.t, err)
	return client
}

func (r *room) exec(sql string, args ...any) {
	r.t.Helper()
	_, err := r.pool.Exec(r.t.Context(), sql, args...)
	must(r.t, err)
}

// event is an event of the daemon.
func (r *room) event(partition int) *kgo.Record {
	r.ordinal++
	return headed(partition, fmt.Sprint("e", r.ordinal), "outboxcdc-position", position(r.system, 16384, r.ordinal))
}

// position is the header outboxcdc-position of the n-th event of a database.
func position(system uint64, database, n int) string {
	return fmt.Sprintf("2:%d:%d:s:0:1:%016x:%d", system, database, 16+n/3, n%3)
}

// headed is a record with an id and other headers.
func headed(partition int, id string, headers ...string) *kgo.Record {
	rec := &kgo.Record{Partition: int32(partition), Key: []byte(id), Value: []byte(id), Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(id)}}}
	for i := 0; i < len(headers); i += 2 {
		rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: headers[i], Value: []byte(headers[i+1])})
	}
	return rec
}

// produce stores records in the topic, each partition's in order.
func (r *room) produce(records ...*kgo.Record) {
	r.t.Helper()
	for i, rec := range records {
		copied := *rec
		copied.Topic = r.Topic
		records[i] = &copied
	}
	client := r.client() // a client would look for the topic that it knows, even if it was recreated
	defer client.Close()
	must(r.t, client.ProduceSync(r.t.Context(), records...).FirstErr())
}

// events produces n events round robin, and returns their records.
func (r *room) events(n, partitions int) (records []*kgo.Record) {
	r.t.Helper()
	for i := range n {
		records = append(records, r.event(i%partitions))
	}
	r.produce(records...)
	return records
}

// start runs the consumer in this process, until the test ends or stop is called. stop returns the error of Run.
func (r *room) start(h handle) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() {
		err := r.run(ctx, h)
		if err != nil {
			r.ended.Store(&err)
		}
		result <- err
	}()
	stop = sync.OnceValue(func() error { cancel(); return <-result })
	r.t.Cleanup(func() { _ = stop() })
	return stop
}

// runUntilError runs the consumer, which has to end with an error that contains each text, before it has handled all
// records. as is nil, or a target for errors.As.
func (r *room) runUntilError(as any, h handle, texts ...string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- r.run(ctx, h) }()
	var err error
	isAtEnd := r.isAtEnd()
	for was, isOver := isAtEnd() == nil, false; !isOver; {
		select {
		case err = <-result:
			isOver = true
		case <-time.After(50 * time.Millisecond):
			if !was && isAtEnd() == nil {
				cancel()
			}
		}
	}
	if err == nil {
		r.t.Fatalf("the consumer did not stop; want an error with %q", texts)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			r.t.Errorf("the consumer stopped with %q; want %q in it", err, text)
		}
	}
	if as != nil && !errors.As(err, as) {
		r.t.Fatalf("the consumer stopped with %#v; want a %T", err, as)
	}
}

// await waits until check returns nil.
func (r *room) await(check func() error) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	must(r.t, child.Await(ctx, check))
}

// awaitMember is await, with another member of the group every 20 seconds: kfake keeps a member that was killed during
// a rebalance, and its partitions, until the next rebalance. Kafka does not.
func (r *room) awaitMember(check func() error) {
	r.t.Helper()
	soon := time.Now().Add(20 * time.Second)
	r.await(func() error {
		if time.Now().After(soon) {
			r.startProcess(fmt.Sprint("more", rand.Uint32()))
			soon = soon.Add(20 * time.Second)
		}
		return check()
	})
}

// scan reads one value.
func scan[T any](r *room, sql string, args ...any) (v T) {
	r.t.Helper()
	must(r.t, r.pool.QueryRow(r.t.Context(), sql, args...).Scan(&v))
	return v
}

// awaitEnd waits until the marks of all partitions are at the end of the log, and not longer than the consumer runs.
func (r *room) awaitEnd() {
	r.t.Helper()
	isAtEnd := r.isAtEnd()
	r.await(func() error {
		err := isAtEnd()
		if ended := r.ended.Load(); err != nil && ended != nil {
			r.t.Fatalf("the consumer has ended: %v", *ended)
		}
		return err
	})
}

// isAtEnd returns what reports whether all records were handled.
func (r *room) isAtEnd() func() error {
	ends, err := kafkatest.OpenLogEnds(r.Brokers)
	must(r.t, err)
	r.t.Cleanup(func() { ends.Close() })
	return func() error {
		all, err := ends.Read(r.t.Context(), r.Topic)
		if err != nil {
			return err
		}
		var end int64
		for _, n := range all {
			end += n
		}
		var at int64
		err = r.pool.QueryRow(r.t.Context(), `SELECT coalesce(sum(next_offset), 0) FROM inbox_marks WHERE consumer = $1`, r.Group).Scan(&at)
		if err == nil && at != end {
			err = fmt.Errorf("the consumer has handled %d of %d records", at, end)
		}
		return err
	}
}

// checkLedger compares the ledger with the ids that have to be there, each once.
func (r *room) checkLedger(ids ...string) {
	r.t.Helper()
	rows, err := r.pool.Query(r.t.Context(), `SELECT id FROM ledger`)
	must(r.t, err)
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	must(r.t, err)
	must(r.t, compare(got, ids))
}

func compare(got, want []string) error {
	count := map[string]int{}
	for _, id := range got {
		count[id]++
	}
	var errs []error
	for _, id := range want {
		if count[id] != 1 {
			errs = append(errs, fmt.Errorf("%s: %d effects, want one", id, count[id]))
		}
		delete(count, id)
	}
	for id, n := range count {
		errs = append(errs, fmt.Errorf("%s: %d effects, want none", id, n))
	}
	if len(errs) > 10 {
		errs = append(errs[:10], fmt.Errorf("and %d more", len(errs)-10))
	}
	return errors.Join(errs...)
}

func idsOf(records []*kgo.Record) (ids []string) {
	for _, rec := range records {
		ids = append(ids, string(rec.Headers[0].Value))
	}
	return ids
}

func sqlDB(t testing.TB, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", url)
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}
