package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// pace is one steady load of events of 1 KB.
type pace struct {
	Name     string
	rate     int // events a second
	perTx    int
	settings []string
}

var paces = []pace{
	{Name: "50/s", rate: 50, perTx: 1},
	{Name: "1,000/s", rate: 1000, perTx: 1},
	{Name: "1,000/s, read_interval 0", rate: 1000, perTx: 1, settings: []string{"OUTBOXCDC_POSTGRES_READ_INTERVAL=0"}},
	{Name: "5,000/s, 5 rows a transaction", rate: 5000, perTx: 5},
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
	// From the server's commit time to the record at an independent reader.
	Commit quantiles `json:"commit_to_visible_ms"`
	// From when the row should have been written to the same: a stall of anybody shows in all that should have come meanwhile.
	Due quantiles `json:"due_to_visible_ms"`
	// From the record at the reader to a confirmed_flush_lsn behind its transaction.
	Confirm   quantiles `json:"visible_to_confirmed_ms"`
	Daemon    float64   `json:"daemon_cores"`
	Walsender float64   `json:"walsender_cores"`
	Broker    float64   `json:"broker_cores"`
	Other     float64   `json:"other_cores"`
	RSS       int64     `json:"peak_rss_bytes"`
	Queries   int64     `json:"queries,omitempty"` // transactions in the database, idle only
	Missing   int       `json:"missing"`
}

// senders write at once, so that a slow commit does not hold up those that are due.
const senders = 16

// steady measures latency and cost at fixed rates, at rest, and the time to the first record.
func (b *bench) steady(ctx context.Context, o *options) error {
	for i := range b.rounds {
		for _, p := range paces {
			row, err := b.steadyOnce(ctx, &p, o.seconds)
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
		row, err := b.idle(ctx, o.seconds)
		if err != nil {
			return fmt.Errorf("idle: %w", err)
		}
		row.Round = i + 1
		if err := b.out.add(row); err != nil {
			return err
		}
		b.say("idle: %.2f %% of a core, %d MiB, %d queries in %.0f s", row.Daemon*100, row.RSS>>20, row.Queries, row.Seconds)
		first, err := b.first(ctx)
		if err != nil {
			return fmt.Errorf("first record: %w", err)
		}
		if err := b.out.add(firstRow{"first", i + 1, first.Seconds()}); err != nil {
			return err
		}
		b.say("start to first record: %.0f ms", first.Seconds()*1000)
	}
	return nil
}

// firstRow is the time from the process's start to its first record in Kafka.
type firstRow struct {
	Kind    string  `json:"kind"` // "first"
	Round   int     `json:"round"`
	Seconds float64 `json:"seconds"`
}

// live is a database with a daemon on it.
type live struct {
	b      *bench
	run    *run
	topics []string
	conn   *pgx.Conn
	sender int // pid of the walsender
	follow *follower
}

// goLive makes database, topic and slot, and starts the daemon. before runs between the two.
func (b *bench) goLive(ctx context.Context, settings []string, before func(*load) error) (*live, error) {
	b.runs++
	l := &load{Name: fmt.Sprintf("steady%d", b.runs), PerTx: 1, Payload: 1000}
	l.complete()
	if err := l.prepare(ctx, b.pg); err != nil {
		return nil, err
	}
	if before != nil {
		if err := before(l); err != nil {
			return nil, err
		}
	}
	r := &run{load: l, subject: &subjects[0], name: l.Name}
	r.dir = filepath.Join(b.dir, r.name)
	r.log = filepath.Join(r.dir, "log")
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return nil, err
	}
	v := &live{b: b, run: r, topics: l.topics(r.name)}
	if err := b.makeTopics(ctx, l, v.topics); err != nil {
		return nil, err
	}
	var err error
	if v.conn, err = pgx.Connect(ctx, b.pg.SuperURL(l.database())); err != nil {
		return nil, err
	}
	if _, err := v.conn.Exec(ctx, `SELECT pg_copy_logical_replication_slot($1, $2)`, master, r.name); err != nil {
		return nil, err
	}
	if v.follow, err = follow(b.kafka.Brokers(), v.topics); err != nil {
		return nil, err
	}
	saved := b.settings
	b.settings = append(append([]string{}, saved...), settings...)
	err = startDaemon(b, r)
	b.settings = saved
	return v, err
}

