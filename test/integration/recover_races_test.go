package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// The same happens if the slot exists, and was advanced beyond a commit that waits for a synchronous standby.
func TestRecoverInvisibleCommitAdvanced(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{pg: ownPostgres(t, defaultMajor, nil)})
	env := o.deduplicating(fence)
	o.deliver(env, "order", "k", 1, 5)
	hidden := o.awaitAbsentStandby()
	ctx := testContext(t)
	_, err := hidden.Exec(ctx, `SET synchronous_commit = on`)
	must(t, err)
	committed := o.commitInvisibly(hidden)
	o.exec(`SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())`, o.name)
	c := o.startCommand(env, "recover", "--yes")
	early := false
	select { // a run that does not wait has compared after fence_wait
	case <-c.ended:
		early = true
	case <-time.After(5 * time.Second):
	}
	o.exec(`SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`)
	must(t, <-committed)
	if code := c.wait(patience); early || code != 0 || !strings.Contains(c.output(), "6 rows compared") {
		t.Errorf("ended before the commit was visible: %v, exit code %d:\n%s", early, code, c.output())
	}
	if _, sum := o.audit(env, 0); sum.Summary.Rows != 6 {
		t.Errorf("%+v\n%s", sum.Summary, c.output())
	}
}

// A slot of others with the name of the recovery slot is neither used nor dropped. If the server cancels the creation
// of the slot, nothing is left of it, and the run is simply run again.
func TestRecoverSlotTrouble(t *testing.T) {
	t.Parallel()
	o, env := newGap(t, 100)
	name := o.name + "_recovery"
	o.exec(`SELECT pg_create_physical_replication_slot($1)`, name)
	says(t, o.recover(env, 1), "slot "+name+" exists, and is not of a recovery (physical")
	o.exec(`SELECT pg_drop_replication_slot($1)`, name) // fails if recover has dropped it

	ctx := testContext(t)
	other, err := pgx.Connect(ctx, o.pg.SuperURL(o.name))
	must(t, err)
	defer other.Close(context.Background()) //nolint:errcheck // a test
	_, err = other.Exec(ctx, `BEGIN; SELECT pg_current_xact_id()`)
	must(t, err)
	c := o.startCommand(env, "recover", "--yes")
	await(t, patience, "the server to cancel the creation of the slot", func() error {
		canceled := o.query(`SELECT count(pg_cancel_backend(pid))::text FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
			AND query LIKE 'SELECT pg_create_logical_replication_slot%'`)
		return waitFor(canceled != "0")
	})
	if code := c.wait(patience); code == 0 || !strings.Contains(c.output(), "create slot "+name) {
		t.Errorf("exit code %d:\n%s", code, c.output())
	}
	if n := slots(o); n != 0 {
		t.Errorf("%d slots are left:\n%s", n, c.output())
	}
	_, err = other.Exec(ctx, `ROLLBACK`)
	must(t, err)
	o.recover(env, 0)
	o.startStreaming(env...)
	o.repeatsAtMost(o.verify(patience), 0, "the canceled run has sent nothing")
}

// A transaction can be committed before the position of a new slot and become visible later, when a synchronous
// standby has confirmed it. The slot does not have its rows, so recover waits until it sees them.
func TestRecoverInvisibleCommit(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{pg: ownPostgres(t, defaultMajor, nil)})
	env := o.deduplicating(fence)
	o.deliver(env, "order", "k", 1, 5)
	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
	hidden := o.awaitAbsentStandby()
	ctx := testContext(t)
	connect := func() *pgx.Conn {
		t.Helper()
		conn, err := pgx.Connect(ctx, o.pg.SuperURL(o.name))
		must(t, err)
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		return conn
	}
	exec := func(conn *pgx.Conn, sql string) {
		t.Helper()
		_, err := conn.Exec(ctx, sql)
		must(t, err)
	}
	// The slot's creation waits for one transaction, and then for another one. In the second phase a transaction can
	// begin and commit.
	first, second := connect(), connect()
	begin := func(conn *pgx.Conn) (xid string) {
		t.Helper()
		exec(conn, `BEGIN`)
		must(t, conn.QueryRow(ctx, `SELECT pg_current_xact_id()::text`).Scan(&xid))
		return xid
	}
	firstID := begin(first)
	c := o.startCommand(env, "recover", "--yes")
	lockWait := func(xid string) {
		t.Helper()
		await(t, patience, "the slot's creation to wait for transaction "+xid, func() error {
			var n int
			err := o.admin.scan(`SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted AND transactionid::text = '`+xid+`'`, &n)
			if err == nil && n == 0 {
				err = context.DeadlineExceeded
			}
			return err
		})
	}
	lockWait(firstID)
	secondID := begin(second)
	exec(first, `ROLLBACK`)
	lockWait(secondID)
	exec(hidden, `SET synchronous_commit = on`)
	committed := o.commitInvisibly(hidden)
	exec(second, `ROLLBACK`)
	time.Sleep(5 * time.Second) // a recover that does not wait for the commit has compared by then
	o.exec(`SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`)
	must(t, <-committed)
	if code := c.wait(patience); code != 0 || !strings.Contains(c.output(), "6 rows compared") {
		t.Errorf("exit code %d:\n%s", code, c.output())
	}
	o.startStreaming(env...)
	if _, sum := o.audit(env, 0); sum.Summary.Rows != 6 {
		t.Errorf("%+v\n%s", sum.Summary, c.output())
	}
}

