package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/inbox"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// parkCase is a consumer of which a hundredth of the keys may be poisonous.
type parkCase struct {
	name     string
	park     *inbox.Park
	poisoned bool
	before   int // parked keys, each with ten records
}

func (c parkCase) handler(r *room, ages *ages) handle {
	return func(ctx context.Context, tx pgx.Tx, rec record) error {
		if c.poisoned && strings.HasSuffix(string(rec.Key), "07") {
			return errors.New("poison")
		}
		ages.add(time.Since(rec.Time))
		return r.ledger(ctx, tx, rec)
	}
}

func startForPark(b *testing.B) (*pgtest.Server, kafkatest.Cluster) {
	return pgtest.ForTest(b, pgtest.Options{Major: "17", Settings: map[string]string{"fsync": "on", "synchronous_commit": "on"}}),
		kafkatest.FakeForTest(b, kafkatest.FakeOptions{})
}

// BenchmarkPark measures what parking costs the other keys: the time of a backlog, and how old the records are when
// they are handled while a producer sends them at a steady rate. It compares a consumer without Park, with Park and
// nothing parked, with a hundredth of the keys poisonous, and the same beside a million parked records, a hundred
// thousand of which are of one key that is tried again and again.
func BenchmarkPark(b *testing.B) {
	pg, kafka := startForPark(b)
	for _, c := range []parkCase{
		{"without", nil, false, 0},
		{"nothing-parked", &inbox.Park{}, false, 0},
		{"poisonous", &inbox.Park{}, true, 0},
		{"beside-a-million", &inbox.Park{Schedule: soon}, true, 90_000},
	} {
		b.Run("backlog/"+c.name, func(b *testing.B) {
			r := parkRoom(b, pg, kafka, c.park)
			if b.N > 1 { // the first run is a trial
				r.parkBefore(c.before)
			}
			for left := b.N; left > 0; left -= 10_000 {
				r.produce(keyedEvents(r, min(left, 10_000))...)
			}
			b.ResetTimer()
			before := r.cpu()
			stop := r.start(c.handler(r, &ages{}))
			r.awaitEnd()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
			b.ReportMetric(float64((r.cpu()-before).Microseconds())/float64(b.N), "cpu-us/record")
			b.StopTimer()
			must(b, stop())
		})
		b.Run("steady/"+c.name, func(b *testing.B) {
			r := parkRoom(b, pg, kafka, c.park)
			if b.N > 1 {
				r.parkBefore(c.before)
			}
			p50, p99, _ := c.steady(b, r, 2000, b.N)
			b.ReportMetric(p50, "p50-ms")
			b.ReportMetric(p99, "p99-ms")
		})
	}
}

// BenchmarkParkBeside measures how much older the records of the other keys are while a thousand keys of a hundred
// thousand are poisonous. A consumer with these keys and one without run at the same time, because a machine that is
// busy differs more from one minute to the next. At a rate that is not reached, all records are as old as the backlog.
func BenchmarkParkBeside(b *testing.B) {
	pg, kafka := startForPark(b)
	cases := []parkCase{{"clean", &inbox.Park{}, false, 0}, {"poisonous", &inbox.Park{}, true, 0}}
	for _, rate := range []int{500, 5000} {
		b.Run(fmt.Sprint(rate), func(b *testing.B) {
			const rounds = 7
			var ratios []float64
			lowest := float64(rate)
			for range rounds {
				var p99, reached [2]float64
				var both sync.WaitGroup
				for i, c := range cases {
					r := parkRoom(b, pg, kafka, c.park)
					both.Go(func() { _, p99[i], reached[i] = c.steady(b, r, rate, 10*rate) })
				}
				both.Wait()
				b.Logf("p99 %.1f ms without poisonous keys, %.1f ms with them; %.0f records a second", p99[0], p99[1], slices.Min(reached[:]))
				ratios, lowest = append(ratios, p99[1]/p99[0]), min(lowest, reached[0], reached[1])
			}
			slices.Sort(ratios)
			b.ReportMetric(ratios[rounds/2], "p99-ratio")
			b.ReportMetric(ratios[0], "p99-ratio-min")
			b.ReportMetric(ratios[rounds-1], "p99-ratio-max")
			b.ReportMetric(lowest, "records/s-min")
		})
	}
}

