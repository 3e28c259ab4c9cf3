package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// danglingTx is a transaction that may be prepared and that its session will not end. It would hold its locks for ever.
type danglingTx struct {
	gid     string
	backend string // application_name of its session
	commit  bool   // how it was to end
}

// commitInTwoPhases prepares the open transaction and ends it: one in four is rolled back. It reports whether the
// connection can be used for another transaction.
func (w *writer) commitInTwoPhases(ctx context.Context, conn *pgx.Conn, rnd *rand.Rand, ids []string) bool {
	d := danglingTx{
		gid:     w.o.name + " " + newID(rnd),
		backend: conn.Config().RuntimeParams["application_name"],
		commit:  rnd.IntN(4) > 0,
	}
	if _, err := conn.Exec(ctx, "PREPARE TRANSACTION '"+d.gid+"'"); isRefused(err) { // such as too many: it is rolled back
		w.failed.Add(1)
		w.note(ids, nil)
		return true
	} else if err != nil {
		w.noteUnknown(ids, &d)
		return false
	}
	if _, err := conn.Exec(ctx, d.end(d.commit)); err != nil {
		w.noteUnknown(ids, &d)
		return false
	}
	if !d.commit {
		w.rolledBack.Add(1)
		w.note(ids, nil)
		return true
	}
	w.prepared.Add(1)
	behind, err := scanLSN(conn.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text"))
	if err != nil {
		w.noteCommitted(ids, "")
		return false
	}
	w.noteCommitted(ids, behind.String())
	return true
}

func (d *danglingTx) end(commit bool) string {
	if commit {
		return "COMMIT PREPARED '" + d.gid + "'"
	}
	return "ROLLBACK PREPARED '" + d.gid + "'"
}

// isRefused reports whether the server did not carry out the statement. A FATAL error may follow a statement that was
// carried out.
func isRefused(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.SeverityUnlocalized == "ERROR"
}

// settle ends the remaining prepared transactions. It commits the ones to be committed only while the writer writes,
// because later the table may have been read. It may be called from several goroutines, and while the server is away.
func (w *writer) settle(d time.Duration, commit bool) error {
	w.mu.Lock()
	some := slices.Clone(w.dangling)
	w.mu.Unlock()
	if len(some) == 0 {
		return nil
	}
	db := session{url: w.o.pg.SuperURL(w.o.name)}
	defer db.close()
	for _, left := range some {
		if err := poll(d, func() error { return left.settle(&db, commit && left.commit) }); err != nil {
			return fmt.Errorf("end the prepared transaction %q: %w", left.gid, err)
		}
		w.mu.Lock()
		w.dangling = slices.DeleteFunc(w.dangling, func(e danglingTx) bool { return e.gid == left.gid })
		w.mu.Unlock()
	}
	return nil
}

func (d *danglingTx) settle(db *session, commit bool) error {
	return db.do(func(ctx context.Context, conn *pgx.Conn) error {
		// The session may still be about to prepare or to end it, even if its client is gone.
		var alive int
		err := conn.QueryRow(ctx, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = $1", d.backend).Scan(&alive)
		if err != nil {
			return err
		}
		if alive > 0 {
			return errors.New("its session has not ended")
		}
		var there bool
		if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_prepared_xacts WHERE gid = $1)", d.gid).Scan(&there); err != nil || !there {
			return err
		}
		_, err = conn.Exec(ctx, d.end(commit))
		return err
	})
}

