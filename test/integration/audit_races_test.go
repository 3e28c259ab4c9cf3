package integration

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

// The last record of an idle server's WAL can end a segment. The next position is then after the header of the next
// segment, which is not flushed before another record follows: an audit must not wait for it.
func TestAuditAfterSegment(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{pg: ownPostgres(t, defaultMajor, map[string]string{"autovacuum": "off"})})
	env := o.deduplicating(fence)
	o.deliver(env, "order", "k", 1, 10)
	// The background writer logs the running transactions up to 15 s after a record, and then leaves the WAL alone.
	o.exec(`CHECKPOINT`)
	end := o.walFlushed()
	await(t, patience, "the background writer", func() error {
		if o.walFlushed() == end {
			return errors.New("the WAL has not grown")
		}
		return nil
	})
	o.exec(`SELECT pg_switch_wal()`)
	next := func() string { return o.query(`SELECT pg_current_wal_insert_lsn()::text`) }
	segment := next()
	if flushed := o.walFlushed().String(); flushed == segment {
		t.Fatalf("the WAL is flushed to %s, where the next record begins: this proves nothing", flushed)
	}
	if _, sum := o.audit(env, 0, "--wait", "0s"); sum.Summary.Delivered != 10 {
		t.Errorf("%+v", sum.Summary)
	}
	if now := next(); now != segment {
		t.Errorf("the WAL has grown from %s to %s: the audit has waited for it", segment, now)
	}
}

// With synchronous_commit = off a row is visible before its commit is flushed, and so before the slot can send it. It
// waits in the slot.
func TestAuditUnflushed(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{pg: ownPostgres(t, defaultMajor, map[string]string{"wal_writer_delay": "10s", "autovacuum": "off"})})
	env := o.deduplicating(fence)
	o.deliver(env, "order", "k", 1, 10)
	must(t, o.admin.do(func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `SET synchronous_commit = off`)
		return errors.Join(err, pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return insertRows(ctx, tx, "order", "k", 11, 5) }))
	}))
	if _, sum := o.audit(env, 0); sum.Summary.Delivered != 10 || sum.Summary.Waiting != 5 {
		t.Errorf("%+v", sum.Summary)
	}
}

// Daemons can share a dead-letter topic, and ids are unique in one database only: the dead letter of another slot
// explains no row.
func TestAuditOtherSlotsDeadLetter(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{types: []string{"order", "dead"}})
	env := append(o.deduplicating(fence), "OUTBOXCDC_POISON_POLICY=dead_letter", "OUTBOXCDC_POISON_TOPIC="+o.topic("dead"))
	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
	o.insert("order", "k", 1, 1)
	id, payload := o.ids()[0], ""
	must(t, o.admin.scan(`SELECT payload::text FROM outbox`, &payload))
	deadLetter := func(slot string) {
		t.Helper()
		o.produce(&kgo.Record{Topic: o.topic("dead"), Key: []byte("k"), Value: []byte(payload), Headers: []kgo.RecordHeader{
			{Key: "id", Value: []byte(id)}, {Key: "outboxcdc-error", Value: []byte("too_large")}, {Key: "outboxcdc-slot", Value: []byte(slot)},
		}})
	}
	deadLetter("another")
	if findings, sum := o.audit(env, 1); len(findings) != 1 || findings[0].Kind != "missing" || findings[0].ID != id || sum.Summary.DeadLettered != 0 {
		t.Errorf("%+v %+v", findings, sum.Summary)
	}
	says(t, o.recoverDry(env), "1 row is missing")
	deadLetter(o.name)
	if _, sum := o.audit(env, 0); sum.Summary.DeadLettered != 1 {
		t.Errorf("%+v", sum.Summary)
	}
}