// streaming waits until the daemon streams.
func (v *live) streaming(ctx context.Context) error {
	for {
		var pid *int
		if err := v.conn.QueryRow(ctx, `SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1`, v.run.name).Scan(&pid); err != nil {
			return err
		}
		if pid != nil {
			v.sender = *pid
			return nil
		}
		if v.run.proc.Exited() {
			return errors.Join(errors.New("the daemon has ended"), v.run.end(ctx))
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (v *live) end(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	err := v.run.end(ctx)
	v.follow.close()
	_ = v.conn.Close(ctx)
	v.b.removeTopics(v.topics)
	return errors.Join(err, v.b.drop(ctx, v.run.load))
}

func (b *bench) steadyOnce(ctx context.Context, p *pace, lasts time.Duration) (*steadyRow, error) {
	v, err := b.goLive(ctx, p.settings, nil)
	if err != nil {
		return nil, err
	}
	row, err := v.steady(ctx, p, lasts)
	return row, errors.Join(err, v.end(ctx))
}

// settle is how long a load goes on before it is measured.
const settle = 3 * time.Second

func (v *live) steady(ctx context.Context, p *pace, lasts time.Duration) (*steadyRow, error) {
	if err := v.streaming(ctx); err != nil {
		return nil, err
	}
	total := p.rate * int((settle+lasts)/time.Second)
	w := &steadyWriter{v: v, p: p, start: time.Now().Add(100 * time.Millisecond), txs: total / p.perTx}
	confirmed := watchConfirmed(ctx, v)
	defer confirmed.stop()
	written := make(chan error, 1)
	go func() { written <- w.write(ctx) }()
	time.Sleep(time.Until(w.start.Add(settle)))
	a, daemon, sender := open(v.b.pg.Pid(), v.b.kafka.Pid()), cpu(v.run.proc.Pid()), finer(v.sender)
	time.Sleep(time.Until(w.start.Add(settle + lasts)))
	use := a.close(cpu(v.run.proc.Pid())-daemon, finer(v.sender)-sender)
	if err := <-written; err != nil {
		return nil, err
	}
	if err := v.follow.await(ctx, total, 30*time.Second); err != nil {
		return nil, err
	}
	time.Sleep(1500 * time.Millisecond) // for the last position, though nothing follows
	seen := confirmed.stop()
	row := &steadyRow{
		Kind: "steady", Pace: p.Name, Began: w.start, Events: total, Seconds: use.Seconds, Daemon: use.Client / use.Seconds,
		Walsender: use.Walsender / use.Seconds, Broker: use.Broker / use.Seconds, Other: use.Other, RSS: peakRSS(v.run.proc.Pid()),
	}
	return row, v.latencies(ctx, row, w, seen)
}

// latencies compares three clocks that are one: this machine's.
func (v *live) latencies(ctx context.Context, row *steadyRow, w *steadyWriter, seen []confirmation) error {
	rows, err := v.conn.Query(ctx, `SELECT ('x' || right(replace(id::text, '-', ''), 12))::bit(48)::bigint, (extract(epoch FROM pg_xact_commit_timestamp(xmin)) * 1e6)::bigint FROM outbox`)
	if err != nil {
		return err
	}
	defer rows.Close()
	var commit, due, confirm []float64
	from := int(settle/time.Second) * w.p.rate
	for rows.Next() {
		var n, micros int64
		if err := rows.Scan(&n, &micros); err != nil {
			return err
		}
		got, ok := v.follow.seen(int(n))
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

// steadyWriter writes transactions when they are due, whether or not those before have come back.
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
	const insert = `INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload)
		SELECT lpad(to_hex(n), 32, '0')::uuid, 't0', 'k' || n % 10000, 'OrderPlaced', $2::jsonb FROM generate_series($1::bigint, $1 + $3 - 1) n`
	payload := onePayload(w.v.run.load.Payload)
	for {
		tx := int(w.next.Add(1)) - 1
		if tx >= w.txs {
			return nil
		}
		time.Sleep(time.Until(w.due(tx)))
		if _, err := conn.Exec(ctx, insert, tx*w.p.perTx, payload, w.p.perTx); err != nil {
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

// confirmation is a position of the slot, and when we saw it.
type confirmation struct {
	at  time.Time
	lsn pglogrepl.LSN
}

type confirmedWatch struct {
	cancel context.CancelFunc
	ended  chan struct{}
	seen   []confirmation
}

func watchConfirmed(ctx context.Context, v *live) *confirmedWatch {
	ctx, cancel := context.WithCancel(ctx)
	w := &confirmedWatch{cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(w.ended)
		conn, err := pgx.Connect(context.WithoutCancel(ctx), v.b.pg.SuperURL("postgres"))
		if err != nil {
			return
		}
		defer conn.Close(context.WithoutCancel(ctx))
		for ctx.Err() == nil {
			var lsn int64
			err := conn.QueryRow(context.WithoutCancel(ctx), `SELECT (confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots WHERE slot_name = $1`, v.run.name).Scan(&lsn)
			if n := len(w.seen); err == nil && (n == 0 || w.seen[n-1].lsn != pglogrepl.LSN(lsn)) {
				w.seen = append(w.seen, confirmation{time.Now(), pglogrepl.LSN(lsn)})
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	return w
}

func (w *confirmedWatch) stop() []confirmation {
	w.cancel()
	<-w.ended
	return w.seen
}

// never stands for a position that was not seen to be confirmed: it spoils every quantile that it gets into.
const never = time.Hour

func delay(seen []confirmation, got arrival) time.Duration {
	for _, c := range seen {
		if c.lsn > got.commit {
			return max(0, c.at.Sub(got.at))
		}
	}
	return never
}

// idle is a daemon with nothing to do.
func (b *bench) idle(ctx context.Context, lasts time.Duration) (*steadyRow, error) {
	v, err := b.goLive(ctx, nil, nil)
	if err != nil {
		return nil, err
	}
	row, err := v.idle(ctx, lasts)
	return row, errors.Join(err, v.end(ctx))
}

func (v *live) idle(ctx context.Context, lasts time.Duration) (*steadyRow, error) {
	if err := v.streaming(ctx); err != nil {
		return nil, err
	}
	queries := func() (n int64, err error) {
		err = v.conn.QueryRow(ctx, `SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()`).Scan(&n)
		return n, err
	}
	time.Sleep(settle)
	before, err := queries()
	if err != nil {
		return nil, err
	}
	a, daemon, sender := open(v.b.pg.Pid(), v.b.kafka.Pid()), cpu(v.run.proc.Pid()), finer(v.sender)
	time.Sleep(lasts)
	use := a.close(cpu(v.run.proc.Pid())-daemon, finer(v.sender)-sender)
	after, err := queries()
	return &steadyRow{
		Kind: "steady", Pace: "idle", Began: a.at, Seconds: use.Seconds, Daemon: use.Client / use.Seconds, Walsender: use.Walsender / use.Seconds,
		Broker: use.Broker / use.Seconds, Other: use.Other, RSS: peakRSS(v.run.proc.Pid()), Queries: after - before - 1, // the first of ours
	}, err
}

// first is the time from the start of the process to its first record, which has been waiting, at the reader.
func (b *bench) first(ctx context.Context) (time.Duration, error) {
	v, err := b.goLive(ctx, nil, func(l *load) error { return b.pg.Exec(ctx, l.database(), l.script(0, 1)) })
	if err != nil {
		return 0, err
	}
	err = v.follow.await(ctx, 1, 30*time.Second)
	got, _ := v.follow.seen(0)
	return got.at.Sub(v.run.began), errors.Join(err, v.end(ctx))
}

// follower reads what comes and notes when.
type follower struct {
	client *kgo.Client
	cancel context.CancelFunc
	ended  chan struct{}
	mu     sync.Mutex
	rows   map[int]arrival
}

type arrival struct {
	at     time.Time
	commit pglogrepl.LSN
}

func follow(brokers, topics []string) (*follower, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topics...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	f := &follower{client: client, cancel: cancel, ended: make(chan struct{}), rows: map[int]arrival{}}
	go func() {
		defer close(f.ended)
		for ctx.Err() == nil {
			fetches := client.PollFetches(ctx)
			now := time.Now()
			f.mu.Lock()
			for _, r := range fetches.Records() {
				if n, err := rowOf(r); err == nil {
					if _, ok := f.rows[n]; !ok {
						f.rows[n] = arrival{now, commitOf(r)}
					}
				}
			}
			f.mu.Unlock()
		}
	}()
	return f, nil
}

// commitOf is the commit LSN in the position header, 0 if there is none.
func commitOf(r *kgo.Record) (lsn pglogrepl.LSN) {
	for _, h := range r.Headers {
		if h.Key == "outboxcdc-position" {
			if p, err := checkpoint.ParsePosition(string(h.Value)); err == nil {
				return p.CommitLSN
			}
		}
	}
	return 0
}

func (f *follower) seen(n int) (arrival, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a, ok := f.rows[n]
	return a, ok
}

func (f *follower) await(ctx context.Context, n int, patience time.Duration) error {
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		f.mu.Lock()
		have := len(f.rows)
		f.mu.Unlock()
		switch {
		case have >= n:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(end):
			return fmt.Errorf("%d of %d records have come", have, n)
		}
	}
}

func (f *follower) close() {
	f.cancel()
	<-f.ended
	f.client.Close()
}
