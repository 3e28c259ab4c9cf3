package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/test/check"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// Payloads that are NULL, empty, or arbitrary bytes, and keys of arbitrary text, arrive unchanged.
func TestOddPayloads(t *testing.T) {
	t.Parallel()
	rounds := fullOrShort(8, 2)
	rnd := newRand(t)
	o := newOutbox(t, options{payload: "bytea"})
	o.proves("F71", "payloads NULL, empty and of every byte, empty and odd keys, %d transactions of each kind", rounds)
	o.sample()
	r := o.startStreaming(smallWindow)
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	payloads := [][]byte{nil, {}, {0}, all, []byte("\xff\xfe\x00 not UTF-8 \x80")}
	keys := []string{"", " ", "schlüssel", "日本語", "\t\n\"\\", strings.Repeat("k", 5000)}
	n := 0
	for range rounds {
		for i, payload := range payloads {
			n++
			o.tx(func(ctx context.Context, tx pgx.Tx) error {
				for _, key := range keys {
					_, err := tx.Exec(ctx, insertInto+"($1, 'order', $2, 'odd', $3, '{}', $4)", newID(rnd), key, payload, n)
					if err != nil {
						return err
					}
				}
				return nil
			})
			if i == len(payloads)/2 {
				r.kill9()
				r = o.startStreaming(smallWindow)
			}
		}
	}
	o.awaitHealed()
	v := o.verify(patience)
	o.boundRepeats(v)
	tombstones := 0
	for _, rec := range o.readAll() {
		if rec.Value == nil {
			tombstones++
		}
	}
	if want := rounds * len(keys); tombstones < want {
		t.Errorf("%d tombstones, want %d or more", tombstones, want)
	}
}

// A NULL key: the daemon stops with 65 before the row and names it. Where it is allowed, the record has no
// key.
func TestNullKey(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	o.proves("F71", "aggregate_id NULL: stopped at, and then delivered with route.null_key=allow")
	o.exec("ALTER TABLE outbox ALTER aggregate_id DROP NOT NULL")
	o.sample()
	o.insert("order", "a", 1, 10)
	older := o.older
	const id = "00000000-0000-4000-8000-00000000002a"
	o.tx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, insertInto+"($1, 'order', NULL, 'added', '{}', '{}', NULL)", id)
		return err
	})
	behind := o.walFlushed()
	o.insert("order", "a", 11, 10)
	r := o.start(stopAtPoison)
	is(t, "exit code", r.awaitExit(patience), 65)
	log := r.entries()
	last := log[len(log)-1]
	if at, err := parsePosition(fmt.Sprint(last["position"])); last["level"] != "ERROR" || last["event_id"] != id || last["cause"] != "null_key" ||
		err != nil || at.commit <= older || at.commit >= behind {
		t.Errorf("the last line of the log does not name the event correctly: %v (%v)", last, err)
	}
	o.awaitSlotFree()
	if now := o.confirmed(); now <= older || now >= behind {
		t.Errorf("the slot confirms %s; want from %s to below %s", now, older, behind)
	}
	o.outcome("exit 65")
	o.startStreaming("OUTBOXCDC_ROUTE_NULL_KEY=allow")
	o.awaitHealed()

	// The reader of the table expects every row to have a key.
	o.exec("UPDATE outbox SET aggregate_id = '' WHERE id = $1", id)
	o.awaitArrived(patience)
	h := o.history()
	for i := range h.Truth {
		if h.Truth[i].ID == id {
			h.Truth[i].Row = check.Row{ID: id, Topic: o.topic("order"), Value: h.Truth[i].Value} // no key, no order
		}
	}
	v := h.judge()
	o.proof.setVerdict(v)
	must(t, v.err())
	o.repeatsAtMost(v, 0, "the events delivered before the stop are confirmed")
}

// postgresIn starts a server whose databases have that encoding.
func postgresIn(t *testing.T, encoding string) *pgtest.Server {
	pg := ownPostgres(t, defaultMajor, nil)
	must(t, pg.Exec(testContext(t), "postgres", "ALTER DATABASE template1 IS_TEMPLATE false"))
	must(t, pg.Exec(testContext(t), "postgres", "DROP DATABASE template1"))
	must(t, pg.Exec(testContext(t), "postgres", "CREATE DATABASE template1 TEMPLATE template0 ENCODING '"+encoding+"' LC_COLLATE 'C' LC_CTYPE 'C'"))
	return pg
}

