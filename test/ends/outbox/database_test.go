package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/quick"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/outboxcdc/outboxcdc/outbox"
	"github.com/outboxcdc/outboxcdc/outbox/outboxtest"
	setupsql "github.com/outboxcdc/outboxcdc/sql"
)

// newDatabase creates a database with the bundled table and returns its URL.
func newDatabase(t *testing.T, statements ...string) string {
	t.Helper()
	pg := sharedPostgres(t, defaultMajor)
	name := fmt.Sprintf("%.40s_%06x", plain(strings.TrimPrefix(t.Name(), "Test")), rand.IntN(1<<24))
	must(t, pg.Exec(testContext(t), "postgres", "CREATE DATABASE "+name))
	t.Cleanup(func() { must(t, pg.Exec(testContext(t), "postgres", "DROP DATABASE "+name+" WITH (FORCE)")) })
	setup, err := setupsql.Setup(setupsql.Params{Tables: []setupsql.Table{{
		Schema: "public", Name: "outbox",
		Columns: setupsql.Columns{ID: "id", AggregateType: "aggregate_type", AggregateID: "aggregate_id", EventType: "event_type", Payload: "payload", Headers: "headers"},
	}}}, 17)
	must(t, err)
	must(t, pg.Exec(testContext(t), name, append([]string{setup.Get(setupsql.Outbox)}, statements...)...))
	return pg.SuperURL(name)
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(testContext(t), url)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// execModes are the ways in which pgx sends statements.
var execModes = []pgx.QueryExecMode{
	pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
}

func withMode(url string, mode pgx.QueryExecMode) string {
	return url + "&default_query_exec_mode=" + strings.ReplaceAll(mode.String(), " ", "_")
}

// The statements work in each way in which pgx sends statements, with and without prepared statements, as poolers
// require.
func TestExecModes(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	for _, mode := range execModes {
		for _, c := range []outbox.Config{{}, {DeleteRows: true}, {MessagePrefix: "p"}} {
			for name, emit := range emitters {
				for range 2 { // the second time with a statement that was prepared before
					modeURL := withMode(url, mode)
					if name == "pq" {
						modeURL = url
					}
					if err := emit(t, modeURL, newWriter(t, c), outbox.Event{AggregateType: "order", AggregateID: "42", Type: "OrderPaid", Payload: "ü"}); err != nil {
						t.Errorf("%s, %s, %+v: %v", mode, name, c, err)
					}
				}
			}
		}
	}
	var n int
	must(t, connect(t, url).QueryRow(testContext(t), `SELECT count(*) FROM outbox WHERE payload = '"ü"'`).Scan(&n))
	if want := len(execModes) * len(emitters) * 2; n != want {
		t.Errorf("the table has %d rows, want %d", n, want)
	}
}

// An application needs INSERT, and with DeleteRows DELETE and SELECT on the id.
func TestPrivileges(t *testing.T) {
	t.Parallel()
	role := fmt.Sprintf("app_%06x", rand.IntN(1<<24))
	url := newDatabase(t,
		"CREATE ROLE "+role+" LOGIN PASSWORD 'app'", "GRANT INSERT ON outbox TO "+role, "REVOKE EXECUTE ON FUNCTION pg_advisory_xact_lock(bigint) FROM PUBLIC",
		"GRANT EXECUTE ON FUNCTION pg_advisory_xact_lock(bigint) TO "+role)
	t.Cleanup(func() {
		must(t, sharedPostgres(t, defaultMajor).Exec(context.Background(), "postgres", "DROP ROLE IF EXISTS "+role))
	})
	config, err := pgx.ParseConfig(url)
	must(t, err)
	appURL := sharedPostgres(t, defaultMajor).URL(config.Database, role, "app")
	event := outbox.Event{AggregateType: "order", AggregateID: "42", Type: "OrderPaid"}
	must(t, emitters["stdlib"](t, appURL, newWriter(t, outbox.Config{}), event))
	must(t, emitters["stdlib"](t, appURL, newWriter(t, outbox.Config{MessagePrefix: "p"}), event))
	deletes := newWriter(t, outbox.Config{DeleteRows: true})
	if err := emitters["stdlib"](t, appURL, deletes, event); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("DeleteRows without the privileges: %v, want permission denied", err)
	}
	admin := connect(t, url)
	_, err = admin.Exec(testContext(t), "GRANT DELETE, SELECT (id) ON outbox TO "+role)
	must(t, err)
	must(t, emitters["stdlib"](t, appURL, deletes, event))
	_, err = admin.Exec(testContext(t), "DROP OWNED BY "+role)
	must(t, err)
}

