package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// The outbox is idle while very much foreign WAL is written: the slot follows, so that the server can remove the WAL.
func TestIdleOutboxFollowsForeignWAL(t *testing.T) {
	t.Parallel()
	amount := fullOrShort(pglogrepl.LSN(1<<30), 64<<20)
	o := newOutbox(t, options{pg: heavyPostgres(t)})
	o.proves("F52", "an idle outbox while %d MiB of WAL are written elsewhere", amount>>20)
	o.sample()
	r := o.startStreaming(steady)
	o.insert("order", "a", 1, 1)
	o.awaitArrived(patience)
	end := o.writeElsewhere(amount)
	o.awaitHealed()
	// The server recomputes how much WAL the slot keeps at a checkpoint, or every 15 s.
	o.exec("CHECKPOINT")
	await(t, patience, "the server to be able to remove the WAL", func() error {
		restart, err := o.admin.lsn(o.slotSQL("restart_lsn::text"))
		if err == nil && restart < end {
			err = fmt.Errorf("restart_lsn is %s, %s was written", restart, end)
		}
		return err
	})
	noReconnects(t, r)
	o.repeatsAtMost(o.verify(patience), 0, "no fault")
}

// heavyPostgres returns the server of a test that writes a lot of WAL, or in a long transaction: the slots of other
// tests would have to read all of it, and could not be created meanwhile.
func heavyPostgres(t *testing.T) *pgtest.Server {
	t.Helper()
	return ownPostgres(t, defaultMajor, nil)
}

// writeElsewhere fills an unpublished table until that much WAL has been written, and returns its end.
func (o *outbox) writeElsewhere(amount pglogrepl.LSN) (end pglogrepl.LSN) {
	o.t.Helper()
	o.exec(`CREATE TABLE IF NOT EXISTS elsewhere (id bigint, filling text)`)
	o.exec(`ALTER TABLE elsewhere ALTER filling SET STORAGE PLAIN`)
	begin, from := time.Now(), o.walFlushed()
	for end = from; end-from < amount; end = o.walFlushed() {
		o.exec(`INSERT INTO elsewhere SELECT g, repeat('x', 2000) FROM generate_series(1, 10000) g`)
	}
	o.t.Logf("%d MiB of WAL elsewhere in %v", (end-from)>>20, time.Since(begin).Round(time.Millisecond))
	return end
}

// Transactions of ten thousand savepoints each, two open at a time, beside the usual load. Half of their rows are
// rolled back, in single savepoints and in nests of fifty: exactly the other half is delivered, in order.
func TestTenThousandSavepoints(t *testing.T) {
	t.Parallel()
	const savepoints, nest = 10_000, 100
	transactions := fullOrShort(6, 2)
	rnd := newRand(t)
	o := newOutbox(t, options{})
	o.proves("F50", "%d transactions of %d savepoints each, half of them rolled back, two at a time", transactions, savepoints)
	o.sample()
	r := o.startStreaming(steady)
	w := o.write(load{rand: rnd})
	var both sync.WaitGroup
	errs := make([]error, 2)
	for n := range errs {
		both.Go(func() {
			for i := range transactions / 2 {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				db := session{url: o.pg.SuperURL(o.name)}
				defer db.close()
				errs[n] = errors.Join(errs[n], db.do(func(_ context.Context, conn *pgx.Conn) error {
					return writeSavepoints(ctx, conn, fmt.Sprint("deep-", n), i*savepoints, savepoints, nest)
				}))
			}
		})
	}
	both.Wait()
	must(t, errors.Join(errs...))
	o.awaitHealed()
	w.stop()
	noReconnects(t, r)
	v := o.verify(patience)
	o.repeatsAtMost(v, 0, "no fault")
	want := transactions*savepoints/2 + int(w.rows.Load())
	o.outcome("exactly the %d rows that were not rolled back", transactions*savepoints/2)
	if v.Rows != want {
		t.Errorf("%d rows in the table, want %d", v.Rows, want)
	}
}

// writeSavepoints commits one transaction of rows numbered on from from, each after a savepoint of its own. Every nest
// of savepoints is written in one round trip: in one nest every second savepoint is rolled back, in the next the inner
// half at once.
func writeSavepoints(ctx context.Context, conn *pgx.Conn, key string, from, savepoints, nest int) error {
	if _, err := conn.Exec(ctx, "BEGIN"); err != nil {
		return err
	}
	for first := from; first < from+savepoints; first += nest {
		var sql strings.Builder
		deep := first/nest%2 == 1
		for n := first; n < first+nest; n++ {
			fmt.Fprintf(&sql, `SAVEPOINT s%d; INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, n)
				VALUES ('order', '%s', 'added', '{"n": %d}', %d);`, n-first, key, n, n)
			switch {
			case deep:
			case n%2 == 1:
				fmt.Fprintf(&sql, `ROLLBACK TO s%d; RELEASE s%d;`, n-first, n-first)
			default:
				fmt.Fprintf(&sql, `RELEASE s%d;`, n-first)
			}
		}
		if deep {
			fmt.Fprintf(&sql, `ROLLBACK TO s%d; RELEASE s0;`, nest/2)
		}
		if _, err := conn.PgConn().Exec(ctx, sql.String()).ReadAll(); err != nil {
			return err
		}
	}
	_, err := conn.Exec(ctx, "COMMIT")
	return err
}

// A storm of tables created and dropped, temporary ones too, and of columns added, some of it rolled back to
// savepoints, beside one long transaction whose changes the server has to keep on disk. Delivery keeps up: the short
// transactions are delivered meanwhile, the long one after its commit.
func TestDDLStorm(t *testing.T) {
	t.Parallel()
	storm := fullOrShort(300, 80)
	rnd := newRand(t)
	o := newOutbox(t, options{pg: ownPostgres(t, defaultMajor, map[string]string{"logical_decoding_work_mem": "64kB"})})
	o.proves("F53", "%d rounds of DDL and temporary tables beside a transaction that writes %d rows meanwhile", storm, 20*storm)
	o.sample()
	r := o.startStreaming(steady)
	w := o.write(load{rand: rnd})
	writing := openSession(t, o)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	tx, err := writing.Begin(ctx)
	must(t, err)
	for i := range storm {
		must(t, insertRows(ctx, tx, "order", "long", 20*i, 20))
		o.exec(fmt.Sprintf(`CREATE TABLE storm_%d (a int PRIMARY KEY, b text)`, i))
		o.exec(`BEGIN; CREATE TEMP TABLE briefly ON COMMIT DROP AS SELECT g FROM generate_series(1, 100) g; CREATE INDEX ON briefly (g); COMMIT`)
		o.exec(fmt.Sprintf(`BEGIN; SAVEPOINT s; ALTER TABLE storm_%d ADD c int; DROP TABLE storm_%d; ROLLBACK TO s; ALTER TABLE storm_%d ADD d int DEFAULT 1; COMMIT`, i, i, i))
		if i >= 10 {
			o.exec(fmt.Sprintf(`DROP TABLE storm_%d`, i-10))
		}
	}
	o.awaitHealed()
	if n := o.follow.records(); n == 0 {
		t.Error("nothing was delivered during the long transaction")
	}
	must(t, tx.Commit(ctx))
	o.awaitHealed()
	w.stop()
	noReconnects(t, r)
	o.repeatsAtMost(o.verify(patience), 0, "no fault")
	var spilled int64
	must(t, o.admin.scan(`SELECT spill_bytes FROM pg_stat_replication_slots WHERE slot_name = '`+o.name+`'`, &spilled))
	o.outcome("the server spilled %d KiB", spilled>>10)
}
