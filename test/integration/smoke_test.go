package integration

import (
	"context"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// On every supported server, everything that an application may do in a transaction arrives, byte for byte; the slot
// follows within three seconds on a quiet machine; and a clean restart repeats nothing.
func TestSmoke(t *testing.T) {
	t.Parallel()
	for _, major := range append(pgtest.Majors(), pgtest.Upcoming) {
		t.Run(major, func(t *testing.T) {
			if major == pgtest.Upcoming {
				pgtest.NeedUpcoming(t)
			}
			pg := sharedPostgres(t, major)
			t.Run("jsonb", func(t *testing.T) { t.Parallel(); smoke(t, pg, "") })
			t.Run("bytea", func(t *testing.T) { t.Parallel(); smoke(t, pg, "bytea") })
		})
	}
}

func smoke(t *testing.T, pg *pgtest.Server, payload string) {
	o := newOutbox(t, options{pg: pg, payload: payload})
	r := o.startStreaming()
	values := smokeValues(o)
	rnd := newRand(t)
	want := smokeRows(t, o, rnd, values)
	o.awaitArrived(patience)
	took := o.awaitConfirmed(o.walFlushed(), 3*time.Second+busyAllowance)
	t.Logf("confirmed_flush_lsn followed %v after the last record had arrived", took.Round(time.Millisecond))
	r.term()
	o.startStreaming()
	want = append(want, insertSingle(o, rnd, "last", "after the restart", values[0]))
	v := o.verify(patience)
	if v.Repeats != 0 {
		t.Errorf("%d repeats after a clean restart", v.Repeats)
	}
	compareBytes(t, o, want)
}

// expected is one record that must exist with exactly these fields.
type expected struct {
	id, key, typ string
	value        []byte
	headers      []string // between type and outboxcdc-position, as name=value, or name without =value for null
}

// smokeValues returns payloads as SQL literals.
func smokeValues(o *outbox) []string {
	if o.bytea {
		return []string{`'\x00ff0a5c27'::bytea`, `''::bytea`, `'\x7b7d'::bytea`}
	}
	return []string{`'{"b":1,  "a":[true,null,"é\u20ac\n"], "big":12345678901234567890.123456789}'::jsonb`, `'""'::jsonb`, `'0'::jsonb`}
}

// storedPayload returns a payload as delivered: bytes as Postgres prints them, bytea raw.
func storedPayload(o *outbox, value string) (b []byte) {
	sql := "SELECT convert_to((" + value + ")::text, 'UTF8')"
	if o.bytea {
		sql = "SELECT " + value
	}
	must(o.t, o.admin.scan(sql, &b))
	return b
}

// insertSingle commits one row in a transaction of its own.
func insertSingle(o *outbox, rnd *rand.Rand, key, typ, value string) expected {
	id := newID(rnd)
	o.exec(insertInto + fmt.Sprintf(`('%s', 'order', '%s', '%s', %s, '{}', 1)`, id, key, typ, value))
	return expected{id: id, key: key, typ: typ, value: storedPayload(o, value)}
}

func smokeRows(t *testing.T, o *outbox, rnd *rand.Rand, values []string) (want []expected) {
	add := func(e expected) string { e.id = newID(rnd); want = append(want, e); return e.id }

	for i, v := range values {
		want = append(want, insertSingle(o, rnd, fmt.Sprintf("schlüssel %d", i), "type/"+fmt.Sprint(i), v))
	}
	null := add(expected{key: "null", typ: "gone"}) // a tombstone
	o.exec(insertInto + `('` + null + `', 'order', 'null', 'gone', NULL, '{}', 1)`)
	noKey := add(expected{key: "", typ: "", value: storedPayload(o, values[1])})
	o.exec(insertInto + `('` + noKey + `', 'order', '', '', ` + values[1] + `, '{}', 1)`)
	headed := add(expected{
		key: "headed", typ: "t", value: storedPayload(o, values[0]),
		headers: []string{`a=`, `nil`, `obj={"k":[1,2]}`, `trace=ü "x"`, `number=1.50`},
	}) // in jsonb's order
	o.exec(insertInto + `('` + headed + `', 'order', 'headed', 't', ` + values[0] +
		`, '{"trace":"ü \"x\"","nil":null,"obj":{"k":[1, 2]},"number":1.50,"a":""}', 1)`)

	// COPY: all rows of a page share one LSN.
	var rows [][]any
	for i := range 500 {
		id := add(expected{key: "copied", typ: "copy", value: fmt.Appendf(nil, `{"n": %d}`, i)})
		rows = append(rows, []any{id, "order", "copied", "copy", fmt.Sprintf(`{"n": %d}`, i), "{}", i})
		if o.bytea {
			rows[i][4] = []byte(rows[i][4].(string))
		}
	}
	must(t, o.admin.do(func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.CopyFrom(ctx, pgx.Identifier{"outbox"}, []string{"id", "aggregate_type", "aggregate_id", "event_type", "payload", "headers", "n"},
			pgx.CopyFromRows(rows))
		return err
	}))

	// Savepoints, one of them rolled back to; a row deleted by its own transaction is still an event.
	kept := add(expected{key: "saved", typ: "kept", value: storedPayload(o, values[0])})
	kept2 := add(expected{key: "saved", typ: "kept", value: storedPayload(o, values[2])})
	statements := []string{
		"BEGIN", insertInto + `('` + kept + `', 'order', 'saved', 'kept', ` + values[0] + `, '{}', 1)`,
		"SAVEPOINT a", insertInto + `('` + newID(rnd) + `', 'order', 'saved', 'undone', ` + values[0] + `, '{}', 2)`,
		"SAVEPOINT b", insertInto + `('` + newID(rnd) + `', 'order', 'saved', 'undone', ` + values[0] + `, '{}', 3)`,
		"ROLLBACK TO a", insertInto + `('` + kept2 + `', 'order', 'saved', 'kept', ` + values[2] + `, '{}', 2)`,
		"RELEASE a", "COMMIT",
		"BEGIN", insertInto + `('` + newID(rnd) + `', 'order', 'saved', 'rolled back', ` + values[0] + `, '{}', 4)`, "ROLLBACK",
	}
	for _, sql := range statements {
		o.exec(sql)
	}

	var prepared int
	must(t, o.admin.scan("SELECT current_setting('max_prepared_transactions')::int", &prepared))
	if prepared == 0 { // a server of the environment
		t.Log("no prepared transactions: max_prepared_transactions is 0")
		return want
	}
	two := add(expected{key: "prepared", typ: "two phases", value: storedPayload(o, values[0])})
	for _, sql := range []string{
		"BEGIN", insertInto + `('` + two + `', 'order', 'prepared', 'two phases', ` + values[0] + `, '{}', 1)`, "PREPARE TRANSACTION '" + o.name + "_1'",
		"BEGIN", insertInto + `('` + newID(rnd) + `', 'order', 'prepared', 'never', ` + values[0] + `, '{}', 2)`, "PREPARE TRANSACTION '" + o.name + "_2'",
	} {
		o.exec(sql)
	}
	want = append(want, insertSingle(o, rnd, "between", "prepare and commit", values[0]))
	o.exec("ROLLBACK PREPARED '" + o.name + "_2'")
	o.exec("COMMIT PREPARED '" + o.name + "_1'")
	return want
}

