package integration

import (
	"context"
	crand "crypto/rand"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// Large rows that compress well, and many small ones in the same batch: all arrive, whether they are written before the
// daemon starts or while it runs.
func TestLargeCompressibleRows(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{partitions: 1}) // one partition: large and small share a batch
	o.proves("F70", "rows of up to 1.9 MB that compress below max.message.bytes, among small ones, before and after a start")
	o.sample()
	r := o.startStreaming()
	n := 0
	large := func(size int) {
		n++
		o.exec(insertInto+`(gen_random_uuid(), 'order', 'a', 'large', jsonb_build_object('n', $1::int, 'pad', repeat('x', $2)), '{}', $1)`, n, size)
	}
	small := func(count int) {
		for range count {
			n++
			o.exec(insertInto+`(gen_random_uuid(), 'order', 'a', 'small', jsonb_build_object('n', $1::int), '{}', $1)`, n)
		}
	}
	for _, size := range []int{200_000, 700_000, 1_000_000, 1_900_000} {
		large(size)
		r.term()
		small(300)
		r = o.startStreaming()
		o.awaitArrived(patience)
		r.term()
		small(20)
		large(size)
		small(20)
		r = o.startStreaming()
		small(20)
		o.awaitArrived(patience)
	}
	o.repeatsAtMost(o.verify(patience), 0, "each daemon ended by SIGTERM")
}

// A row that cannot be compressed below max.message.bytes stops the daemon with exit code 65, at each start: everything
// older is delivered and confirmed, the slot stays before the row, nothing later is delivered. When the topic allows
// it, the row is delivered in its place.
func TestOversizedRow(t *testing.T) {
	o := newOutbox(t, options{payload: "bytea", partitions: 2, configs: map[string]string{"max.message.bytes": "1048588"}})
	o.proves("F70", "a row of 1.9 MB that does not compress, max.message.bytes 1 MiB, the daemon started twice; then the limit raised")
	o.sample()
	o.insertBytes(1, 10, 100)
	older := o.older
	o.tx(func(ctx context.Context, tx pgx.Tx) error { // 11 small, 12 large, 13 small
		for i, size := range []int{100, 1_900_000, 100} {
			if err := insertBytes(ctx, tx, 11+i, 1, size); err != nil {
				return err
			}
		}
		return nil
	})
	behind := o.walFlushed()
	o.insertBytes(14, 10, 100)
	var id string
	must(t, o.admin.scan("SELECT id::text FROM outbox WHERE n = 12", &id))

	for i := range 2 {
		r := o.start(stopAtPoison)
		if exit := r.awaitExit(patience); exit != 65 {
			t.Fatalf("start %d: exit code %d, want 65", i+1, exit)
		}
		log := r.entries()
		last := log[len(log)-1]
		at, err := parsePosition(fmt.Sprint(last["position"]))
		if last["level"] != "ERROR" || last["event_id"] != id || last["cause"] != "too_large" || last["topic"] != o.topic("order") ||
			last["exit"] != 65.0 || !strings.Contains(fmt.Sprint(last["remedy"]), `add "`+id+`": dead_letter (or skip`) || err != nil || at.commit <= older || at.commit >= behind || at.ordinal != 1 {
			t.Errorf("start %d: the last line of the log does not name the event, or not well: %v (%v)", i+1, last, err)
		}
		o.awaitSlotFree()
		if now := o.confirmed(); now <= older || now >= behind {
			t.Errorf("start %d: the slot confirms %s; want from %s, after the older transactions, to below %s", i+1, now, older, behind)
		}
		there := map[string]bool{}
		for _, rec := range o.readAll() {
			id, _ := headerOf(rec, "id")
			there[id] = true
		}
		for _, row := range o.numberedRows() {
			switch {
			case row.n <= 10 && !there[row.id]:
				t.Errorf("start %d: row %d, of an older transaction, is missing", i+1, row.n)
			case row.n >= 12 && there[row.id]:
				t.Errorf("start %d: row %d, at or after the one that stops the daemon, was delivered", i+1, row.n)
			}
		}
	}
	must(t, kafkatest.SetTopicConfig(testContext(t), o.kafka.Brokers(), o.topic("order"), map[string]string{"max.message.bytes": "3000000"}))
	o.startStreaming()
	o.awaitHealed()
	v := o.verify(patience)
	o.outcome("exit 65 each time")
	o.repeatsAtMost(v, 2, "the row before it in its transaction, at two starts")
	for id, n := range v.repeated {
		if v.at[id].commit < older || n > 2 { // row 11, at two starts
			t.Errorf("id %s was repeated %d times", id, n)
		}
	}
}

