package outboxtable

import (
	"runtime"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// BenchmarkRows reads 1,000,000 rows of 200 bytes. It reports rows per second and the largest heap.
func BenchmarkRows(b *testing.B) {
	const rows = 1_000_000
	server := pgtest.ForTest(b, pgtest.Options{Major: "17"})
	must(b, server.Exec(b.Context(), "postgres",
		`CREATE TABLE outbox (id uuid DEFAULT gen_random_uuid(), aggregate_type text, aggregate_id text, event_type text, payload text, headers jsonb, created_at timestamptz)`,
		`INSERT INTO outbox SELECT gen_random_uuid(), 'order', i::text, 'OrderPlaced', repeat('x', 120), '{}', '2026-11-21 00:00:00Z'::timestamptz + i * interval '1 ms'
 FROM generate_series(1, 1000000) i`,
		`CREATE INDEX ON outbox (created_at)`, `VACUUM ANALYZE outbox`))
	for name, table := range map[string]Table{
		"created_at, indexed": {Schema: "public", Name: "outbox", CreatedAt: "created_at"},
		"sorted":              {Schema: "public", Name: "outbox", CreatedAt: "created_at", Order: []string{"aggregate_id"}},
	} {
		b.Run(name, func(b *testing.B) {
			s, err := Open(b.Context(), pgtest.Connect(b, server.SuperURL("postgres")), []Table{table})
			must(b, err)
			var heap uint64
			var first time.Duration
			b.ReportAllocs()
			for b.Loop() {
				start, n, size := time.Now(), 0, 0
				if err := s.Rows(b.Context(), 0, Range{}, func(row *Row) error {
					if n == 0 {
						first = time.Since(start)
					}
					if n++; n%100_000 == 0 {
						var m runtime.MemStats
						runtime.ReadMemStats(&m)
						heap = max(heap, m.HeapInuse)
					}
					for _, v := range row.Event.Values {
						size += len(v.Data)
					}
					return nil
				}); err != nil || n != rows {
					b.Fatal(n, err)
				}
				b.ReportMetric(float64(size)/rows, "B/row")
			}
			b.ReportMetric(float64(b.N)*rows/b.Elapsed().Seconds(), "rows/s")
			b.ReportMetric(float64(heap)/(1<<20), "MiB-heap")
			b.ReportMetric(first.Seconds(), "s-to-first-row")
		})
	}
}