// Two prepared transactions are forgotten, under load. Everything else is delivered and confirmed meanwhile, the
// metrics show the WAL that the server keeps for them, and they outlive a crash of the server and a restart of the
// daemon. The one that is committed in the end is delivered then, the other never.
func TestForgottenPreparedTransactions(t *testing.T) {
	t.Parallel()
	const rows = 10
	amount := fullOrShort(pglogrepl.LSN(256<<20), 32<<20)
	rnd := newRand(t)
	o := newOutbox(t, options{pg: ownPostgres(t, defaultMajor, nil)})
	o.proves("F51", "two prepared transactions forgotten while %d MiB of WAL are written, a crash of Postgres and a restart of the daemon; then one is committed", amount>>20)
	o.sample()
	r := o.startStreaming()
	w := o.write(load{rand: rnd})
	conn := openSession(t, o)
	ctx := testContext(t)
	for _, name := range []string{"late", "never"} {
		tx, err := conn.Begin(ctx)
		must(t, err)
		must(t, insertRows(ctx, tx, "order", name, 1, rows))
		_, err = conn.Exec(ctx, "PREPARE TRANSACTION '"+name+"'")
		must(t, err)
		t.Cleanup(func() { _ = o.pg.Exec(ctx, o.name, "ROLLBACK PREPARED '"+name+"'") }) // it would keep its database from being dropped
	}
	o.writeElsewhere(amount)
	o.awaitHealed()
	o.awaitHeld(r, "at least", func(held float64) bool { return held >= float64(amount) })

	_, err := o.pg.Stop(ctx, pgtest.Immediate)
	must(t, err)
	must(t, o.pg.StartAgain(ctx))
	w.awaitCommits(20)
	o.awaitHealed()
	r.term()
	r = o.startStreaming()
	w.awaitCommits(20)
	o.awaitHealed()
	w.stop()
	before := o.verify(patience) // prepared rows would still be phantoms

	o.exec("COMMIT PREPARED 'late'")
	o.exec("ROLLBACK PREPARED 'never'")
	o.awaitHealed()
	if v := o.verify(patience); v.Rows != before.Rows+rows {
		t.Errorf("%d rows were delivered at COMMIT PREPARED, want %d", v.Rows-before.Rows, rows)
	}
	w = o.write(load{rand: rnd}) // without movement the daemon reads the slot only every 15 s
	o.exec("CHECKPOINT")
	held := o.awaitHeld(r, "less than", func(held float64) bool { return held < float64(amount) })
	w.stop()
	o.repeatsAtMost(o.verify(patience), 0, "a crash of Postgres and a clean restart repeat nothing")
	o.outcome("the metric showed the WAL held, and %d MiB after they had ended", int64(held)>>20)
}

// awaitHeld waits until the WAL that the slot holds back is as wanted, by the daemon's metric and by the server's
// catalog.
func (o *outbox) awaitHeld(r *relay, what string, wanted func(bytes float64) bool) (bytes float64) {
	o.t.Helper()
	await(o.t, patience, what+" so much WAL held by the slot", func() error {
		m, err := r.metrics()
		if err != nil {
			return err
		}
		bytes = m[`outboxcdc_slot_retained_wal_bytes{slot="`+o.name+`"}`]
		var outside float64
		if err := o.admin.scan(o.slotSQL("pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::float8"), &outside); err != nil {
			return err
		}
		if !wanted(bytes) || !wanted(outside) {
			return fmt.Errorf("the metric is %.0f, the server has %.0f", bytes, outside)
		}
		return nil
	})
	return bytes
}

// A transaction that a writer lost while preparing it holds the lock of a key. The writer ends the transaction's
// session and then the transaction, so that its other connections continue; it does so too when it is stopped.
func TestPreparedLeftBehindIsEnded(t *testing.T) {
	o := newOutbox(t, options{})
	w := o.write(load{rand: newRand(t), keys: 1, connections: 2})
	w.awaitCommits(5)
	leave := func(gid string) {
		t.Helper()
		config, err := pgx.ParseConfig(o.pg.SuperURL(o.name))
		must(t, err)
		config.RuntimeParams["application_name"] = "session of " + gid
		conn, err := pgx.ConnectConfig(testContext(t), config)
		must(t, err)
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		for _, sql := range []string{"BEGIN", "UPDATE counter SET n = n WHERE key = 'key-1'", "PREPARE TRANSACTION '" + gid + "'"} {
			_, err := conn.Exec(testContext(t), sql)
			must(t, err)
		}
		w.noteUnknown([]string{gid}, &danglingTx{gid: gid, backend: "session of " + gid, commit: true})
	}
	leave(o.name + " one")
	// A writer that reconnects finds it.
	o.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'writer %' AND datname = $1", o.name)
	w.awaitCommits(5)
	leave(o.name + " two")
	time.AfterFunc(100*time.Millisecond, func() { // its locks keep the writer from stopping
		_ = o.pg.Exec(testContext(t), o.name, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'writer %' AND datname = '"+o.name+"'")
	})
	w.stop()
	var left int
	must(t, o.admin.scan("SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()", &left))
	if left != 0 {
		t.Errorf("%d prepared transactions are left", left)
	}
}
