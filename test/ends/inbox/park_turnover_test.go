package inbox

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// TestParkTurnover stores and deletes parked records as batches and retries do, five thousand a second, and leaves the
// cleaning to autovacuum. However many have come and gone, the tables are at most twice as large as their live rows
// need. OUTBOXCDC_TEST_ROWS is another number of records: a tenth of them is there at a time, and autovacuum looks as
// often for each.
func TestParkTurnover(t *testing.T) {
	if !isProving() {
		t.Skip("only `make prove` runs this test (OUTBOXCDC_PROVE=1): it takes minutes")
	}
	total := 500_000
	if text := os.Getenv("OUTBOXCDC_TEST_ROWS"); text != "" {
		n, err := strconv.Atoi(text)
		must(t, err)
		total = n
	}
	const perSecond, perKey, keysAtOnce = 5_000, 10, 50
	live := total / 10
	naptime := min(max(60*total/10_000_000, 1), 60) // seconds; a minute is the default
	pg := pgtest.ForTest(t, pgtest.Options{Major: "17", Settings: map[string]string{"fsync": "off", "autovacuum_naptime": strconv.Itoa(naptime)}})
	r := roomOn(t, pg, kafkatest.FakeForTest(t, kafkatest.FakeOptions{}), "kgo", 1)

	var ids []string // of the keys, the oldest first
	store := func() {
		rows, err := r.pool.Query(t.Context(), `WITH k AS (
				INSERT INTO inbox_parked_keys (id, consumer, topic, key, alone, failures, next_try, parked_at, failed_at, first_error, last_error)
				SELECT gen_random_uuid(), $1, $2, uuid_send(gen_random_uuid()), false, 1, now() + interval '1 minute', now(), now(), repeat('e', 100), repeat('e', 100)
				FROM generate_series(1, $3::int) RETURNING id
			), r AS (INSERT INTO inbox_parked_records SELECT id, n, 0, n, -1, 0, gen_random_uuid()::text, '[]', repeat('v', 200)::bytea FROM k, generate_series(1, $4::int) n)
			SELECT id::text FROM k`, r.Group, r.Topic, keysAtOnce, perKey)
		must(t, err)
		added, err := pgx.CollectRows(rows, pgx.RowTo[string])
		must(t, err)
		ids = append(ids, added...)
	}
	remove := func() {
		oldest := ids[:keysAtOnce]
		ids = ids[keysAtOnce:]
		r.exec(`UPDATE inbox_parked_keys SET failures = 0, handled = 1, next_try = now() WHERE id = ANY ($1::uuid[])`, oldest)
		for n := range perKey {
			r.exec(`DELETE FROM inbox_parked_records WHERE parked = ANY ($1::uuid[]) AND number = $2`, oldest, n+1)
		}
		r.exec(`DELETE FROM inbox_parked_keys WHERE id = ANY ($1::uuid[])`, oldest)
	}
	size := func() int64 {
		return scan[int64](r, `SELECT pg_total_relation_size('inbox_parked_keys') + pg_total_relation_size('inbox_parked_records')`)
	}
	for len(ids) < live/perKey {
		store()
	}
	r.exec(`VACUUM ANALYZE inbox_parked_keys, inbox_parked_records`)
	needed, largest := size(), int64(0)
	began := time.Now()
	for done := 0; done < total-live; done += keysAtOnce * perKey {
		store()
		remove()
		if done%perSecond == 0 {
			largest = max(largest, size())
		}
		time.Sleep(time.Until(began.Add(time.Duration(done) * time.Second / perSecond)))
	}
	t.Logf("%d records have come and gone, %.0f a second, %d at a time: %d MB for the live ones, at most %d MB (%.2f); %s",
		total-live, float64(total-live)/time.Since(began).Seconds(), live, needed>>20, largest>>20, float64(largest)/float64(needed),
		scan[string](r, `SELECT string_agg(format('%s vacuumed %s times', relname, autovacuum_count), ', ' ORDER BY relname) FROM pg_stat_user_tables WHERE relname LIKE '%parked%'`))
	if largest > 2*needed {
		t.Errorf("the tables have up to %d bytes, and their live rows need %d", largest, needed)
	}
}
