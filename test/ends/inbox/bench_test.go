package inbox

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/inbox"
	"github.com/outboxcdc/outboxcdc/inbox/pgxinbox"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// BenchmarkInbox measures Run with franz-go, and a loop with a transaction for each record. The effect is one INSERT.
// The server flushes each commit to the disk, as in production.
func BenchmarkInbox(b *testing.B) {
	pg := pgtest.ForTest(b, pgtest.Options{Major: "17", Settings: map[string]string{"fsync": "on", "synchronous_commit": "on"}})
	kafka := kafkatest.FakeForTest(b, kafkatest.FakeOptions{})
	for _, partitions := range []int{1, 8} {
		for _, size := range []int{200, 1024} {
			b.Run(fmt.Sprintf("batches/partitions=%d/bytes=%d", partitions, size), func(b *testing.B) {
				r := benchRoom(b, pg, kafka, partitions, size)
				r.BatchTime = time.Hour // on a slow machine, batches would have fewer records
				b.ResetTimer()
				before := r.cpu()
				stop := r.start(r.ledger)
				r.awaitEnd()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
				b.ReportMetric(float64((r.cpu()-before).Microseconds())/float64(b.N), "cpu-us/record")
				b.StopTimer()
				must(b, stop())
				r.checkCount(b.N)
			})
		}
	}
	b.Run("transaction-each", func(b *testing.B) {
		r := benchRoom(b, pg, kafka, 1, 200)
		b.ResetTimer()
		client, err := kgo.NewClient(kgo.SeedBrokers(r.Brokers...), kgo.ConsumeTopics(r.Topic), kgo.ConsumerGroup(r.Group))
		must(b, err)
		var store pgxinbox.Store
		for n := 0; n < b.N; {
			for _, rec := range client.PollFetches(b.Context()).Records() {
				must(b, pgx.BeginFunc(b.Context(), r.pool, func(tx pgx.Tx) error {
					of := ofKgo(rec)
					if first, err := store.Once(b.Context(), tx, r.Group, inbox.Event{Topic: r.Topic, ID: of.ID}); err != nil || !first {
						return err
					}
					return r.ledger(b.Context(), tx, of)
				}))
				n++
			}
		}
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
		b.StopTimer()
		client.Close()
		r.checkCount(b.N)
	})
}

func benchRoom(b *testing.B, pg *pgtest.Server, kafka kafkatest.Cluster, partitions, size int) *room {
	r := roomOn(b, pg, kafka, "kgo", partitions)
	r.log = slog.New(slog.DiscardHandler)
	var err error
	r.consumer.pool, err = pgxpool.New(b.Context(), r.Postgres)
	must(b, err)
	b.Cleanup(r.consumer.pool.Close)
	for left := b.N; left > 0; left -= 10_000 {
		var records []*kgo.Record
		for i := range min(left, 10_000) {
			rec := r.event(i % partitions)
			rec.Value, rec.Headers[0].Value = bytes.Repeat([]byte("x"), size), []byte(uuid.NewString())
			records = append(records, rec)
		}
		r.produce(records...)
	}
	return r
}

// cpu is the time that this process and the sessions of the database have used: unlike records per second, it does not
// depend on what else the machine does.
func (r *room) cpu() time.Duration {
	r.t.Helper()
	rows, err := r.pool.Query(r.t.Context(), `SELECT pid FROM pg_stat_activity WHERE datname = current_database()`)
	must(r.t, err)
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
	must(r.t, err)
	var ticks time.Duration
	for _, pid := range append(pids, os.Getpid()) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		must(r.t, err)
		_, fields, _ := strings.Cut(string(stat), ") ")
		for _, field := range strings.Fields(fields)[11:13] { // utime and stime
			n, err := strconv.Atoi(field)
			must(r.t, err)
			ticks += time.Duration(n)
		}
	}
	return ticks * 10 * time.Millisecond
}

func (r *room) checkCount(n int) {
	r.t.Helper()
	if got := scan[int](r, `SELECT count(*) FROM ledger`); got != n {
		must(r.t, fmt.Errorf("%d effects, want %d", got, n))
	}
}
