package outboxtable

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/decoder"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// No test stops its server.
var serverSettings = map[string]string{"wal_level": "logical", "fsync": "off"}

var majors = []string{"14", "15", "16", "17", "18"}

// bench is a database of its own on a server that tests may share.
type bench struct {
	*testing.T
	server *pgtest.Server
	name   string
	sql    *pgx.Conn
}

// newBench creates a database, and a role of the same name that may only connect and replicate.
func newBench(t *testing.T, server *pgtest.Server, name, options string) *bench {
	t.Helper()
	for _, sql := range []string{"CREATE DATABASE " + name + " " + options, "CREATE ROLE " + name + " LOGIN REPLICATION PASSWORD 'secret'"} {
		must(t, server.Exec(t.Context(), "postgres", sql))
	}
	return &bench{T: t, server: server, name: name, sql: pgtest.Connect(t, server.SuperURL(name))}
}

func (b *bench) exec(sql string) {
	b.Helper()
	if _, err := b.sql.PgConn().Exec(b.Context(), sql).ReadAll(); err != nil {
		b.Fatalf("%s: %v", sql, err)
	}
}

func (b *bench) url() string { return b.server.URL(b.name, b.name, "secret") }

// open opens a snapshot as the role.
func (b *bench) open(tables ...Table) *Snapshot {
	b.Helper()
	s, err := Open(b.Context(), pgtest.Connect(b, b.url()), tables)
	must(b, err)
	b.Cleanup(func() { s.Close(context.Background()) })
	return s
}

// event is a copy of an event.
func event(ev *decoder.Event) *decoder.Event {
	c := *ev
	c.Values = slices.Clone(ev.Values)
	for i := range c.Values {
		c.Values[i].Data = slices.Clone(ev.Values[i].Data)
		if ev.Values[i].Data != nil && c.Values[i].Data == nil {
			c.Values[i].Data = []byte{}
		}
	}
	return &c
}

// rows reads all rows of a range.
func (b *bench) rows(s *Snapshot, table int, r Range) (rows []Row) {
	b.Helper()
	must(b, s.Rows(b.Context(), table, r, func(row *Row) error {
		rows = append(rows, Row{*event(&row.Event), row.CreatedAt})
		return nil
	}))
	return rows
}

// stream reads n events of the tables from a slot that exists.
func (b *bench) stream(slot, publication string, tables []replication.Table, r *router.Router, n int) (events []*decoder.Event) {
	b.Helper()
	source, err := replication.NewSource(replication.Config{
		URL:  func() (string, error) { return b.url(), nil },
		Slot: slot, Publication: publication, Tables: tables, WalSenderTimeout: 10 * time.Second,
	})
	must(b, err)
	st, err := source.Open(b.Context())
	must(b, err)
	defer func() { _ = st.Close(0, time.Now()) }()
	dec := relay.NewDecoder(b.Context(), st, r, "")
	for deadline := time.Now().Add(20 * time.Second); len(events) < n; {
		if time.Now().After(deadline) {
			b.Fatalf("%d events within 20 s, want %d", len(events), n)
		}
		st.SetDeadline(time.Now().Add(time.Second))
		msg, err := st.Receive()
		if err == replication.ErrDeadline { //nolint:errorlint // it is never wrapped
			_ = st.Status(st.Start(), true, time.Now())
			continue
		}
		must(b, err)
		if msg.Data == nil {
			continue
		}
		m, err := dec.Decode(msg.Data)
		must(b, err)
		if m.Kind == decoder.KindEvent {
			events = append(events, event(m.Event))
		}
	}
	return events
}

// opposite sets everything on which the bytes depend to something else.
const opposite = `
ALTER %[1]s SET DateStyle = 'SQL, DMY'; ALTER %[1]s SET IntervalStyle = 'sql_standard'; ALTER %[1]s SET extra_float_digits = -15;
ALTER %[1]s SET TimeZone = 'Asia/Tokyo'; ALTER %[1]s SET bytea_output = 'escape'; ALTER %[1]s SET client_encoding = 'LATIN1';
ALTER %[1]s SET search_path = public; ALTER %[1]s SET quote_all_identifiers = on; ALTER %[1]s SET lc_monetary = 'C.UTF-8';
ALTER %[1]s SET statement_timeout = '1s'; ALTER %[1]s SET idle_in_transaction_session_timeout = '1s'; ALTER %[1]s SET synchronize_seqscans = on`