// The topic's limit is lowered below the one that the daemon knows, so that the broker refuses a batch. The rest of the
// batch is delivered, the row that is too large stops the daemon with 65, and when the limit is raised again the row is
// delivered in its place.
func TestLimitLoweredUnderWay(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{payload: "bytea", partitions: 1})
	o.proves("F70", "max.message.bytes lowered to 100 kB under a running daemon, then small rows and one of 300 kB; then raised again")
	o.sample()
	limit := func(bytes string) {
		must(t, kafkatest.SetTopicConfig(testContext(t), o.kafka.Brokers(), o.topic("order"), map[string]string{"max.message.bytes": bytes}))
	}
	r := o.startStreaming(smallWindow, stopAtPoison)
	o.insertBytes(1, 10, 100)
	o.awaitArrived(patience) // the daemon has looked up the topic
	limit("100000")
	older := o.older
	o.insertBytes(11, 20, 100)
	o.insertBytes(31, 1, 300_000)
	behind := o.walFlushed()
	o.insertBytes(32, 20, 100)
	is(t, "exit code", r.awaitExit(patience), 65)
	var id string
	must(t, o.admin.scan("SELECT id::text FROM outbox WHERE n = 31", &id))
	log := r.entries()
	last := log[len(log)-1]
	if at, err := parsePosition(fmt.Sprint(last["position"])); last["level"] != "ERROR" || last["event_id"] != id || err != nil || at.commit <= older || at.commit >= behind {
		t.Errorf("the last line of the log does not name the event correctly: %v (%v)", last, err)
	}
	o.awaitSlotFree()
	if now := o.confirmed(); now <= older || now >= behind {
		t.Errorf("the slot confirms %s; want from %s to below %s", now, older, behind)
	}
	limit("1048588")
	o.startStreaming(smallWindow)
	o.awaitHealed()
	o.outcome("exit 65, cause %v", last["cause"])
	o.repeatsAtMost(o.verify(patience), 20, "the other rows of its batch and the rows after it: the 20 small rows, once")
}

// insertBytes commits rows of random bytes in one transaction, numbered on from n.
func (o *outbox) insertBytes(n, count, size int) {
	o.t.Helper()
	o.tx(func(ctx context.Context, tx pgx.Tx) error { return insertBytes(ctx, tx, n, count, size) })
}

func insertBytes(ctx context.Context, tx pgx.Tx, from, count, size int) error {
	for n := from; n < from+count; n++ {
		payload := make([]byte, size)
		_, _ = crand.Read(payload) // never fails
		_, err := tx.Exec(ctx, insertInto+`(gen_random_uuid(), 'order', 'a', 'bytes', $1, '{}', $2)`, payload, n)
		if err != nil {
			return err
		}
	}
	return nil
}

type numberedRow struct {
	id string
	n  int
}

// numberedRows returns the rows with their numbers.
func (o *outbox) numberedRows() (rows []numberedRow) {
	o.t.Helper()
	must(o.t, o.admin.do(func(ctx context.Context, conn *pgx.Conn) error {
		r, err := conn.Query(ctx, "SELECT id::text, n FROM outbox ORDER BY n")
		if err != nil {
			return err
		}
		rows, err = pgx.CollectRows(r, func(c pgx.CollectableRow) (row numberedRow, err error) { return row, c.Scan(&row.id, &row.n) })
		return err
	}))
	return rows
}
