package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/sql"
	"github.com/outboxcdc/outboxcdc/test/daemon"
)

// writerRow is one run of pgbench.
type writerRow struct {
	Kind    string    `json:"kind"` // "writer"
	What    string    `json:"what"`
	Round   int       `json:"round"`
	Began   time.Time `json:"began"`
	Rate    int       `json:"rate"` // transactions a second, asked for
	Latency float64   `json:"latency_ms"`
	TPS     float64   `json:"tps"`
	Other   float64   `json:"busy_cores"` // of all processes; shows how much was to spare
	WAL     float64   `json:"wal_bytes"`  // of a transaction
	CPU     float64   `json:"server_us"`  // of a transaction: the server's processor time, in microseconds
}

// bill is what the writer's transaction consists of.
type bill struct {
	what    string
	sql     string
	drained bool
	emits   sql.Params // parameters of outbox_emit; none: not created
}

const business = `UPDATE account SET balance = balance + 1 WHERE id = :id;` + "\n" + `INSERT INTO other VALUES (DEFAULT, repeat('x', 100));` + "\n"

const outboxRow = `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('t0', :id, 'Changed', '{"a": "` + filler + `"}');` + "\n"

const filler = "0123456789 abcdefghijklmnopqrstuvwxyz 0123456789 abcdefghijklmnopqrstuvwxyz 0123456789 abcdefghijklmnopqrstuvwxyz 0123456789 abcdefghijklmnopqrstuvwxyz 0123456789 abcdefghijk"

var bills = []bill{
	{what: "business only", sql: business},
	{what: "+ one more business row", sql: business + `INSERT INTO other VALUES (DEFAULT, repeat('y', 200));` + "\n"},
	{what: "+ outbox row", sql: business + outboxRow},
	{what: "+ outbox row, drained by outboxcdc", sql: business + outboxRow, drained: true},
	{what: "+ logical message", sql: business + `SELECT pg_logical_emit_message(true, 'outbox', '{"id":"' || gen_random_uuid() || '","aggregate_type":"t0","aggregate_id":"' || :id || '","event_type":"Changed","payload":{"a": "` + filler + `"}}');` + "\n"},
	{what: "+ outbox_emit, a row", sql: business + emit, emits: sql.Params{Tables: []sql.Table{{Schema: "public", Name: "outbox", Columns: sql.Columns{
		ID: "id", AggregateType: "aggregate_type", AggregateID: "aggregate_id", EventType: "event_type", Payload: "payload", Headers: "headers",
	}}}}},
	{what: "+ outbox_emit, a message", sql: business + emit, emits: sql.Params{Messages: "outbox"}},
}

const emit = `SELECT outbox_emit('t0', (:id)::text, 'Changed', '{"a": "` + filler + `"}');` + "\n"

// writerRate is slow enough to leave one of two cores to spare.
const writerRate = 400

// writer measures what the outbox costs the writing application.
func (b *bench) writer(ctx context.Context, o *options) error {
	pgbench, err := findClient("pgbench")
	if err != nil {
		return err
	}
	for round := 1; round <= b.roundsOr(1); round++ {
		for _, w := range bills {
			row, err := b.bill(ctx, pgbench, &w, o.seconds)
			if err != nil {
				return fmt.Errorf("%s: %w", w.what, err)
			}
			row.Round = round
			if err := b.out.add(row); err != nil {
				return err
			}
			b.say("writer %-40s mean %.3f ms at %.0f/s, %.0f bytes of WAL, %.0f µs of the server, %.2f cores busy in all", row.What, row.Latency, row.TPS, row.WAL, row.CPU, row.Other)
		}
	}
	return nil
}

var (
	latency   = regexp.MustCompile(`latency average = ([0-9.]+) ms`)
	processed = regexp.MustCompile(`transactions actually processed: ([0-9]+)`)
	tps       = regexp.MustCompile(`tps = ([0-9.]+)`)
)

func (b *bench) bill(ctx context.Context, pgbench string, w *bill, lasts time.Duration) (*writerRow, error) {
	var v *live
	l := &load{Name: fmt.Sprintf("writer%d", b.runs+1), PerTx: 1, Payload: 200}
	var err error
	if w.drained {
		if v, err = b.goLive(ctx); err != nil {
			return nil, err
		}
		defer func() { _ = v.end(ctx) }()
		if err := v.awaitStreaming(ctx); err != nil {
			return nil, err
		}
		l = v.run.load
	} else {
		b.runs++
		l.complete()
		if err := l.prepare(ctx, b.pg); err != nil {
			return nil, err
		}
		defer func() { _ = b.drop(ctx, l) }()
	}
	err = b.pg.Exec(ctx, l.database(), `DROP TABLE other`, `CREATE TABLE other (n bigserial PRIMARY KEY, filler text)`,
		`CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL)`, `INSERT INTO account SELECT i, 0 FROM generate_series(1, 10000) i`,
		`ALTER DATABASE `+l.database()+` SET synchronous_commit = on`)
	if err != nil {
		return nil, err
	}
	if w.emits.HasFunction() {
		statements, err := sql.Setup(w.emits, sql.NewestTested)
		if err != nil {
			return nil, err
		}
		if err := b.pg.Exec(ctx, l.database(), statements.Get(sql.Function)); err != nil {
			return nil, err
		}
	}
	script := filepath.Join(b.dir, "script.sql")
	if err := os.WriteFile(script, []byte("\\set id random(1, 10000)\nBEGIN;\n"+w.sql+"COMMIT;\n"), 0o644); err != nil {
		return nil, err
	}
	wal, err := b.walEnd(ctx, l.database())
	if err != nil {
		return nil, err
	}
	begun, before, server := time.Now(), busyTime(), familyCPU(b.pg.Pid())
	cmd := exec.CommandContext(ctx, pgbench, "-n", "-M", "prepared", "-c", "4", "-j", "2", "-R", strconv.Itoa(writerRate),
		"-T", strconv.Itoa(int(lasts.Seconds())), "-f", script, b.pg.SuperURL(l.database()))
	cmd.Env = daemon.Environment()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
	}
	row := &writerRow{Kind: "writer", What: w.what, Began: begun, Rate: writerRate, Other: (busyTime() - before).Seconds() / time.Since(begun).Seconds()}
	server = familyCPU(b.pg.Pid()) - server
	end, err := b.walEnd(ctx, l.database())
	if err != nil {
		return nil, err
	}
	for re, to := range map[*regexp.Regexp]*float64{latency: &row.Latency, tps: &row.TPS} {
		m := re.FindSubmatch(out)
		if m == nil {
			return nil, fmt.Errorf("pgbench did not print its %s:\n%s", re, out)
		}
		if *to, err = strconv.ParseFloat(string(m[1]), 64); err != nil {
			return nil, err
		}
	}
	count := processed.FindSubmatch(out)
	if count == nil {
		return nil, fmt.Errorf("pgbench did not print the number of its transactions:\n%s", out)
	}
	n, err := strconv.ParseFloat(string(count[1]), 64)
	if err != nil {
		return nil, err
	}
	row.WAL, row.CPU = float64(end-wal)/n, float64(server.Microseconds())/n
	return row, nil
}

// walEnd returns how much WAL the server has ever written.
func (b *bench) walEnd(ctx context.Context, database string) (pglogrepl.LSN, error) {
	conn, err := pgx.Connect(ctx, b.pg.SuperURL(database))
	if err != nil {
		return 0, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var text string
	if err := conn.QueryRow(ctx, `SELECT pg_current_wal_insert_lsn()::text`).Scan(&text); err != nil {
		return 0, err
	}
	return pglogrepl.ParseLSN(text)
}
