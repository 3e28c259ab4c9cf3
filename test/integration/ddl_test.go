package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
)

// Columns that the daemon does not use are added, renamed, dropped and retyped under load: it is not affected. Some
// statements rewrite the table: those with a default, also a volatile one. Every second statement runs while the daemon
// is down, so that it starts after the statement.
func TestForeignColumnsComeAndGo(t *testing.T) {
	t.Parallel()
	rnd := newRand(t)
	o := newOutbox(t, options{})
	o.proves("F45", "columns that are not needed added, renamed, dropped and retyped under load, every second time while the daemon is down")
	o.sample()
	r := o.startStreaming()
	w := o.write(load{rand: rnd})
	for i, ddl := range []string{
		`ALTER TABLE outbox ADD COLUMN note text`,
		`ALTER TABLE outbox ADD COLUMN at timestamptz NOT NULL DEFAULT clock_timestamp()`, // rewrites
		`ALTER TABLE outbox DROP COLUMN created_at`,
		`ALTER TABLE outbox DROP COLUMN note, ADD COLUMN note bytea DEFAULT '\x00'`,
		`ALTER TABLE outbox ALTER COLUMN at TYPE text`, // rewrites
		`ALTER TABLE outbox RENAME COLUMN note TO remark`,
	} {
		w.awaitCommits(20)
		if i%2 == 1 {
			r.term()
		}
		o.exec(ddl)
		w.awaitCommits(10)
		if i%2 == 1 {
			r = o.startStreaming()
		}
		if err := o.checkRelays(); err != nil {
			t.Fatalf("statement %d: %v", i, err)
		}
	}
	o.awaitHealed()
	w.stop()
	o.repeatsAtMost(o.verify(patience), 0, "clean stops, nothing failed")
}

// A needed column is renamed while the daemon is down, without load ([TestNeededColumnGoes] tests the rest). The server
// decodes old rows with the catalog of their time, so they are delivered; whether new rows follow or none does, the
// daemon stops after the old ones.
func TestNeededColumnRenamedWhileDown(t *testing.T) {
	for _, c := range []struct {
		name          string
		before, after int
		exit          int
	}{
		{"rows before and after", 10, 3, 79},
		{"rows before only", 10, 0, 79},
		// This process has delivered nothing, so the exit code is that of a wrong configuration.
		{"rows after only", 0, 3, 78},
		{"no rows", 0, 0, 78},
	} {
		t.Run(c.name, func(t *testing.T) {
			pg := sharedPostgres(t, defaultMajor)
			t.Parallel()
			o := newOutbox(t, options{pg: pg})
			for n := 1; n <= c.before; n++ {
				o.insert("order", fmt.Sprint("key-", n%4), n, 1)
			}
			o.exec(`ALTER TABLE outbox RENAME COLUMN payload TO body`)
			limit := walInsert(o)
			for n := 1; n <= c.after; n++ {
				o.insertRenamed(c.before + n)
			}
			if c.after == 0 {
				limit = ^pglogrepl.LSN(0) // any position may be confirmed
			}
			o.checkRenamed(o.start(), c.exit, limit, c.before)
		})
	}
}

