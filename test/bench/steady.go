package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// pace is one steady load of events of 1 KB.
type pace struct {
	Name   string
	rate   int // events a second
	perTx  int
	poison int // every so many events one is poison, of a thousand keys that have no others; 0: none
}

// isPoison reports whether row n is a poison event.
func (p *pace) isPoison(n int) bool { return p.poison > 0 && n%p.poison == 0 }

var paces = []pace{
	{Name: "50/s", rate: 50, perTx: 1},
	{Name: "1,000/s", rate: 1000, perTx: 1},
	{Name: "5,000/s, 5 rows a transaction", rate: 5000, perTx: 5},
	{Name: "5,000/s, 1 % of them poison of 1,000 keys", rate: 5000, perTx: 5, poison: 100},
	{Name: "10,000/s, 10 rows a transaction", rate: 10000, perTx: 10},
}

// steadyRow is one steady load. Times are in milliseconds.
type steadyRow struct {
	Kind    string    `json:"kind"` // "steady"
	Pace    string    `json:"pace"`
	Round   int       `json:"round"`
	Began   time.Time `json:"began"`
	Events  int       `json:"events"`
	Seconds float64   `json:"seconds"`
	// Commit is from the server's commit time to the record at an independent reader.
	Commit quantiles `json:"commit_to_visible_ms"`
	// Due is from when the row should have been written to the same: a stall shows in all rows due meanwhile.
	Due quantiles `json:"due_to_visible_ms"`
	// Confirm is from the record at the reader to a confirmed_flush_lsn after its transaction.
	Confirm   quantiles `json:"visible_to_confirmed_ms"`
	Daemon    float64   `json:"daemon_cores"`
	Walsender float64   `json:"walsender_cores"`
	Broker    float64   `json:"broker_cores"`
	Other     float64   `json:"other_cores"`
	RSS       int64     `json:"peak_rss_bytes"`
	Queries   int64     `json:"queries,omitempty"` // transactions in the database, idle only
	Missing   int       `json:"missing"`
}

// senders write concurrently, so that a slow commit does not delay those that are due.
const senders = 16

// steady measures latency and cost at fixed rates, at rest, and the time to the first record.
func (b *bench) steady(ctx context.Context, o *options) error {
	for i := range b.roundsOr(1) {
		for _, p := range paces {
			row, err := b.steadyRound(ctx, &p, o.seconds)
			if err != nil {
				return fmt.Errorf("%s: %w", p.Name, err)
			}
			row.Round = i + 1
			if err := b.out.add(row); err != nil {
				return err
			}
			b.say("steady %-32s p50 %.1f p99 %.1f p99.9 %.1f max %.1f ms; daemon %.1f %%, walsender %.1f %%, broker %.1f %%, other %.2f cores; confirmed p99 %.0f max %.0f ms",
				p.Name, row.Commit.P50, row.Commit.P99, row.Commit.P999, row.Commit.Max, row.Daemon*100, row.Walsender*100, row.Broker*100, row.Other, row.Confirm.P99, row.Confirm.Max)
		}
		row, err := b.measureIdle(ctx, o.seconds)
		if err != nil {
			return fmt.Errorf("idle: %w", err)
		}
		row.Round = i + 1
		if err := b.out.add(row); err != nil {
			return err
		}
		b.say("idle: %.2f %% of a core, %d MiB, %d queries in %.0f s", row.Daemon*100, row.RSS>>20, row.Queries, row.Seconds)
		if err := b.measureFirst(ctx, i+1); err != nil {
			return fmt.Errorf("first record: %w", err)
		}
	}
	return nil
}

func (b *bench) steadyRound(ctx context.Context, p *pace, lasts time.Duration) (*steadyRow, error) {
	v, err := b.goLive(ctx)
	if err != nil {
		return nil, err
	}
	row, err := v.measureSteady(ctx, p, lasts)
	return row, errors.Join(err, v.end(ctx))
}

// settleTime is how long a load runs before it is measured.
const settleTime = 3 * time.Second