func (b *bench) setOpposite() {
	b.exec(fmt.Sprintf(opposite, "ROLE "+b.name))
	b.exec(fmt.Sprintf(opposite, "DATABASE "+b.name))
}

// columnTypes are types with values of each, in SQL; NULL is tried with all of them.
var columnTypes = []struct {
	name   string
	values []string
}{
	{"text", []string{"''", "' '", `E'\t\r\n\b\f\\ \x01\x7f'`, `'"quoted" ''and'' \backslash\n'`, "'Grüße, 日本語 🎉'", "'\\x00ff'", "'{a,b}'", "repeat('0123456789', 100000)"}},
	{"varchar(20)", []string{"''", "'a  '"}},
	{"char(6)", []string{"''", "'ab  '", "'ß€'"}},
	{"name", []string{"'outbox'"}},
	{`"char"`, []string{"'x'", "''"}},
	{"bytea", []string{"''", `'\x00ff5c'`, "'text'", "decode(repeat('00ff10', 1000), 'hex')"}},
	{"boolean", []string{"true", "false"}},
	{"smallint", []string{"-32768"}},
	{"integer", []string{"-2147483648"}},
	{"bigint", []string{"9007199254740993"}},
	{"numeric", []string{"12345678901234567890.1230", "'NaN'", "0.000000000000000000001", "1e400"}},
	{"numeric(10,3)", []string{"-7.5"}},
	{"real", []string{"0.1", "'Infinity'", "1e-38"}},
	{"double precision", []string{"0.1::float8 + 0.2::float8", "'-Infinity'", "'NaN'", "-0.0::float8", "1e300"}},
	{"money", []string{"1234.5::numeric::money", "(-1234567.89)::numeric::money"}},
	{"date", []string{"'2026-11-21'", "'infinity'", "'0044-03-15 BC'"}},
	{"time", []string{"'11:12:13.456'", "'24:00'"}},
	{"timetz", []string{"'11:12:13.456+05:30'"}},
	{"timestamp", []string{"'2026-11-21 11:12:13.456789'", "'-infinity'"}},
	{"timestamptz", []string{"'2026-11-21 11:12:13.456789+01'", "'2026-11-21 00:00:00Z'", "'infinity'", "'12345-01-01 00:00:00Z'"}},
	{"interval", []string{"'1 year 2 days 03:04:05.6'", "'-1 day +02:03:04'", "'0'"}},
	{"uuid", []string{"'1B4E28BA-2FA1-11D2-883F-0016D3CCA427'"}},
	{"json", []string{`' {"b" :1.50,"b":  2, "e": "\u00e9\ud83c\udf89 \/"}'`, "'null'"}},
	{"jsonb", []string{`'{"b" :1.50,"b":  2, "big": 12345678901234567890.10, "e": "\u00e9"}'`, `'"x"'`, "'null'"}},
	{"jsonpath", []string{"'$.a[*] ? (@ > 1)'"}},
	{"xml", []string{`'<a  b="1">&amp;ü</a>'`, `'<?xml version="1.0" encoding="UTF-8"?><a/>'`}},
	{"inet", []string{"'10.1.2.3/8'", "'::1'"}},
	{"cidr", []string{"'10.0.0.0/8'"}},
	{"macaddr", []string{"'08:00:2b:01:02:03'"}},
	{"bit(4)", []string{"'1010'"}},
	{"varbit", []string{"'10101'", "''"}},
	{"point", []string{"'(0.1,-2)'"}},
	{"polygon", []string{"'((0,0),(1,0.3),(1,1))'"}},
	{"tsvector", []string{"'a:1 fat:2,4 ''it''''s'''"}},
	{"tsquery", []string{"'fat & !rat'"}},
	{"oid", []string{"1259"}},
	{"regclass", []string{"'public.outbox'", "'pg_class'"}},
	{"regtype", []string{"'public.mood'", "'integer'"}},
	{"pg_lsn", []string{"'16/B374D848'"}},
	{"int4range", []string{"'[1,10)'", "'empty'"}},
	{"tstzrange", []string{"'[2026-11-21 11:12:13+01,)'"}},
	{"int4multirange", []string{"'{[1,3),[5,9)}'"}},
	{"text[]", []string{"'{}'", `'{a,"b c",NULL,"NULL","q\"\\","","{x}"}'`, "'[2:3]={a,b}'"}},
	{"integer[]", []string{"'{{1,2},{3,4}}'"}},
	{"timestamptz[]", []string{`'{"2026-11-21 11:12:13+01",infinity}'`}},
	{"bytea[]", []string{`'{"\\x00ff"}'`}},
	{"float8[]", []string{"ARRAY[0.1::float8 + 0.2::float8]"}},
	{"public.mood", []string{"'sad'", "'it''s fine'"}},
	{"public.mood[]", []string{`'{sad,"it''s fine"}'`}},
	{"public.blob", []string{`'\x00ff'`}},
	{"public.email", []string{"'a@b'"}},
	{"public.small", []string{"7"}},
	{"public.pair", []string{`ROW(E'a "b\\",', '2026-11-21 11:12:13+01', 0.1, '\xff')`, "ROW(NULL, NULL, NULL, NULL)"}},
	{"public.pair[]", []string{`ARRAY[ROW('x', '2026-11-21 11:12:13+01', 0.1, '\xff')::public.pair]`}},
}

