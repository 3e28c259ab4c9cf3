package inbox

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/inbox/pgxinbox"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// BenchmarkInbox compares Run, by position in batches, with a transaction and an id for each record. Both read one
// partition with franz-go, and the effect is one INSERT. The server flushes each commit to the disk, as in
// production.
func BenchmarkInbox(b *testing.B) {
	pg := pgtest.ForTest(b, pgtest.Options{Major: "17", Settings: map[string]string{"fsync": "on", "synchronous_commit": "on"}})
	kafka := kafkatest.FakeForTest(b, kafkatest.FakeOptions{})
	b.Run("position-in-batches", func(b *testing.B) {
		r := benchRoom(b, pg, kafka)
		b.ResetTimer()
		stop := r.start(r.ledger)
		r.awaitEnd()
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
		b.StopTimer()
		must(b, stop())
		r.checkCount(b.N)
	})
	b.Run("id-and-transaction-each", func(b *testing.B) {
		r := benchRoom(b, pg, kafka)
		b.ResetTimer()
		client, err := kgo.NewClient(kgo.SeedBrokers(r.Brokers...), kgo.ConsumeTopics(r.Topic), kgo.ConsumerGroup(r.Group))
		must(b, err)
		var store pgxinbox.Store
		for n := 0; n < b.N; {
			for _, rec := range client.PollFetches(b.Context()).Records() {
				must(b, pgx.BeginFunc(b.Context(), r.pool, func(tx pgx.Tx) error {
					of := ofKgo(rec)
					if first, err := store.Once(b.Context(), tx, r.Group, of.ID); err != nil || !first {
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

func benchRoom(b *testing.B, pg *pgtest.Server, kafka kafkatest.Cluster) *room {
	r := roomOn(b, pg, kafka, "kgo", 1)
	r.log = slog.New(slog.DiscardHandler)
	var err error
	r.consumer.pool, err = pgxpool.New(b.Context(), r.Postgres)
	must(b, err)
	b.Cleanup(r.consumer.pool.Close)
	for left := b.N; left > 0; left -= 10_000 {
		r.events(min(left, 10_000), 1)
	}
	return r
}

func (r *room) checkCount(n int) {
	r.t.Helper()
	if got := scan[int](r, `SELECT count(*) FROM ledger`); got != n {
		must(r.t, fmt.Errorf("%d effects, want %d", got, n))
	}
}