func (v *live) measureSteady(ctx context.Context, p *pace, lasts time.Duration) (*steadyRow, error) {
	if err := v.awaitStreaming(ctx); err != nil {
		return nil, err
	}
	if err := v.warm(ctx); err != nil {
		return nil, fmt.Errorf("warm up: %w", err)
	}
	total := p.rate * int((settleTime+lasts)/time.Second)
	w := &steadyWriter{v: v, p: p, start: time.Now().Add(100 * time.Millisecond), txs: total / p.perTx}
	confirmed := watchConfirmed(ctx, v)
	defer confirmed.stop() //nolint:errcheck // it was called before, or another error came first
	written := make(chan error, 1)
	go func() { written <- w.write(ctx) }()
	time.Sleep(time.Until(w.start.Add(settleTime)))
	a, daemon, sender := open(v.b.pg.Pid(), v.b.kafka.Pid()), cpu(v.run.proc.Pid()), fineCPU(v.sender)
	time.Sleep(time.Until(w.start.Add(settleTime + lasts)))
	use := a.close(cpu(v.run.proc.Pid())-daemon, fineCPU(v.sender)-sender)
	if err := <-written; err != nil {
		return nil, err
	}
	letters := 0
	if p.poison > 0 {
		letters = total / p.poison
	}
	if err := v.follow.await(ctx, total-letters, 30*time.Second); err != nil {
		return nil, err
	}
	confirmed.await(v.follow.newest()) // although no transaction follows
	seen, err := confirmed.stop()
	if err != nil {
		return nil, err
	}
	row := &steadyRow{
		Kind: "steady", Pace: p.Name, Began: w.start, Events: total, Seconds: use.Seconds, Daemon: use.Client / use.Seconds,
		Walsender: use.Walsender / use.Seconds, Broker: use.Broker / use.Seconds, Other: use.Other, RSS: peakRSS(v.run.proc.Pid()),
	}
	return row, v.latencies(ctx, row, w, seen)
}

// latencies compares times taken by three processes with the one clock of this machine. Poison events do not count.
func (v *live) latencies(ctx context.Context, row *steadyRow, w *steadyWriter, seen []confirmation) error {
	rows, err := v.conn.Query(ctx, `SELECT ('x' || right(replace(id::text, '-', ''), 12))::bit(48)::bigint, (extract(epoch FROM pg_xact_commit_timestamp(xmin)) * 1e6)::bigint FROM outbox`)
	if err != nil {
		return err
	}
	defer rows.Close()
	var commit, due, confirm []float64
	from := int(settleTime/time.Second) * w.p.rate
	for rows.Next() {
		var n, micros int64
		if err := rows.Scan(&n, &micros); err != nil {
			return err
		}
		if w.p.isPoison(int(n)) {
			continue
		}
		got, ok := v.follow.arrivalOf(int(n))
		if !ok {
			row.Missing++
			continue
		}
		if int(n) < from {
			continue
		}
		commit = append(commit, ms(got.at.Sub(time.UnixMicro(micros))))
		due = append(due, ms(got.at.Sub(w.due(int(n)/w.p.perTx))))
		confirm = append(confirm, ms(delay(seen, got)))
	}
	row.Commit, row.Due, row.Confirm = quantilesOf(commit), quantilesOf(due), quantilesOf(confirm)
	return rows.Err()
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// steadyWriter writes transactions when they are due, whether or not earlier ones have returned.
type steadyWriter struct {
	v     *live
	p     *pace
	start time.Time
	txs   int
	next  atomic.Int64
}

func (w *steadyWriter) due(tx int) time.Time {
	return w.start.Add(time.Duration(float64(tx) * float64(w.p.perTx) / float64(w.p.rate) * float64(time.Second)))
}

func (w *steadyWriter) write(ctx context.Context) error {
	errs := make([]error, senders)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() { errs[i] = w.send(ctx) })
	}
	all.Wait()
	return errors.Join(errs...)
}

func (w *steadyWriter) send(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, w.v.b.pg.SuperURL(w.v.run.load.database()))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, `SET synchronous_commit = on`); err != nil {
		return err
	}
	// The header id is reserved, so an event with it is poison.
	const insert = `INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload, headers)
		SELECT lpad(to_hex(n), 32, '0')::uuid, 't0', CASE WHEN poison THEN 'p' || n / $4::bigint % 1000 ELSE 'k' || n % 10000 END, 'OrderPlaced',
			$2::jsonb, CASE WHEN poison THEN '{"id": "reserved"}' ELSE '{}' END::jsonb
		FROM generate_series($1::bigint, $1 + $3 - 1) n, LATERAL (SELECT coalesce(n % nullif($4::bigint, 0) = 0, false)) AS p (poison)`
	payload := onePayload(w.v.run.load.Payload)
	for {
		tx := int(w.next.Add(1)) - 1
		if tx >= w.txs {
			return nil
		}
		time.Sleep(time.Until(w.due(tx)))
		if _, err := conn.Exec(ctx, insert, tx*w.p.perTx, payload, w.p.perTx, w.p.poison); err != nil {
			return err
		}
	}
}

func onePayload(bytes int) string {
	out := `{"data":"`
	for i := 0; len(out) < bytes-2; i++ {
		out += fmt.Sprintf("%x ", i*2654435761%4294967296)
	}
	return out + `"}`
}