// compareBytes compares every record completely with the expected one, without the table.
func compareBytes(t *testing.T, o *outbox, want []expected) {
	t.Helper()
	got := map[string]kafkatest.Record{}
	for _, r := range o.readAll() {
		id, _ := headerOf(r, "id")
		got[id] = r
	}
	if len(got) != len(want) {
		t.Errorf("%d different records, want %d", len(got), len(want))
	}
	for _, w := range want {
		r, ok := got[w.id]
		if !ok {
			t.Errorf("%s (%s) is missing", w.id, w.typ)
			continue
		}
		if string(r.Key) != w.key || r.Key == nil {
			t.Errorf("%s: key %q, want %q", w.typ, r.Key, w.key)
		}
		if !slices.Equal(r.Value, w.value) || (r.Value == nil) != (w.value == nil) {
			t.Errorf("%s: value %s (null: %v), want %s (null: %v)", w.typ, hex.EncodeToString(r.Value), r.Value == nil,
				hex.EncodeToString(w.value), w.value == nil)
		}
		var headers []string
		for _, h := range r.Headers {
			switch {
			case h.Key == "outboxcdc-position": // checked by verify
				headers = append(headers, h.Key)
			case h.Value == nil:
				headers = append(headers, h.Key)
			default:
				headers = append(headers, h.Key+"="+string(h.Value))
			}
		}
		wanted := slices.Concat([]string{"id=" + w.id, "type=" + w.typ}, w.headers, []string{"outboxcdc-position"})
		if !slices.Equal(headers, wanted) {
			t.Errorf("%s: headers\n  %s\nwant\n  %s", w.typ, strings.Join(headers, " | "), strings.Join(wanted, " | "))
		}
	}
}