// Kafka has deleted all records of a topic: rows that are older than the retention may have had one. They are not
// judged, and nothing is adopted before an operator has decided about them.
func TestRecoverEmptiedTopic(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	env := o.deduplicating(fence)
	o.deliver(env, "order", "k", 1, 5)
	o.deleteRecords(o.topic("order"), 3)
	o.exec(`UPDATE outbox SET created_at = now() - interval '9 days'`)
	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
	record := o.newestRecord()
	for _, args := range [][]string{{"recover", "--dry-run"}, {"recover", "--yes"}} {
		out, notes, code := o.runBinary(env, args...)
		for _, want := range []string{": 0 rows are missing", "5 rows are not judged", o.topic("order") + ": 5 rows, first ", "Kafka may have deleted its record", "--unjudged=leave"} {
			if code != 1 || !strings.Contains(out+notes, want) {
				t.Errorf("%v: exit code %d, no %q:\n%s%s", args, code, want, out, notes)
			}
		}
		if n := slots(o); n != 0 || o.newestRecord() != record {
			t.Errorf("%v: %d slots, position record %s, before %s", args, n, o.newestRecord(), record)
		}
	}
	out, notes, code := o.runBinary(env, "audit")
	if code != 1 || !strings.Contains(out, "5 rows are not judged") { // there is no slot
		t.Errorf("audit: exit code %d:\n%s%s", code, out, notes)
	}
	o.start(env...).awaitStop(patience, 79, "outboxcdc recover")
	says(t, o.recover(env, 0, "--unjudged=leave"), "position record written")
	o.startStreaming(env...)
	o.insert("order", "k", 6, 1)
	o.awaitRecords(6)
	o.awaitConfirmed(o.walFlushed(), patience)
	if n := len(o.readAll()); n != 1 {
		t.Errorf("%d records, want that of the new row", n)
	}
}

// A backfill of some rows that was interrupted is continued with the same rows: the other rows may have been sent
// without an id.
func TestRecoverWhere(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	env := o.deduplicating(fence)
	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
	o.exec(`ALTER TABLE outbox ADD COLUMN published_at timestamptz`)
	o.insert("order", "k", 1, 30)
	o.exec(`UPDATE outbox SET published_at = now() WHERE n <= 20`)
	o.exec(`SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, o.name) // where the backfill was killed
	says(t, o.recover(env, 0, "--where", "published_at IS NULL"), "10 records sent")
}

// A run for some rows only does not write the position record that lets the daemon start: it would hide the rows that
// were not compared.
func TestRecoverPartOnly(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	env := o.deduplicating(fence)
	o.deliver(env, "order", "k", 1, 5)
	o.insert("order", "k", 6, 5)
	o.exec(`UPDATE outbox SET created_at = created_at - interval '5 hours'`)
	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
	says(t, o.recover(env, 0, "--since", "1h"), "the daemon will not start yet")
	o.start(env...).awaitStop(patience, 79, "outboxcdc recover")
	says(t, o.recover(env, 0), "5 records sent", "position record written")
	o.startStreaming(env...)
	o.repeatsAtMost(o.verify(patience), 0, "recover subtracts what Kafka has")
}

// A created_at without a time zone can be local time, hours ahead of the times of records.
func TestRecoverLocalTime(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	env := o.deduplicating(fence)
	o.exec(`ALTER TABLE outbox ALTER created_at TYPE timestamp`)
	o.deliver(env, "order", "k", 1, 5)
	o.exec(`UPDATE outbox SET created_at = created_at + interval '5 hours'`)
	since := time.Now().Add(time.Hour).Format(time.RFC3339)
	says(t, o.recover(env, 0, "--since", since), "5 rows compared with 5 records: 0 rows are missing")
}

// awaitAbsentStandby makes the server wait for a standby that does not exist, where a session sets synchronous_commit
// to on. It returns a connection that has these settings.
func (o *outbox) awaitAbsentStandby() *pgx.Conn {
	o.t.Helper()
	o.exec(`ALTER SYSTEM SET synchronous_commit = local`)
	o.exec(`ALTER SYSTEM SET synchronous_standby_names = 'absent'`)
	o.exec(`SELECT pg_reload_conf()`)
	ctx := testContext(o.t)
	conn, err := pgx.Connect(ctx, o.pg.SuperURL(o.name))
	must(o.t, err)
	o.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	await(o.t, patience, "the new settings", func() error {
		var names, commit string
		if err := conn.QueryRow(ctx, `SELECT current_setting('synchronous_standby_names'), current_setting('synchronous_commit')`).Scan(&names, &commit); err != nil {
			return err
		}
		if names != "absent" || commit != "local" {
			return fmt.Errorf("they are %q, %q", names, commit)
		}
		return nil
	})
	return conn
}

// commitInvisibly commits a row whose commit waits for the standby: it is in the WAL, and not visible. The result of
// the commit comes when the wait ends.
func (o *outbox) commitInvisibly(conn *pgx.Conn) <-chan error {
	o.t.Helper()
	committed := make(chan error, 1)
	ctx := testContext(o.t)
	go func() {
		_, err := conn.Exec(ctx, insertInto+`(gen_random_uuid(), 'order', 'hidden', 'added', '{}', '{}', 6)`)
		committed <- err
	}()
	awaitSyncRep(o, 1)
	return committed
}