// With Lock, the events of a key have the order of the commits, in the column seq as well, which recover and backfill
// read by. The transactions of a key take their time between the statements, so that without the lock they would
// overtake each other.
func TestLockOrdersCommits(t *testing.T) {
	t.Parallel()
	p := newPipeline(t, options{before: []string{
		`CREATE TABLE outbox (id uuid PRIMARY KEY, aggregate_type text NOT NULL, aggregate_id text NOT NULL, event_type text NOT NULL, payload jsonb,
			headers jsonb NOT NULL, seq bigint GENERATED ALWAYS AS IDENTITY)`,
		`CREATE TABLE counter (n bigint NOT NULL)`, `INSERT INTO counter VALUES (0)`,
	}})
	w := newWriter(t, outbox.Config{})
	const writers, each = 4, 25
	var group sync.WaitGroup
	for range writers {
		group.Add(1)
		go func() {
			defer group.Done()
			db, err := sql.Open("pgx", p.url())
			if err != nil {
				t.Error(err)
				return
			}
			defer db.Close()
			for range each {
				if err := emitNext(db, w); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	group.Wait()
	last := ""
	for i, r := range p.records(p.topic("order"), writers*each) {
		if want := fmt.Sprint(i + 1); string(r.Value) != want {
			t.Fatalf("record %d of the key is event %s, after %s", i+1, r.Value, last)
		}
		last = string(r.Value)
	}
	if n := p.queryInt(`SELECT count(*) FROM (SELECT payload::int AS n, row_number() OVER (ORDER BY seq) AS at FROM outbox) r WHERE n <> at`); n > 0 {
		t.Errorf("%d rows are not in the order of seq", n)
	}
}

// emitNext emits an event with the next number. The row of the counter is not locked: only Lock orders the
// transactions.
func emitNext(db *sql.DB, w *outbox.Writer) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := w.Lock(ctx, tx, "order", "42"); err != nil {
		return err
	}
	var n int
	if err := tx.QueryRowContext(ctx, "SELECT n + 1 FROM counter").Scan(&n); err != nil {
		return err
	}
	if err := w.Emit(ctx, tx, outbox.Event{AggregateType: "order", AggregateID: "42", Type: "Numbered", Payload: n}); err != nil {
		return err
	}
	time.Sleep(rand.N(3 * time.Millisecond))
	if _, err := tx.ExecContext(ctx, "UPDATE counter SET n = $1", n); err != nil {
		return err
	}
	return tx.Commit()
}

// Columns with other names and types: the daemon gets what the application emitted.
func TestColumns(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		types   outbox.PayloadType
		id      string
		payload any
		value   string
	}{
		"json":  {outbox.JSON, "uuid NOT NULL", json.RawMessage(`{"b":  1, "a": 1.50}`), `{"b":  1, "a": 1.50}`},
		"text":  {outbox.Text, "text NOT NULL", []byte("ä \\ \"\n"), "ä \\ \"\n"},
		"bytea": {outbox.Bytea, "bigint GENERATED ALWAYS AS IDENTITY", []byte("\x00\xff\\"), "\x00\xff\\"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPipeline(t, options{
				before: []string{`CREATE SCHEMA "Sales"`, `CREATE TABLE "Sales"."Out" (no ` + c.id + `, kind text, account text, what text, body ` + name + `,
					h ` + map[string]string{"json": "json", "text": "text", "bytea": "jsonb"}[name] + `, version int, at timestamptz, tenant text DEFAULT 'eu')`},
				settings: []string{
					`OUTBOXCDC_OUTBOX_TABLE="Sales"."Out"`, "OUTBOXCDC_OUTBOX_COLUMNS_ID=no", "OUTBOXCDC_OUTBOX_COLUMNS_AGGREGATE_TYPE=kind",
					"OUTBOXCDC_OUTBOX_COLUMNS_AGGREGATE_ID=account", "OUTBOXCDC_OUTBOX_COLUMNS_EVENT_TYPE=what", "OUTBOXCDC_OUTBOX_COLUMNS_PAYLOAD=body",
					"OUTBOXCDC_OUTBOX_COLUMNS_HEADERS=h", "OUTBOXCDC_ROUTE_HEADERS=version,at,tenant",
				},
			})
			columns := outbox.Columns{
				ID: "no", AggregateType: "kind", AggregateID: "account", EventType: "what", Payload: "body", Headers: "h", SchemaVersion: "version", OccurredAt: "at",
			}
			if name == "bytea" {
				columns.ID = ""
			}
			w := newWriter(t, outbox.Config{Table: `"Sales"."Out"`, Columns: columns, PayloadType: c.types})
			must(t, emitters["stdlib"](t, p.url(), w, outbox.Event{
				AggregateType: "order", AggregateID: "42", Type: "OrderPaid", Payload: c.payload, Headers: map[string]string{"a": "ü"},
				SchemaVersion: 7, OccurredAt: time.Date(2026, 11, 21, 11, 0, 0, 500000, time.UTC),
			}))
			r := p.records(p.topic("order"), 1)[0]
			if string(r.Key) != "42" || string(r.Value) != c.value {
				t.Errorf("key %q, value %q; want the value %q", r.Key, r.Value, c.value)
			}
			if got, want := headersOf(&r)[1:], []string{"type=OrderPaid", "a=ü", "version=7", "at=2026-11-21 11:00:00.0005+00", "tenant=eu"}; !reflect.DeepEqual(got, want) {
				t.Errorf("headers %q, want %q", got, want)
			}
		})
	}
}

