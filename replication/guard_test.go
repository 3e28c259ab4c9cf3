package replication

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
)

// connect opens a second connection of the superuser.
func (b *bench) connect() *pgx.Conn {
	b.Helper()
	conn, err := pgx.Connect(b.Context(), b.server.SuperURL("postgres"))
	must(b, err)
	b.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// TestGuardPassesGrantsAndRowLocks: a GRANT that is not committed, and a lock of a catalog row, change nothing that
// the server sends. The row keeps the mark of a lock long after the transaction has ended.
func TestGuardPassesGrantsAndRowLocks(t *testing.T) {
	for _, major := range []string{"14", "18"} {
		b := newBench(t, major)
		st := b.open()
		check := func(want error) {
			t.Helper()
			if _, err := st.Check(t.Context()); !errors.Is(err, want) {
				t.Errorf("%s: %s: got %v, want %v", major, b.last, err, want)
			}
		}
		// A transaction that stays open, so that none after it is the oldest.
		old := b.connect()
		for _, sql := range []string{`BEGIN`, `CREATE TABLE unrelated (i int)`} {
			if _, err := old.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		for _, touch := range []string{
			`GRANT SELECT ON outbox TO relay`,
			`SELECT FROM pg_class WHERE oid = 'outbox'::regclass FOR SHARE`,
			`SELECT FROM pg_class WHERE oid = 'outbox'::regclass FOR UPDATE`,
			`CREATE INDEX ON outbox (s)`,
		} {
			b.exec(`BEGIN`)
			b.exec(touch)
			check(nil)
			b.exec(`COMMIT`)
			b.last = touch + `; COMMIT`
			check(nil)
			b.exec(`VACUUM outbox`)
			check(nil)
		}
		for _, lock := range []string{
			`SELECT FROM pg_publication FOR SHARE`,
			`SELECT FROM pg_publication_rel FOR NO KEY UPDATE`,
		} {
			b.exec(`BEGIN`)
			b.exec(lock)
			check(ErrUndecided) // it could be an alteration
			b.exec(`COMMIT`)
			b.last = lock + `; COMMIT`
			check(nil)
			check(nil)
		}
		// An alteration besides is found, also one in a savepoint that was released.
		b.exec(`BEGIN`)
		b.exec(`SAVEPOINT s`)
		b.exec(`ALTER TABLE outbox ADD COLUMN more int`)
		b.exec(`RELEASE s`)
		check(ErrUndecided)
		b.exec(`COMMIT`)
		check(nil)
	}
}

// TestGuardWaitsForCommits: the commit of an alteration waits for a synchronous standby, so the WAL has the
// alteration, the walsender obeys it, and other sessions do not see it. The check must not pass.
func TestGuardWaitsForCommits(t *testing.T) {
	for _, c := range []struct{ major, lock, alter string }{
		{"14", ``, `BEGIN; SAVEPOINT s; ALTER PUBLICATION pub SET (publish = 'delete'); RELEASE s; COMMIT`},
		{"18", ``, `BEGIN; SAVEPOINT s; ALTER TABLE outbox RENAME TO other; RELEASE s; COMMIT`},
		// The xmax of the row is a MultiXact, of the lock and the alteration.
		{"17", `BEGIN; SELECT FROM pg_publication FOR KEY SHARE`, `ALTER PUBLICATION pub SET (publish = 'delete')`},
	} {
		major, alter := c.major, c.alter
		b := newBench(t, major)
		st := b.open()
		if c.lock != "" {
			if _, err := b.connect().Exec(t.Context(), c.lock); err != nil {
				t.Fatal(err)
			}
		}
		b.exec(`ALTER SYSTEM SET synchronous_standby_names = 'absent'`)
		b.exec(`SELECT pg_reload_conf()`)
		b.await(`SELECT current_setting('synchronous_standby_names')`, `absent`)
		writer := b.connect()
		done := make(chan error, 1)
		go func() {
			_, err := writer.Exec(context.Background(), alter)
			done <- err
		}()
		b.await(`SELECT count(*)::text FROM pg_stat_activity WHERE wait_event = 'SyncRep'`, `1`)
		for range 3 {
			if _, err := st.Check(t.Context()); !errors.Is(err, ErrUndecided) {
				t.Errorf("%s: %s: %v", major, alter, err)
			}
		}
		b.exec(`ALTER SYSTEM RESET synchronous_standby_names`)
		b.exec(`SELECT pg_reload_conf()`)
		must(t, <-done)
		if _, err := st.Check(t.Context()); err == nil || KindOf(err) != PublicationChanged {
			t.Errorf("%s: %s, committed: %v", major, alter, err)
		}
	}
}

// TestGuardPassesMultiXacts: several transactions have locked the publication's row, so its xmax is the number of a
// MultiXact, which no transaction has yet. None of them has changed the row.
func TestGuardPassesMultiXacts(t *testing.T) {
	for _, major := range []string{"14", "18"} {
		b := newBench(t, major)
		st := b.open()
		lock := func(sql string) (commit func()) {
			t.Helper()
			conn := b.connect()
			if _, err := conn.Exec(t.Context(), `BEGIN; `+sql); err != nil {
				t.Fatal(err)
			}
			return func() {
				if _, err := conn.Exec(t.Context(), `COMMIT`); err != nil {
					t.Error(err)
				}
			}
		}
		check := func(when string) {
			t.Helper()
			if _, err := st.Check(t.Context()); err != nil {
				t.Errorf("%s: %s: %v", major, when, err)
			}
		}
		// Each set of two or more transactions that have locked the same row is a MultiXact.
		const sessions = 11
		b.exec(fmt.Sprintf(`CREATE TABLE rows AS SELECT generate_series(0, %d) AS n`, 1<<sessions-1))
		var commits []func()
		for i := range sessions {
			commits = append(commits, lock(fmt.Sprintf(`SELECT FROM rows WHERE n & %d <> 0 FOR KEY SHARE`, 1<<i)))
		}
		for _, commit := range commits {
			commit()
		}
		one, two := lock(`SELECT FROM pg_publication FOR SHARE`), lock(`SELECT FROM pg_publication FOR SHARE`)
		b.await(`SELECT (xmax::text::bigint > pg_snapshot_xmax(pg_current_snapshot())::text::bigint)::text FROM pg_publication`, `true`)
		check("locked by two transactions")
		one()
		check("locked by one of two transactions")
		two()
		check("locked by none")
	}
}
