// Package inboxprom has the metrics of a consumer's parked keys for Prometheus. docs/metrics.md describes them, and
// deploy/prometheus has alerts.
package inboxprom

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/inbox"
)

// Collector reads the tables of parked keys at a scrape, and at most once in 15 seconds.
type Collector struct {
	pool  *pgxpool.Pool
	store *inbox.Store
	group string
	park  *inbox.Park

	mu     sync.Mutex
	readAt time.Time
	cached []prometheus.Metric
	errors int64
}

// New returns a collector for prometheus.Register. pool, store, group and park are those of the Consumer; park may be
// nil for a process that only looks.
func New(pool *pgxpool.Pool, store inbox.Store, group string, park *inbox.Park) *Collector {
	return &Collector{pool: pool, store: &store, group: group, park: park}
}

const (
	cacheFor = 15 * time.Second
	timeout  = 5 * time.Second
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("outboxcdc_inbox_"+name, help, append([]string{"consumer"}, labels...), nil)
}

var (
	keys       = desc("parked_keys", "Parked keys.", "topic", "state")
	records    = desc("parked_records", "Records of parked keys.", "topic", "state")
	oldest     = desc("parked_oldest_timestamp_seconds", "When the key was parked that is parked longest.", "topic", "state")
	overdue    = desc("parked_overdue_seconds", "How long the next try of a key is overdue.", "topic")
	readErrors = desc("parked_read_errors_total", "Failed reads of the tables of parked keys.")
	handled    = desc("records_total", "Records of batches.", "result")
	tries      = desc("tries_total", "Tries of parked records.", "result")
)

// Describe implements [prometheus.Collector].
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{keys, records, oldest, overdue, readErrors, handled, tries} {
		out <- d
	}
}

// Collect implements [prometheus.Collector]. While the tables cannot be read, there are no values of them, and a
// counter counts; while the records alone cannot be counted, their number is missing.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.readAt) >= cacheFor {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		metrics, err := c.read(ctx)
		cancel()
		if c.cached = metrics; err != nil {
			c.errors++
		} else {
			c.readAt = time.Now()
		}
	}
	for _, m := range c.cached {
		out <- m
	}
	count := func(d *prometheus.Desc, n int64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), append([]string{c.group}, labels...)...)
	}
	count(readErrors, c.errors)
	if c.park == nil {
		return
	}
	counts := &c.park.Counts
	count(handled, counts.Handled.Load(), "handled")
	count(handled, counts.Parked.Load(), "parked")
	count(handled, counts.Behind.Load(), "behind")
	count(tries, counts.RetryHandled.Load(), "handled")
	count(tries, counts.RetryFailed.Load(), "failed")
	count(tries, counts.RetryDied.Load(), "died")
}

// read counts the records last: with millions of them that can take too long, and the other values are still there.
func (c *Collector) read(ctx context.Context) (out []prometheus.Metric, err error) {
	keysTable, recordsTable := c.store.ParkedTables()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out = append(out, prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{c.group}, labels...)...))
	}
	rows, err := c.pool.Query(ctx, `SELECT topic, CASE WHEN next_try IS NULL THEN 'dead' ELSE 'waiting' END, count(*),
			extract(epoch FROM min(parked_at))::float8, greatest(0, extract(epoch FROM now() - min(next_try)))::float8
		FROM `+keysTable+` WHERE consumer = $1 GROUP BY 1, 2`, c.group)
	if err != nil {
		return nil, fmt.Errorf("read the parked keys: %w", err)
	}
	var topic, state string
	var n int64
	var parkedAt, late float64
	_, err = pgx.ForEachRow(rows, []any{&topic, &state, &n, &parkedAt, &late}, func() error {
		gauge(keys, float64(n), topic, state)
		gauge(oldest, parkedAt, topic, state)
		if state == "waiting" {
			gauge(overdue, late, topic)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the parked keys: %w", err)
	}
	rows, err = c.pool.Query(ctx, `SELECT topic, CASE WHEN next_try IS NULL THEN 'dead' ELSE 'waiting' END, coalesce(sum(n), 0)::bigint
		FROM `+keysTable+` LEFT JOIN (SELECT parked, count(*) AS n FROM `+recordsTable+` GROUP BY parked) r ON parked = id
		WHERE consumer = $1 GROUP BY 1, 2`, c.group)
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&topic, &state, &n}, func() error { gauge(records, float64(n), topic, state); return nil })
	}
	if err != nil {
		return out, fmt.Errorf("count the parked records: %w", err)
	}
	return out, nil
}