// wideTable has a column of each type. It also has a dropped column, generated columns, and an identity column.
func (b *bench) wideTable() (columns []string) {
	b.exec(`CREATE TYPE public.mood AS ENUM ('sad', 'it''s fine')`)
	b.exec(`CREATE DOMAIN public.blob AS bytea; CREATE DOMAIN public.email AS text CHECK (value LIKE '%@%')`)
	b.exec(`CREATE DOMAIN public.positive AS integer CHECK (value > 0); CREATE DOMAIN public.small AS public.positive CHECK (value < 10)`)
	b.exec(`CREATE TYPE public.pair AS (a text, t timestamptz, f float8, b bytea)`)
	b.exec(`CREATE TABLE public.outbox (gone int, id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_type text DEFAULT 'shop', also_gone text,
 aggregate_id text DEFAULT 'key "1"', seq bigint GENERATED ALWAYS AS IDENTITY, headers jsonb DEFAULT '{"a": "b"}', event_type text DEFAULT 'T',
 twice bigint GENERATED ALWAYS AS (length(aggregate_id) * 2) STORED, created_at timestamptz NOT NULL DEFAULT clock_timestamp())`)
	if b.server.Major >= "18" {
		b.exec(`ALTER TABLE public.outbox ADD thrice bigint GENERATED ALWAYS AS (length(aggregate_id) * 3) VIRTUAL`)
	}
	b.exec(`ALTER TABLE public.outbox DROP gone, DROP also_gone`)
	for i, typ := range columnTypes {
		name := fmt.Sprintf("c%02d", i)
		columns = append(columns, name)
		b.exec(fmt.Sprintf("ALTER TABLE public.outbox ADD %s %s", name, typ.name))
	}
	return columns
}

// fill inserts a row for each value, and one of NULL for each column.
func (b *bench) fill(columns []string) (rows int) {
	for i, typ := range columnTypes {
		for _, v := range typ.values {
			b.exec(fmt.Sprintf("INSERT INTO public.outbox (%s) VALUES (%s)", columns[i], v))
			rows++
		}
	}
	b.exec("INSERT INTO public.outbox DEFAULT VALUES")
	return rows + 1
}

// routerOf makes records whose key and value are a column.
func routerOf(t *testing.T, column string) *router.Router {
	t.Helper()
	cfg := router.DefaultConfig()
	cfg.Topic, cfg.Key, cfg.Columns.Payload, cfg.NullKey = "{aggregate_type}", "{"+column+"}", column, router.NullKeyAllow
	cfg.Headers, cfg.Timestamp = []string{column + ":own", "seq"}, "created_at"
	r, err := router.New(cfg)
	must(t, err)
	return r
}