// paid has most of what encoding/json can write.
type paid struct {
	Total  float64            `json:"total"`
	Note   string             `json:"note,omitempty"`
	Lines  []Line             `json:"lines"`
	First  *Line              `json:"first"`
	Maybe  *Line              `json:"maybe,omitempty"`
	Prices map[string]float32 `json:"prices"`
	Tags   map[int]*bool      `json:"tags,omitempty"`
	Blob   []byte             `json:"blob"`
	Fixed  [3]int8            `json:"fixed"`
	Quoted int64              `json:"quoted,string"`
	Tree   *node              `json:"tree"`
	Line
}

// Line is embedded, too.
type Line struct {
	SKU string
	Qty uint16 `json:",omitzero"`
}

type node struct {
	Name string
	Left *node
}

// The schema of a contract is valid, and so is each payload by it.
func TestContractSchema(t *testing.T) {
	t.Parallel()
	outboxtest.Contract(t, outbox.Define[paid]("order", "OrderPaid"))
	file := filepath.Join("testdata", "contract", "order.OrderPaid.json")
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	s, err := compiler.Compile(file)
	must(t, err)
	check := func(p paid) bool {
		b, err := json.Marshal(p)
		must(t, err)
		v, err := jsonschema.UnmarshalJSON(strings.NewReader(string(b)))
		must(t, err)
		if err := s.Validate(v); err != nil {
			t.Logf("%s: %v", b, err)
			return false
		}
		return true
	}
	if !check(paid{}) {
		t.Error("the zero value is not valid")
	}
	if err := quick.Check(check, nil); err != nil {
		t.Error(err)
	}
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(`{"total": "1"}`))
	must(t, err)
	if s.Validate(v) == nil {
		t.Error("a payload with another type and without fields is valid")
	}
}
