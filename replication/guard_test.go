package replication

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
)

// connect opens a second connection of the superuser.
func (b *bench) connect() *pgx.Conn {
	b.Helper()
	conn, err := pgx.Connect(b.Context(), b.server.SuperURL("postgres"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// TestGuardPassesGrantsAndRowLocks: a GRANT that is not committed, and a lock of a catalog row, change nothing that the server sends. The
// row keeps the mark of a lock long after the transaction has ended.
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

// TestGuardWaitsForCommits: the commit of an alteration waits for a synchronous standby, so the WAL has the alteration, the walsender obeys
// it, and other sessions do not see it. The check must not pass.
func TestGuardWaitsForCommits(t *testing.T) {
	for major, alter := range map[string]string{
		"14": `BEGIN; SAVEPOINT s; ALTER PUBLICATION pub SET (publish = 'delete'); RELEASE s; COMMIT`,
		"18": `BEGIN; SAVEPOINT s; ALTER TABLE outbox RENAME TO other; RELEASE s; COMMIT`,
	} {
		b := newBench(t, major)
		st := b.open()
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
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if _, err := st.Check(t.Context()); err == nil || KindOf(err) != PublicationChanged {
			t.Errorf("%s: %s, committed: %v", major, alter, err)
		}
	}
}
