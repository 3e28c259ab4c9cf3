package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A role that may only insert into the outbox writes anything: sizes, characters, names, headers, times, partitions.
// With dead letters none of it stops delivery: every committed row is delivered or a dead letter, and the slot moves.
func TestHostileRows(t *testing.T) {
	t.Parallel()
	rows := fullOrShort(10_000, 400)
	rnd := newRand(t)
	o := newOutbox(t, options{types: []string{"order", "payment", "dead"}, configs: map[string]string{"max.message.bytes": "200000", "retention.ms": "-1"}})
	o.proves("F70 F71", "%d rows of a seeded generator, written by a role with nothing but INSERT on the outbox", rows)
	o.memoryUpTo(peakLimit+4*16<<20, "four times the largest row that the bundled table takes")
	o.exec(`ALTER TABLE outbox ADD ts timestamptz, ADD part int`)
	writer := session{url: o.insertOnly()}
	t.Cleanup(writer.close)
	r := o.startStreaming(append(o.deduplicating(fence), "OUTBOXCDC_POISON_POLICY=dead_letter", "OUTBOXCDC_POISON_TOPIC="+o.topic("dead"),
		"OUTBOXCDC_POISON_OVERSIZE=cut", "OUTBOXCDC_ROUTE_MISSING_TOPIC=1s",
		"OUTBOXCDC_ROUTE_TIMESTAMP=ts", "OUTBOXCDC_ROUTE_PARTITION=part")...)

	h := hostileValues{rnd}
	var ids []string
	refused := map[string]int{}
	for written := 0; written < rows; {
		var added []string
		must(t, writer.do(func(ctx context.Context, conn *pgx.Conn) error {
			return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				for range 1 + rnd.IntN(20) {
					written++
					id := newID(rnd)
					err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
						_, err := tx.Exec(ctx, `INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload, headers, ts, part)
							VALUES ($1, $2, $3, $4, $5::text::jsonb, $6::text::jsonb, $7::text::timestamptz, $8)`,
							id, h.topic(), h.text(), h.text(), h.payload(), h.headers(), h.time(), h.partition())
						return err
					})
					var refusal *pgconn.PgError
					switch {
					case err == nil:
						added = append(added, id)
					case errors.As(err, &refusal):
						refused[refusal.Code]++ // by the table: the application sees the error
					default:
						return err
					}
				}
				return nil
			})
		}))
		ids = append(ids, added...)
	}
	t.Logf("%d rows have committed; refused at INSERT, by SQLSTATE: %v", len(ids), refused)

	for left := len(ids); left > 0; {
		await(t, patience, "more rows to be in a topic", func() error {
			missing := o.follow.absentIDs(ids)
			if len(missing) < left {
				left = len(missing)
				return nil
			}
			return errors.Join(o.checkRelays(), fmt.Errorf("%d of %d are missing, %s for one; %s", left, len(ids), missing[0], o.situation()))
		})
	}
	o.awaitConfirmed(o.walFlushed(), patience)
	m, err := r.metrics()
	must(t, err)
	letters := metricValues(m).sum("outboxcdc_events_dead_lettered_total{")
	if all, kept := o.follow.records(), len(ids); all != kept || letters == 0 || int(letters) >= kept {
		t.Errorf("%d records, %v of them dead letters, of %d rows", all, letters, kept)
	}
	o.exec(`TRUNCATE outbox`) // later rows are compared as usual
	o.insert("order", "k", 1, 10)
	o.awaitHealed()
	o.outcome("%d rows committed, %.0f of them are dead letters; the table refused %v", len(ids), letters, refused)
}

// insertOnly creates a role that can only insert, and returns its connection string.
func (o *outbox) insertOnly() string {
	name := o.name + "_writer"
	o.exec(`CREATE ROLE ` + name + ` LOGIN PASSWORD '` + password + `'`)
	o.t.Cleanup(func() {
		o.exec(`DROP OWNED BY ` + name)
		o.exec(`DROP ROLE ` + name)
	})
	o.exec(`GRANT INSERT ON outbox TO ` + name)
	return o.pg.URL(o.name, name, password)
}

// absentIDs returns the ids that no record has.
func (f *follower) absentIDs(ids []string) (missing []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range ids {
		if f.seen[id] == 0 {
			missing = append(missing, id)
		}
	}
	return missing
}

// hostileValues generates values of columns.
type hostileValues struct{ *rand.Rand }

func pick[T any](h hostileValues, of ...T) T { return of[h.IntN(len(of))] }