// A database without an encoding (SQL_ASCII) may hold bytes that are not UTF-8: records have them unchanged, and where
// UTF-8 is required they are poison.
func TestNoEncoding(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{pg: postgresIn(t, "SQL_ASCII"), payload: "text"})
	o.proves("F71", "a database in SQL_ASCII, with bytes that are not UTF-8 in topic, key, value, header, and name of a header")
	o.makeTopic("dead", 1, nil)
	o.startStreaming(smallWindow, "OUTBOXCDC_POISON_POLICY=dead_letter", "OUTBOXCDC_POISON_TOPIC="+o.topic("dead"))
	rnd := newRand(t)
	for n, row := range []string{
		`'order', 'k', '', 'first', '{}'`,
		`'order', 'k' || chr(255), '', 'v' || chr(129), ('{"h": "' || chr(254) || '"}')::jsonb`,
		`'order', 'k', '', 'named', ('{"' || chr(254) || '": 1}')::jsonb`,
		`'order' || chr(200), 'k', '', 'routed', '{}'`,
		`'order', 'k', '', 'last', '{}'`,
	} {
		o.exec(insertInto+"($1, "+row+", $2)", newID(rnd), n)
	}
	var orders, dead []kafkatest.Record
	await(t, patience, "three events and two dead letters", func() error {
		orders, dead = o.readRecords(o.topic("order")), o.readRecords(o.topic("dead"))
		if len(orders) < 3 || len(dead) < 2 {
			return fmt.Errorf("%d and %d; %s", len(orders), len(dead), o.situation())
		}
		return nil
	})
	var values []string
	for _, r := range slices.Concat(orders, dead) {
		values = append(values, string(r.Value))
	}
	slices.Sort(values)
	if want := []string{"first", "last", "named", "routed", "v\x81"}; !slices.Equal(values, want) {
		t.Errorf("%q, want %q", values, want)
	}
	if !slices.ContainsFunc(orders, func(r kafkatest.Record) bool {
		return string(r.Key) == "k\xff" && slices.ContainsFunc(r.Headers, func(h kafkatest.Header) bool { return h.Key == "h" && string(h.Value) == "\xfe" })
	}) {
		t.Errorf("%+v", orders)
	}
}

// The database has another encoding than UTF-8: records are UTF-8.
func TestOtherEncoding(t *testing.T) {
	t.Parallel()
	pg := postgresIn(t, "LATIN1")
	rnd := newRand(t)
	o := newOutbox(t, options{pg: pg, payload: "text"})
	o.exec("SET client_encoding TO 'UTF8'") // for this test's own session; the daemon sets its own
	var encoding string
	must(t, o.admin.scan("SELECT getdatabaseencoding()", &encoding))
	o.proves("F71", "a database in %s, keys and payloads with all of its letters", encoding)
	o.sample()
	o.startStreaming(smallWindow)
	var letters strings.Builder
	for c := rune(0xa1); c <= 0xff; c++ {
		letters.WriteRune(c)
	}
	for n := 1; n <= 50; n++ {
		o.tx(func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, insertInto+"($1, 'order', 'straße', 'geändert', $2, jsonb_build_object('grüße', $3::text), $4)",
				newID(rnd), letters.String(), "ä", n)
			return err
		})
	}
	o.awaitHealed()
	o.repeatsAtMost(o.verify(patience), 0, "nothing failed")
	for _, rec := range o.readAll() {
		if string(rec.Key) != "straße" || string(rec.Value) != letters.String() {
			t.Fatalf("key %q, value %q", rec.Key, rec.Value)
		}
	}
}

// A very large column among small rows. It is delivered up to the size of a Kafka request (100 MiB), if the topic
// allows it.
func TestVeryLargeColumn(t *testing.T) {
	t.Parallel()
	size := fullOrShort(60_000_000, 20_000_000)
	o := newOutbox(t, options{payload: "bytea", configs: map[string]string{"max.message.bytes": "100000000"}})
	o.proves("F71", "a bytea of %d MB among small rows, max.message.bytes 100 MB", size/1_000_000)
	o.memoryForRow(2 * size) // Postgres sends bytea as hex digits
	o.sample()
	o.startStreaming(smallWindow)
	o.insertBytes(1, 20, 100)
	o.insertBytes(21, 1, size)
	o.insertBytes(22, 20, 100)
	o.awaitHealed()
	o.repeatsAtMost(o.verify(patience), 0, "nothing failed")
}

// memoryForRow raises the memory bound by what is promised for a row of that size on the wire.
func (o *outbox) memoryForRow(bytes int) {
	o.memoryUpTo(peakLimit+4*int64(bytes), "four times the largest row as Postgres prints it, beside the window")
}

// A column near Postgres' own limit (1 GB in text form) does not fit into a Kafka request: the daemon stops with 65
// before it, with everything older delivered.
func TestColumnTooLargeForKafka(t *testing.T) {
	skipUnlessProving(t)
	const size = 220_000_000
	o := newOutbox(t, options{payload: "bytea", configs: map[string]string{"max.message.bytes": "100000000"}})
	o.proves("F71", "a bytea of %d MB", size/1_000_000)
	o.memoryForRow(2 * size)
	o.sample()
	r := o.startStreaming(smallWindow, stopAtPoison, "OUTBOXCDC_TUNING_WAL_SENDER_TIMEOUT=60s") // receiving one message may take longer than 15 s
	o.insertBytes(1, 20, 100)
	o.awaitArrived(patience)
	older := o.older
	// Generated by the server, to spare this test's memory.
	o.exec(insertInto+"(gen_random_uuid(), 'order', 'b', 'huge', convert_to(repeat(md5('x'), $1 / 32), 'UTF8'), '{}', NULL)", size)
	behind := o.walFlushed()
	is(t, "exit code", r.awaitExit(2*patience), 65)
	o.outcome("exit 65")
	o.awaitSlotFree()
	if now := o.confirmed(); now <= older || now >= behind {
		t.Errorf("the slot confirms %s; want from %s to below %s", now, older, behind)
	}
	o.exec("DELETE FROM outbox WHERE n IS NULL")
	o.repeatsAtMost(o.check(), 0, "nothing failed")
}