// insertRenamed commits one row of a table whose payload column is called body.
func (o *outbox) insertRenamed(n int) {
	o.t.Helper()
	o.tx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, body, n)
			VALUES ('order', 'after', 'added', jsonb_build_object('n', $1::bigint), $1)`, n)
		return err
	})
}

// checkRenamed checks that the daemon stops because of the column, with exactly the rows up to number want delivered.
func (o *outbox) checkRenamed(r *relay, exit int, limit pglogrepl.LSN, want int) {
	o.t.Helper()
	r.awaitStop(patience, exit, "payload")
	o.awaitSlotFree()
	if c := o.confirmed(); c > limit {
		o.t.Errorf("the slot confirms %s, after %s, where the column was renamed", c, limit)
	}
	o.exec(`ALTER TABLE outbox RENAME COLUMN body TO payload`)
	o.exec(`DELETE FROM outbox WHERE n > $1`, want)
	if v := o.check(); v.Rows != want || v.Repeats != 0 {
		o.t.Errorf("%d rows and %d repeats, want %d and none", v.Rows, v.Repeats, want)
	}
}

// The publication has several tables besides the outbox: their rows become no events, also between ours in one
// transaction, and do not hold up the slot. A publication may also be for all tables.
func TestPublicationsWithOtherTables(t *testing.T) {
	for _, c := range []struct{ name, major, publication string }{
		{"named", "14", `CREATE PUBLICATION outboxcdc FOR TABLE outbox, counter`}, // all operations, updates too
		{"all tables", "14", `CREATE PUBLICATION outboxcdc FOR ALL TABLES`},
		{"all tables via root", "18", `CREATE PUBLICATION outboxcdc FOR ALL TABLES WITH (publish = 'insert', publish_via_partition_root = true)`},
		{"schema", "17", `CREATE PUBLICATION outboxcdc FOR TABLES IN SCHEMA public`},
		{"needed columns", "17", `CREATE PUBLICATION outboxcdc FOR TABLE outbox (id, aggregate_type, aggregate_id, event_type, payload, headers)
			WITH (publish = 'insert')`},
	} {
		t.Run(c.name, func(t *testing.T) {
			pg := sharedPostgres(t, c.major)
			t.Parallel()
			o := newOutbox(t, options{pg: pg})
			o.exec(`DROP PUBLICATION outboxcdc`)
			o.exec(`CREATE SCHEMA other`)
			o.exec(`CREATE TABLE other.outbox (LIKE outbox INCLUDING ALL)`) // the same name in another schema
			o.exec(`ALTER TABLE other.outbox REPLICA IDENTITY FULL`)
			o.exec(c.publication)
			recreateSlot(o)
			o.sample()
			o.startStreaming()
			w := o.write(load{rand: newRand(t)}) // updates counter before each insert
			for n := range 20 {
				o.exec(`INSERT INTO other.outbox (aggregate_type, aggregate_id, event_type, n) VALUES ('order', 'x', 'phantom', $1)`, n)
				if n == 10 {
					o.exec(`CREATE TABLE later (id int PRIMARY KEY)`)
					o.exec(`INSERT INTO later VALUES (1)`)
					w.awaitCommits(20)
				}
			}
			w.awaitCommits(20)
			w.stop()
			o.exec(`UPDATE outbox SET event_type = event_type`) // no events
			o.exec(`TRUNCATE other.outbox`)
			o.insert("order", "last", 1, 1)
			if v := o.verify(patience); v.Repeats != 0 {
				t.Errorf("%d repeats", v.Repeats)
			}
		})
	}
}

// partitionOutbox makes the outbox a partitioned table with one leaf, whose columns have another order than the root's.
func (o *outbox) partitionOutbox(publication string) {
	o.t.Helper()
	o.exec(`DROP PUBLICATION outboxcdc`)
	o.exec(`DROP TABLE outbox`)
	o.exec(`CREATE TABLE outbox (id uuid NOT NULL DEFAULT gen_random_uuid(), aggregate_type text NOT NULL, aggregate_id text NOT NULL,
		event_type text NOT NULL, payload jsonb, headers jsonb NOT NULL DEFAULT '{}', n bigint) PARTITION BY RANGE (n)`)
	o.leaf("leaf_1", 0, 100)
	o.exec(publication)
	recreateSlot(o)
}

func (o *outbox) leaf(name string, from, to int) {
	o.t.Helper()
	o.exec(`CREATE TABLE ` + name + ` (dropped int, n bigint, payload jsonb, id uuid NOT NULL DEFAULT gen_random_uuid(),
		headers jsonb NOT NULL DEFAULT '{}', event_type text NOT NULL, aggregate_id text NOT NULL, aggregate_type text NOT NULL)`)
	o.exec(`ALTER TABLE ` + name + ` DROP COLUMN dropped`)
	o.exec(fmt.Sprintf(`ALTER TABLE outbox ATTACH PARTITION %s FOR VALUES FROM (%d) TO (%d)`, name, from, to))
}

// A partitioned outbox is published under its root's name or its leaves' names. Leaves come and go while the daemon
// runs and while it is down.
func TestPartitionedOutbox(t *testing.T) {
	for _, c := range []struct{ name, major, publication string }{
		{"via root", "14", `CREATE PUBLICATION outboxcdc FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)`},
		{"via leaves", "18", `CREATE PUBLICATION outboxcdc FOR TABLE outbox WITH (publish = 'insert')`},
	} {
		t.Run(c.name, func(t *testing.T) {
			pg := sharedPostgres(t, c.major)
			t.Parallel()
			o := newOutbox(t, options{pg: pg})
			o.proves("F46", "leaves with another order of columns attached while the daemon runs and while it is down, %s", c.name)
			o.partitionOutbox(c.publication)
			o.sample()
			r := o.startStreaming()
			o.insert("order", "k", 1, 10)
			o.insert("order", "k", 11, 10)
			o.leaf("leaf_2", 100, 200)
			o.insert("order", "k", 98, 5) // into both leaves
			o.verify(patience)
			r.term()
			o.leaf("leaf_3", 200, 300)
			o.insert("order", "k", 195, 10)
			o.startStreaming()
			o.leaf("leaf_4", 300, 400)
			o.insert("order", "k", 299, 2)
			o.awaitHealed()
			o.repeatsAtMost(o.verify(patience), 0, "a clean stop, nothing failed")
			truth := o.truth() // delivered rows may be dropped
			o.exec(`ALTER TABLE outbox DETACH PARTITION leaf_1`)
			o.exec(`DROP TABLE leaf_2`)
			o.insert("order", "k", 301, 2)
			o.awaitArrived(patience)
			o.awaitSettled()
			for _, x := range o.truth() {
				if !slices.ContainsFunc(truth, func(old row) bool { return old.ID == x.ID }) {
					x.Seq = len(truth) + 1
					truth = append(truth, x)
				}
			}
			if err := judge(truth, o.readAll()).err(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A leaf with undelivered rows leaves the table. Published under the root's name, its rows are still delivered.
// Published under the leaf's name, their table is unknown: after a drop the daemon stops; after a detach it must not
// treat the leaf as a foreign table.
func TestLeafLeavesBeforeItsRowsAreDelivered(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, options, ddl string }{
		{name: "root detach", options: ", publish_via_partition_root = true", ddl: `ALTER TABLE outbox DETACH PARTITION leaf_1`},
		{name: "root drop", options: ", publish_via_partition_root = true", ddl: `DROP TABLE leaf_1`},
		{name: "leaf drop", ddl: `DROP TABLE leaf_1`},
		{
			name: "leaf detach", ddl: `ALTER TABLE outbox DETACH PARTITION leaf_1`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := newOutbox(t, options{})
			o.proves("F46", "a leaf is removed before its rows were delivered: %s", c.name)
			o.partitionOutbox(`CREATE PUBLICATION outboxcdc FOR TABLE outbox WITH (publish = 'insert'` + c.options + `)`)
			o.leaf("leaf_2", 100, 200)
			o.sample()
			end := o.insert("order", "k", 1, 5)
			truth := o.truth()
			o.exec(c.ddl)
			r := o.start()
			if strings.HasPrefix(c.name, "root") {
				var ids []string
				for _, row := range truth {
					ids = append(ids, row.ID)
				}
				await(t, patience, "the rows of the leaf", func() error {
					if left := o.follow.unseenIDs(slices.Clone(ids)); len(left) > 0 {
						return fmt.Errorf("%d have not arrived", len(left))
					}
					return o.checkRelays()
				})
				v := judge(truth, o.readAll())
				must(t, v.err())
				o.proof.setVerdict(v)
				o.repeatsAtMost(v, 0, "nothing failed")
				return
			}
			r.endExpected = true
			await(t, patience, "the daemon to stop, or to continue without them", func() error {
				if o.confirmed() >= end {
					return &finalError{fmt.Errorf("the slot confirms %s, %d of 5 rows are in Kafka", o.confirmed(), o.follow.records())}
				}
				if !r.proc.Exited() {
					return errors.New("neither yet")
				}
				return nil
			})
			r.awaitStop(0, 79, "leaf_1", "remedy: ")
			v := judge(nil, o.readAll())
			must(t, v.err())
			o.proof.setVerdict(v)
			o.outcome("exit 79; its %d rows are neither delivered nor confirmed", len(truth))
		})
	}
}

// A publication that names some leaves, and not the root, loses the rows of the remaining leaves: one published leaf
// must not satisfy the guard.
func TestPublicationOfSomeLeaves(t *testing.T) {
	o := newOutbox(t, options{})
	o.partitionOutbox(`CREATE PUBLICATION outboxcdc FOR TABLE leaf_1 WITH (publish = 'insert')`)
	o.leaf("leaf_2", 100, 200)
	r := o.start()
	r.endExpected = true
	checkStopBefore(t, o, r, o.insert("order", "k", 101, 1))
}

// checkStopBefore checks for exit code 79, and that a transaction which the server does not send is not confirmed.
func checkStopBefore(t *testing.T, o *outbox, r *relay, end pglogrepl.LSN) {
	t.Helper()
	n := 0
	await(t, patience, "the daemon to stop", func() error {
		n++
		o.exec(`INSERT INTO counter VALUES ($1)`, fmt.Sprint("foreign ", n))
		if c := o.confirmed(); c >= end {
			return &finalError{fmt.Errorf("the slot confirms %s; the rows that were never sent end at %s; %d records have arrived", c, end, o.follow.records())}
		}
		if !r.proc.Exited() {
			return errors.New("it runs")
		}
		return nil
	})
	r.awaitStop(0, 79, "remedy: ")
}

// A publication for all tables is not altered when the outbox is dropped or moved.
func TestOutboxLeavesAllTables(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, ddl string }{
		{"unlogged", `ALTER TABLE outbox SET UNLOGGED`},
		{
			"attached", `ALTER TABLE parent ATTACH PARTITION outbox FOR VALUES FROM (0) TO (100)`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := newOutbox(t, options{})
			o.exec(`DROP PUBLICATION outboxcdc`)
			o.exec(`CREATE PUBLICATION outboxcdc FOR ALL TABLES WITH (publish = 'insert', publish_via_partition_root = true)`)
			o.exec(`ALTER TABLE outbox DROP COLUMN seq`) // since PostgreSQL 17, a table with an identity column cannot become a partition
			o.exec(`CREATE TABLE parent (LIKE outbox) PARTITION BY RANGE (n)`)
			recreateSlot(o)
			r := o.startStreaming()
			o.insert("order", "k", 1, 3)
			o.awaitArrived(patience)
			r.endExpected = true
			o.exec(c.ddl)
			checkStopBefore(t, o, r, o.insert("order", "k", 4, 3))
		})
	}
}

// The payload, and the id, change their types: each row is decoded by the relation of its time, and its bytes do not
// change, also if the daemon starts after all of it.
func TestColumnsRetyped(t *testing.T) {
	for _, down := range []bool{false, true} {
		t.Run(fmt.Sprintf("down %v", down), func(t *testing.T) {
			pg := sharedPostgres(t, defaultMajor)
			t.Parallel()
			const rows = 50 // of each type
			o := newOutbox(t, options{pg: pg})
			o.proves("F45", "payload from jsonb to text to bytea, id from uuid to text, between rows; the daemon is down meanwhile: %v", down)
			o.sample()
			if !down {
				o.startStreaming()
			}
			o.insert("order", "k", 1, rows)
			o.exec(`ALTER TABLE outbox ALTER payload TYPE text`)
			o.insert("order", "k", rows+1, rows)
			o.exec(`ALTER TABLE outbox ALTER payload TYPE bytea USING convert_to(payload, 'UTF8'), ALTER id DROP DEFAULT, ALTER id TYPE text`)
			o.exec(`ALTER TABLE outbox ALTER id SET DEFAULT 'id ' || clock_timestamp()`)
			o.bytea = true
			for n := range rows {
				o.exec(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, n) VALUES ('order', 'k', 'added', '\x00ff5c78', $1)`, 2*rows+1+n)
			}
			if down {
				o.startStreaming()
			}
			o.awaitHealed()
			v := o.verify(patience)
			o.repeatsAtMost(v, 0, "nothing failed")
			if v.Rows != 3*rows {
				t.Errorf("%d rows", v.Rows)
			}
		})
	}
}
