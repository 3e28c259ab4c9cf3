package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// load is one backlog. It is written once, after a slot of its own was created, into a database of its own; each run
// reads it through a copy of that slot.
type load struct {
	Name       string `json:"name"`
	Rows       int    `json:"rows"`
	PerTx      int    `json:"rows_per_transaction"`
	Payload    int    `json:"payload_bytes"`
	Topics     int    `json:"topics"`
	Partitions int    `json:"partitions_per_topic"`
	Column     string `json:"payload_column"`    // type
	Foreign    bool   `json:"foreign,omitempty"` // each row beside one of about the same size in a table that is not published
	Keys       int    `json:"keys_per_topic"`
	About      string `json:"about"`

	end pglogrepl.LSN // after the last commit
}

// keys is the number of keys of a topic, unless a load sets another.
const keys = 10_000

// loads returns the loads of `make bench`. scale changes the size of all of them.
func loads(scale float64) []*load {
	small, large := 200, 1000
	all := []*load{
		{Name: "s1", Rows: 500_000, PerTx: 1, Payload: small, About: "transactions of 1 row"},
		{Name: "s10", Rows: 500_000, PerTx: 10, Payload: small, About: "of 10 rows"},
		{Name: "s100", Rows: 1_000_000, PerTx: 100, Payload: small, About: "of 100 rows"},
		{Name: "s1M", Rows: 1_000_000, PerTx: 1_000_000, Payload: small, About: "one transaction of all rows"},
		{Name: "k1", Rows: 200_000, PerTx: 1, Payload: large, About: "1 KB, 1 row"},
		{Name: "k100", Rows: 300_000, PerTx: 100, Payload: large, About: "1 KB, 100 rows"},
		{Name: "e10", Rows: 60_000, PerTx: 10, Payload: 8000, About: "8 KB, 10 rows"},
		{Name: "s100-12t", Rows: 500_000, PerTx: 100, Payload: small, Topics: 12, Partitions: 3, About: "100 rows, 12 topics of 3 partitions"},
		{Name: "s100-100t", Rows: 500_000, PerTx: 100, Payload: small, Topics: 100, Partitions: 3, About: "100 rows, 100 topics of 3 partitions"},
		{Name: "s100-bytea", Rows: 500_000, PerTx: 100, Payload: small, Column: "bytea", About: "100 rows, payload bytea"},
		{Name: "s1-foreign", Rows: 300_000, PerTx: 1, Payload: small, Foreign: true, About: "1 row, half of the WAL foreign"},
	}
	for _, l := range all {
		l.Rows = max(l.PerTx, int(float64(l.Rows)*scale)/l.PerTx*l.PerTx)
		l.complete()
	}
	return all
}

// complete sets the defaults of a load: one topic of 12 partitions, jsonb.
func (l *load) complete() {
	if l.Topics == 0 {
		l.Topics, l.Partitions = 1, 12
	}
	if l.Column == "" {
		l.Column = "jsonb"
	}
	if l.Keys == 0 {
		l.Keys = keys
	}
}

// database returns the name of the load's own database.
func (l *load) database() string {
	return "bench_" + strings.NewReplacer("-", "_", " ", "_", ",", "").Replace(strings.ToLower(l.Name))
}

// master is the slot that runs copy.
const master = "master"

const tableSQL = `CREATE TABLE outbox (
	id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_type text NOT NULL, aggregate_id text NOT NULL, event_type text NOT NULL,
	payload %s, headers jsonb NOT NULL DEFAULT '{}', created_at timestamptz NOT NULL DEFAULT now())`

// fillerSQL returns a text of about the given size that compresses like JSON of short strings, not to nothing.
const fillerSQL = `SELECT array_agg(left(s, %d)) FROM (
	SELECT string_agg('"' || chr(97 + (i * 7 + j) %% 26) || substr(md5((i * 100 + j)::text), 1, 9) || '":"value ' || j || '",', '' ORDER BY j) AS s
	  FROM generate_series(1, 500) i, generate_series(1, %d) j GROUP BY i) t`

// insertSQL gives row n the id n, so that a reader knows which are missing; a key always belongs to the same topic.
const insertSQL = `INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload)
	SELECT lpad(to_hex(n), 32, '0')::uuid, 't' || n %% %[1]d, 'k' || n / %[1]d %% %[2]d, 'OrderPlaced', %[3]s FROM generate_series(first, first + %[4]d) n`

// prepare creates the load's database with table, publication and slot.
func (l *load) prepare(ctx context.Context, pg *pgtest.Server) error {
	if err := pg.Exec(ctx, "postgres", "CREATE DATABASE "+l.database()); err != nil {
		return err
	}
	return pg.Exec(ctx, l.database(),
		fmt.Sprintf(tableSQL, l.Column),
		`CREATE TABLE other (n bigint PRIMARY KEY, filler text)`,
		`CREATE PUBLICATION outboxcdc FOR TABLE outbox WITH (publish = 'insert')`,
		`SELECT pg_create_logical_replication_slot('`+master+`', 'pgoutput')`)
}

// write writes the whole load.
func (l *load) write(ctx context.Context, pg *pgtest.Server) error {
	if err := l.prepare(ctx, pg); err != nil {
		return fmt.Errorf("prepare load %s: %w", l.Name, err)
	}
	conn, err := pgx.Connect(ctx, pg.SuperURL(l.database()))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, l.script(0, l.Rows)); err != nil {
		return fmt.Errorf("write load %s: %w", l.Name, err)
	}
	var end string
	if err := conn.QueryRow(ctx, `SELECT pg_current_wal_insert_lsn()::text`).Scan(&end); err != nil {
		return err
	}
	if l.end, err = pglogrepl.ParseLSN(end); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, `CHECKPOINT`) // or the server does this work during a measurement
	return err
}

// script inserts rows first to first+rows-1, and commits after each PerTx of them.
func (l *load) script(first, rows int) string {
	payload := `('{"n":' || n || ',"data":{' || left(f[1 + n % 500], length(f[1 + n % 500]) - 1) || '}}')::jsonb`
	if l.Column == "bytea" {
		payload = `convert_to(f[1 + n % 500], 'UTF8')`
	}
	// A truncated text is not JSON: a member is about 26 bytes, so take as many whole ones as fit.
	members := max(1, (l.Payload-20)/26)
	fill := fmt.Sprintf(fillerSQL, 10*l.Payload, members)
	foreign := ""
	if l.Foreign {
		foreign = fmt.Sprintf(`INSERT INTO other SELECT n, repeat(f[1 + n %% 500], 2) FROM generate_series(first, first + %d) n;`, l.PerTx-1)
	}
	return fmt.Sprintf(`DO $$ DECLARE f text[] := (%s); first int; BEGIN
		FOR tx IN 0..%d LOOP first := %d + tx * %d; %s; %s COMMIT; END LOOP; END $$`,
		fill, rows/l.PerTx-1, first, l.PerTx, fmt.Sprintf(insertSQL, l.Topics, l.Keys, payload, l.PerTx-1), foreign)
}

// topics returns the topics of a run's records; no two runs share one.
func (l *load) topics(run string) []string {
	out := make([]string, l.Topics)
	for i := range out {
		out[i] = fmt.Sprintf("%s.t%d", run, i)
	}
	return out
}
