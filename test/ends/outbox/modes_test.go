package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"

	"github.com/outboxcdc/outboxcdc/outbox"
	"github.com/outboxcdc/outboxcdc/outbox/pgxoutbox"
)

// emitter writes events in a transaction of its own, through one of the drivers.
type emitter func(t *testing.T, url string, w *outbox.Writer, events ...outbox.Event) error

var emitters = map[string]emitter{
	"pgx": func(t *testing.T, url string, w *outbox.Writer, events ...outbox.Event) error {
		ctx := testContext(t)
		conn, err := pgx.Connect(ctx, url)
		must(t, err)
		defer conn.Close(context.Background())
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if err := pgxoutbox.Lock(ctx, tx, "order", "42"); err != nil {
				return err
			}
			return pgxoutbox.Emit(ctx, w, tx, events...)
		})
	},
	"batch": func(t *testing.T, url string, w *outbox.Writer, events ...outbox.Event) error {
		ctx := testContext(t)
		conn, err := pgx.Connect(ctx, url)
		must(t, err)
		defer conn.Close(context.Background())
		var batch pgx.Batch
		lock := outbox.LockStatement("order", "42")
		batch.Queue(lock.SQL, lock.Args...)
		if err := pgxoutbox.Queue(ctx, w, &batch, events...); err != nil {
			return err
		}
		return conn.SendBatch(ctx, &batch).Close()
	},
	"stdlib": sqlEmitter("pgx"),
	"pq":     sqlEmitter("postgres"),
}

func sqlEmitter(driver string) emitter {
	return func(t *testing.T, url string, w *outbox.Writer, events ...outbox.Event) error {
		ctx := testContext(t)
		db, err := sql.Open(driver, url)
		must(t, err)
		defer db.Close()
		tx, err := db.BeginTx(ctx, nil)
		must(t, err)
		defer func() { _ = tx.Rollback() }()
		if err := w.Lock(ctx, tx, "order", "42"); err != nil {
			return err
		}
		if err := w.Emit(ctx, tx, events...); err != nil {
			return err
		}
		return tx.Commit()
	}
}

func newWriter(t testing.TB, c outbox.Config) *outbox.Writer {
	t.Helper()
	w, err := outbox.New(c)
	must(t, err)
	return w
}

// The record is what the application emitted, whatever the mode and the driver.
func TestModes(t *testing.T) {
	t.Parallel()
	modes := map[string]struct {
		config   outbox.Config
		settings []string
		rows     int // that stay in the table for each event
		value    string
	}{
		"rows":     {rows: 1, value: `{"n": [1, 2], "x": "ü\"\\"}`},
		"deleted":  {config: outbox.Config{DeleteRows: true}, value: `{"n": [1, 2], "x": "ü\"\\"}`},
		"messages": {config: outbox.Config{MessagePrefix: "shop"}, settings: []string{"OUTBOXCDC_MESSAGES_PREFIX=shop"}, value: `{"x":"\u00fc\"\\", "n":[1,2]}`},
	}
	for mode, m := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			p := newPipeline(t, options{settings: m.settings})
			w := newWriter(t, m.config)
			for driver, emit := range emitters {
				id := outbox.NewID()
				must(t, emit(t, p.url(), w,
					outbox.Event{
						ID: id, AggregateType: driver, AggregateID: "42 ü\"", Type: "OrderPaid",
						Payload: json.RawMessage(`{"x":"\u00fc\"\\", "n":[1,2]}`), Headers: map[string]string{"traceparent": "00-4bf9-01", "a": "\t\"ü"},
						SchemaVersion: 2, OccurredAt: time.Date(2026, 11, 21, 11, 0, 0, 123456789, time.FixedZone("", 3600)),
					},
					outbox.Event{AggregateType: driver, AggregateID: "42 ü\"", Type: "OrderClosed"}))
				got := p.records(p.topic(driver), 2)
				if len(got) != 2 {
					t.Fatalf("%s: %d records, want 2", driver, len(got))
				}
				if string(got[0].Key) != `42 ü"` || string(got[0].Value) != m.value {
					t.Errorf("%s: key %s, value %s; want the value %s", driver, got[0].Key, got[0].Value, m.value)
				}
				want := []string{"id=" + id.String(), "type=OrderPaid", "a=\t\"ü", "occurred_at=2026-11-21T10:00:00.123456Z", "schema_version=2", "traceparent=00-4bf9-01"}
				headers := headersOf(&got[0])
				slices.Sort(headers[2:]) // jsonb sorts members by their length
				if !slices.Equal(headers, want) {
					t.Errorf("%s: headers %q, want %q", driver, headers, want)
				}
				if got[1].Value != nil || header(&got[1], "type") != "OrderClosed" || len(header(&got[1], "id")) != 36 || len(headersOf(&got[1])) != 2 {
					t.Errorf("%s: the record of the event without payload and headers is %+v", driver, got[1])
				}
			}
			if n := p.queryInt("SELECT count(*) FROM outbox"); n != m.rows*2*len(emitters) {
				t.Errorf("the table has %d rows, want %d for each event", n, m.rows)
			}
		})
	}
}

// Each supported server has the functions of the statements, and the daemon decodes what they write.
func TestMajors(t *testing.T) {
	t.Parallel()
	for _, major := range majors {
		t.Run(major, func(t *testing.T) {
			t.Parallel()
			p := newPipeline(t, options{major: major, settings: []string{"OUTBOXCDC_MESSAGES_PREFIX=shop"}})
			for i, c := range []outbox.Config{{}, {DeleteRows: true}, {MessagePrefix: "shop"}} {
				var events []outbox.Event
				for range 100 {
					events = append(events, outbox.Event{AggregateType: "order", AggregateID: "42", Type: "OrderPaid", Payload: map[string]int{"n": 1}})
				}
				must(t, emitters["stdlib"](t, p.url(), newWriter(t, c), events...))
				got := p.records(p.topic("order"), (i+1)*100)
				if len(got) != (i+1)*100 {
					t.Errorf("%+v: %d records, want %d", c, len(got), (i+1)*100)
				}
				ids := []string{}
				for _, r := range got {
					ids = append(ids, header(&r, "id"))
				}
				if !slices.IsSorted(ids) {
					t.Errorf("%+v: the records are not in the order of their ids: %s", c, strings.Join(ids, " "))
				}
			}
		})
	}
}

// In a database with another encoding, records are UTF-8 all the same, if the driver says that it sends UTF-8.
func TestEncodings(t *testing.T) {
	t.Parallel()
	p := newPipeline(t, options{encoding: "LATIN1", settings: []string{"OUTBOXCDC_MESSAGES_PREFIX=shop"}})
	for topic, c := range map[string]outbox.Config{"rows": {}, "messages": {MessagePrefix: "shop"}} {
		must(t, emitters["stdlib"](t, p.url()+"&client_encoding=UTF8", newWriter(t, c), outbox.Event{
			AggregateType: topic, AggregateID: "ü", Type: "OrderPaid", Payload: "é", Headers: map[string]string{"a": "ß"},
		}))
		r := p.records(p.topic(topic), 1)[0]
		if string(r.Key) != "ü" || string(r.Value) != `"é"` || header(&r, "a") != "ß" {
			t.Errorf("%s: key %q, value %q, headers %q", topic, r.Key, r.Value, headersOf(&r))
		}
	}
}