// text returns anything that a column of type text accepts, and sometimes more than its CHECK allows.
func (h hostileValues) text() string {
	switch h.IntN(12) {
	case 0:
		return pick(h, "", " ", ".", "..", "null", `"`, `'`, `\`, "\n", "\x01", "\x7f", "\u202e", "\ufeff", "a/b", "a b", "%s", "{aggregate_type}", "Ω≈ç√∫")
	case 1:
		var b strings.Builder
		for range h.IntN(50) {
			if c := rune(1 + h.IntN(0x10ffff)); c < 0xd800 || c > 0xdfff {
				b.WriteRune(c)
			}
		}
		return b.String()
	case 2:
		return strings.Repeat(pick(h, "a", "\x01", "é", "😀"), h.IntN(200))
	case 3:
		if h.IntN(8) == 0 {
			return strings.Repeat("x", 1+h.IntN(70_000))
		}
	}
	return fmt.Sprint("k", h.IntN(50))
}

// topic sometimes returns one that does not exist: the daemon waits for each of those.
func (h hostileValues) topic() string {
	switch h.IntN(60) {
	case 0:
		if h.IntN(2) == 0 {
			return h.text()
		}
		return pick(h, "absent", "absent_too", "__consumer_offsets", "ORDER")
	case 1, 2, 3, 4, 5:
		return pick(h, "dead", "positions", "order ", "a/b", "Ω", "\x01", "", strings.Repeat("t", 300))
	case 6, 7, 8, 9, 10, 11, 12, 13, 14, 15:
		return "payment"
	}
	return "order"
}

// value returns encoded JSON.
func (h hostileValues) value(depth int) string {
	switch h.IntN(9) {
	case 0:
		return pick(h, "null", "true", "0", "-0", "1e-300", "1e30000", "123456789012345678901234567890.5", `""`, "[]", "{}")
	case 1:
		if n := h.IntN(6000); depth == 0 {
			return strings.Repeat("[", n) + strings.Repeat("]", n)
		}
	case 2:
		if depth < 3 {
			parts := make([]string, h.IntN(6))
			for i := range parts {
				parts[i] = inJSON(fmt.Sprint(h.text(), i)) + ":" + h.value(depth+1)
			}
			return "{" + strings.Join(parts, ",") + "}"
		}
	}
	return inJSON(h.text())
}

func inJSON(text string) string {
	b, _ := json.Marshal(text) // of a string: it cannot fail
	return string(b)
}

// payload returns nil or JSON, sometimes so large that its record is cut, or that the table refuses it.
func (h hostileValues) payload() any {
	switch h.IntN(150) {
	case 0, 1, 2, 3:
		return nil
	case 4, 5:
		return inJSON(strings.Repeat("\x01", 20_000+h.IntN(20_000))) // six times as long when escaped
	case 6:
		return inJSON(strings.Repeat(pick(h, "x", "\x01"), h.IntN(3_000_000)))
	case 7:
		var b strings.Builder // does not compress
		for b.Len() < 300_000 {
			fmt.Fprintf(&b, "%016x", h.Uint64())
		}
		return inJSON(b.String())
	}
	return h.value(0)
}

func (h hostileValues) headers() string {
	switch h.IntN(20) {
	case 0:
		return pick(h, "[]", `"x"`, "5", "null", "true", `{"": ""}`, `{"id": "forged"}`, `{"type": 1}`, `{"outboxcdc-position": "0"}`, `{"ce_id": "forged"}`, `{"Content-Type": "x"}`)
	case 1:
		return "{" + inJSON(h.text()) + ":" + h.value(1) + "}"
	case 2:
		var parts []string
		for i := range h.IntN(pick(h, 3, 30, 3000)) {
			parts = append(parts, inJSON(fmt.Sprint("h", i))+":"+inJSON(strings.Repeat("v", h.IntN(100))))
		}
		return "{" + strings.Join(parts, ",") + "}"
	case 3:
		if h.IntN(10) == 0 {
			return `{"large": ` + inJSON(strings.Repeat("v", h.IntN(1_100_000))) + "}"
		}
	}
	return `{"a": "b"}`
}

func (h hostileValues) time() any {
	if h.IntN(8) > 0 {
		return nil
	}
	return pick(h, "infinity", "-infinity", "4713-01-01 00:00:00 BC", "0001-01-01", "1969-12-31", "1970-01-01", "2026-11-23 10:00:00.123456+05:30", "9999-12-31", "294276-12-31")
}

func (h hostileValues) partition() any {
	if h.IntN(8) > 0 {
		return nil
	}
	return pick(h, 0, 1, 2, 3, -1, 2147483647, -2147483648)
}