// steady sends n records at a steady rate, after the poisonous keys were parked. It returns how old records of other
// keys were when they were handled, in milliseconds, and the rate at which all were.
func (c parkCase) steady(b *testing.B, r *room, rate, n int) (p50, p99, reached float64) {
	var warm, measured ages
	var now atomic.Pointer[ages]
	now.Store(&warm)
	stop := r.start(func(ctx context.Context, tx pgx.Tx, rec record) error { return c.handler(r, now.Load())(ctx, tx, rec) })
	var first []*kgo.Record // each poisonous key is parked now
	for key := 7; key < keys; key += 100 {
		first = append(first, r.keyed(key%4, fmt.Sprintf("k%05d", key)))
	}
	r.produce(first...)
	r.awaitEnd()
	now.Store(&measured)
	client := r.client()
	defer client.Close()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	var sent sync.WaitGroup
	for i := 0; i < n; {
		<-tick.C
		due := min(n, int(time.Since(began).Seconds()*float64(rate))) // also after a tick that was late
		for _, rec := range keyedEvents(r, due-i) {
			rec.Topic = r.Topic
			sent.Add(1)
			client.Produce(b.Context(), rec, func(_ *kgo.Record, err error) {
				if err != nil {
					b.Error(err)
				}
				sent.Done()
			})
		}
		i = due
	}
	sent.Wait()
	r.awaitEnd()
	reached = float64(n) / time.Since(began).Seconds()
	must(b, stop())
	p50, p99 = measured.quantiles()
	return p50, p99, reached
}

const keys = 100_000 // of which a hundredth may be poisonous

func parkRoom(b *testing.B, pg *pgtest.Server, kafka kafkatest.Cluster, park *inbox.Park) *room {
	r := roomOn(b, pg, kafka, "kgo", 4)
	r.log, r.Park = slog.New(slog.DiscardHandler), park
	var err error
	r.consumer.pool, err = pgxpool.New(b.Context(), r.Postgres)
	must(b, err)
	b.Cleanup(r.consumer.pool.Close)
	return r
}

// parkBefore parks n keys with ten records each, half of them dead, and a hundred thousand records of a key that is
// due.
func (r *room) parkBefore(n int) {
	if n == 0 {
		return
	}
	r.exec(`INSERT INTO inbox_parked_keys SELECT gen_random_uuid(), $1, $2, convert_to('other' || n, 'UTF8'), false, 1, 0,
		CASE WHEN n % 2 = 0 THEN now() + interval '1 day' END, now(), now(), 'e', 'e' FROM generate_series(1, $3) n`, r.Group, r.Topic, n)
	tx, err := r.pool.Begin(r.t.Context())
	must(r.t, err)
	for _, sql := range []string{
		`SET LOCAL session_replication_role = replica`, // no look at the key for each record
		`INSERT INTO inbox_parked_records SELECT id, n, 0, n, -1, 0, 'e', '[]', repeat('v', 200)::bytea FROM inbox_parked_keys, generate_series(1, 10) n`,
		`UPDATE inbox_parked_keys SET next_try = now(), key = 'k00107' WHERE key = 'other1'`,
		`INSERT INTO inbox_parked_records SELECT id, n, 0, n, -1, 0, 'e' || n, '[]', repeat('v', 200)::bytea
			FROM inbox_parked_keys, generate_series(11, 100000) n WHERE key = 'k00107'`,
	} {
		_, err := tx.Exec(r.t.Context(), sql)
		must(r.t, err)
	}
	must(r.t, tx.Commit(r.t.Context()))
	r.exec(`VACUUM ANALYZE inbox_parked_keys, inbox_parked_records`)
}

// keyedEvents are events of all keys, one after the other.
func keyedEvents(r *room, n int) (records []*kgo.Record) {
	for range n {
		key := (r.ordinal + 1) % keys
		records = append(records, r.keyed(key%4, fmt.Sprintf("k%05d", key)))
	}
	return records
}

// ages collects how old records were.
type ages struct {
	sync.Mutex
	all []time.Duration
}

func (a *ages) add(age time.Duration) {
	a.Lock()
	defer a.Unlock()
	a.all = append(a.all, age)
}

// quantiles returns the median and the 99 % quantile in milliseconds.
func (a *ages) quantiles() (p50, p99 float64) {
	a.Lock()
	defer a.Unlock()
	slices.Sort(a.all)
	at := func(q float64) float64 { return a.all[int(q*float64(len(a.all)-1))].Seconds() * 1000 }
	return at(0.5), at(0.99)
}
