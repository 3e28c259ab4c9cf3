package integration

import (
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/internal/advice"
)

// PostgreSQL 14 does not send the rows of a partition that the walsender had read a row of before it was attached. What
// the warning says finds and delivers them, and loses none.
func TestLatePartitionIsRecovered(t *testing.T) {
	pg := sharedPostgres(t, "14")
	t.Parallel()
	o := newOutbox(t, options{pg: pg})
	o.proves("F46", "PostgreSQL 14: a partition that had a row before it was attached under the running daemon, then `audit` and `recover`, as its warning says")
	o.partitionOutbox(`CREATE PUBLICATION outboxcdc FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)`)
	o.exec(`GRANT SELECT ON outbox TO outboxcdc`)
	env := o.deduplicating(fence)
	r := o.startStreaming(env...)
	o.insert("order", "k", 1, 10)
	o.exec(`CREATE TABLE late (LIKE outbox INCLUDING ALL)`)
	o.exec(`INSERT INTO late (aggregate_type, aggregate_id, event_type, payload, n) VALUES ('order', 'k', 'added', '{}', 100)`)
	o.insert("order", "k", 11, 10)
	o.awaitArrived(patience) // so the walsender has read the row
	o.exec(`ALTER TABLE outbox ATTACH PARTITION late FOR VALUES FROM (100) TO (200)`)
	o.insert("order", "k", 101, 10)
	o.awaitConfirmed(o.insert("order", "k", 21, 10), patience)
	r.awaitLine("a table was attached to the outbox")
	var advised string
	for _, e := range r.entries() {
		if remedy, ok := e["remedy"].(string); ok && strings.HasPrefix(e["msg"].(string), "a table was attached to the outbox") {
			advised = remedy
		}
	}
	says(t, advised, "outboxcdc audit", "outboxcdc recover")
	findings, sum := o.audit(env, 1)
	if len(findings) != 11 || sum.Summary.Delivered != 30 {
		t.Fatalf("%d findings, %+v", len(findings), sum.Summary)
	}
	for _, f := range findings {
		if f.Kind != "missing" {
			t.Errorf("finding %+v", f)
		}
	}
	r.term()
	says(t, o.recover(env, 0), "11 rows are missing", "11 records sent")
	o.startStreaming(env...)
	o.insert("order", "k", 111, 10) // a new walsender sends them
	o.repeatsAtMost(o.verify(patience), 0, "recover sends what Kafka lacks")
	o.audit(env, 0)
	o.outcome("nothing missing, no repeats; what is written later is delivered by the stream")
}

// A table like the outbox has rows, and is dropped before they are read. Nothing shows whether it was a partition, so
// the daemon stops. What it then says is right for rows that are no events: every event arrives, and nothing else.
func TestDroppedTableLikeTheOutbox(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	o.proves("F46", "FOR ALL TABLES: a table with the columns of the outbox is written and dropped before its rows are read")
	o.partitionOutbox(`CREATE PUBLICATION outboxcdc FOR ALL TABLES WITH (publish = 'insert', publish_via_partition_root = true)`)
	o.exec(`GRANT SELECT ON outbox TO outboxcdc`)
	env := o.deduplicating(fence)
	o.deliver(env, "order", "k", 1, 10)
	o.insert("order", "k", 11, 10)
	o.exec(`CREATE TABLE likeness (LIKE outbox INCLUDING ALL)`)
	o.exec(`INSERT INTO likeness (aggregate_type, aggregate_id, event_type, payload, n) VALUES ('order', 'k', 'added', '{}', 21)`)
	o.exec(`DROP TABLE likeness`)
	o.insert("order", "k", 21, 10)
	o.start(env...).awaitStop(patience, 79, "public.likeness", "If they were no events, insert nothing. Then "+advice.DropAndRecover)
	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
	if out, err := o.command(env, "recover", "--yes"); err != nil {
		t.Fatal(err, out)
	}
	o.startStreaming(env...)
	o.insert("order", "k", 31, 10)
	o.repeatsAtMost(o.verify(patience), 0, "recover delivers only what Kafka lacks")
}
