package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/outboxcdc/outboxcdc/inbox"
	"github.com/outboxcdc/outboxcdc/inbox/pgxinbox"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// storeTx is a transaction with the store's methods, for either driver.
type storeTx struct {
	once   func(ctx context.Context, id string) (bool, error)
	after  func(ctx context.Context, at inbox.Place, p inbox.Position) (bool, error)
	commit func() error
	undo   func() error
}

// storeDB begins transactions and deletes old ids.
type storeDB struct {
	begin func() storeTx
	prune func(keep time.Duration) (int64, error)
}

func forDrivers(t *testing.T, url string, store inbox.Store) map[string]storeDB {
	ctx := t.Context()
	db, err := sql.Open("pgx", url)
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	pool, err := pgxpool.New(ctx, url)
	must(t, err)
	t.Cleanup(pool.Close)
	ofPgx := pgxinbox.Store{Store: store}
	return map[string]storeDB{
		"database/sql": {
			func() storeTx {
				tx, err := db.BeginTx(ctx, nil)
				must(t, err)
				return storeTx{
					func(ctx context.Context, id string) (bool, error) { return store.Once(ctx, tx, "c", id) },
					func(ctx context.Context, at inbox.Place, p inbox.Position) (bool, error) {
						return store.After(ctx, tx, "c", at, p)
					},
					tx.Commit, tx.Rollback,
				}
			},
			func(keep time.Duration) (int64, error) { return store.Prune(ctx, db, "c", keep) },
		},
		"pgx": {
			func() storeTx {
				tx, err := pool.Begin(ctx)
				must(t, err)
				return storeTx{
					func(ctx context.Context, id string) (bool, error) { return ofPgx.Once(ctx, tx, "c", id) },
					func(ctx context.Context, at inbox.Place, p inbox.Position) (bool, error) {
						return ofPgx.After(ctx, tx, "c", at, p)
					},
					func() error { return tx.Commit(ctx) }, func() error { return tx.Rollback(ctx) },
				}
			},
			func(keep time.Duration) (int64, error) { return ofPgx.Prune(ctx, pool, "c", keep) },
		},
	}
}

func TestInboxStore(t *testing.T) {
	t.Parallel()
	for _, major := range []string{"14", "15", "16", "17", "18"} {
		t.Run(major, func(t *testing.T) {
			pg := pgtest.ForTest(t, pgtest.Options{Major: major})
			store := inbox.Store{Marks: "billing.Marks", Events: "billing.events", Systems: []uint64{7, 8}}
			for name := range forDrivers(t, pg.SuperURL("postgres"), store) {
				t.Run(name, func(t *testing.T) {
					must(t, pg.Exec(t.Context(), "postgres", "DROP SCHEMA IF EXISTS billing CASCADE", "CREATE SCHEMA billing", store.Schema()))
					url := pg.SuperURL("postgres")
					testStore(t, forDrivers(t, url, store)[name], pgtest.Connect(t, url))
				})
			}
		})
	}
}

func testStore(t *testing.T, db storeDB, conn *pgx.Conn) {
	ctx := t.Context()
	expect := func(want bool) func(got bool, err error) {
		return func(got bool, err error) {
			t.Helper()
			if err != nil || got != want {
				t.Errorf("first is %v, %v; want %v", got, err, want)
			}
		}
	}
	at := inbox.Place{Topic: "orders", Partition: 3}
	pos := func(system uint64, timeline uint32, lsn uint64, ordinal uint32) inbox.Position {
		return inbox.Position{System: system, Timeline: timeline, CommitLSN: lsn, Ordinal: ordinal}
	}

	// What is rolled back was not seen.
	tx := db.begin()
	expect(true)(tx.once(ctx, "a"))
	expect(true)(tx.after(ctx, at, pos(7, 1, 100, 0)))
	must(t, tx.undo())
	tx = db.begin()
	expect(true)(tx.once(ctx, "a"))
	expect(false)(tx.once(ctx, "a"))
	expect(true)(tx.after(ctx, at, pos(7, 1, 100, 0)))
	expect(false)(tx.after(ctx, at, pos(7, 1, 100, 0)))
	must(t, tx.commit())

	tx = db.begin()
	expect(false)(tx.once(ctx, "a"))
	expect(false)(tx.after(ctx, at, pos(7, 1, 99, 5)))
	expect(true)(tx.after(ctx, at, pos(7, 1, 100, 1)))
	expect(true)(tx.after(ctx, at, pos(7, 2, 50, 0))) // after a failover
	expect(false)(tx.after(ctx, at, pos(7, 1, 100, 1)))
	var order *inbox.OrderError
	if _, err := tx.after(ctx, at, pos(7, 1, 200, 0)); !errors.As(err, &order) {
		t.Errorf("a record that comes too late and was never handled: %v", err)
	}
	expect(true)(tx.after(ctx, inbox.Place{Topic: "orders", Partition: 4}, pos(7, 1, 1, 0)))
	expect(true)(tx.after(ctx, inbox.Place{Topic: "others", Partition: 3}, pos(7, 1, 1, 0)))
	expect(true)(tx.after(ctx, at, pos(8, 1, 1, 0)))  // the successor
	expect(false)(tx.after(ctx, at, pos(7, 1, 1, 0))) // the old system has a position of its own
	var other *inbox.OtherSystemError
	if _, err := tx.after(ctx, at, pos(9, 1, 1, 0)); !errors.As(err, &other) {
		t.Errorf("a system that is not listed: %v", err)
	}
	if _, err := tx.after(ctx, at, inbox.Position{}); err == nil {
		t.Error("a record without a position was accepted")
	}
	if _, err := tx.once(ctx, ""); err == nil {
		t.Error("an empty id was accepted")
	}
	must(t, tx.commit())

	// A second transaction waits for the first one's end.
	for name, c := range map[string]struct {
		end   func(storeTx) error
		first bool
	}{"commit": {func(tx storeTx) error { return tx.commit() }, false}, "rollback": {func(tx storeTx) error { return tx.undo() }, true}} {
		p := inbox.Place{Topic: name}
		tx := db.begin()
		expect(true)(tx.after(ctx, p, pos(7, 1, 4, 0)))
		must(t, tx.commit())
		one, two := db.begin(), db.begin()
		expect(true)(one.after(ctx, p, pos(7, 1, 5, 0)))
		expect(true)(one.once(ctx, name))
		answers := make(chan error, 1)
		go func() {
			after, err := two.after(ctx, p, pos(7, 1, 5, 0))
			once, err2 := two.once(ctx, name)
			if err = errors.Join(err, err2); err == nil && (after != c.first || once != c.first) {
				err = fmt.Errorf("after a %s: by position %v, by id %v; want %v", name, after, once, c.first)
			}
			answers <- err
		}()
		awaitWaiting(t, conn)
		must(t, c.end(one))
		must(t, <-answers)
		must(t, two.commit())
	}

	// One row per partition, however many records.
	for n := range 300 {
		tx := db.begin()
		expect(true)(tx.after(ctx, inbox.Place{Topic: "many", Partition: int32(n % 2)}, pos(7, 1, uint64(1+n), 0)))
		must(t, tx.commit())
	}
	var rows int
	must(t, conn.QueryRow(ctx, `SELECT count(*) FROM billing."Marks" WHERE topic = 'many'`).Scan(&rows))
	if rows != 2 {
		t.Errorf("%d rows for 2 partitions", rows)
	}

	// Prune deletes the old ids of one consumer, in several chunks.
	_, err := conn.Exec(ctx, `INSERT INTO billing.events SELECT c, 'old' || n, now() - interval '2 days' FROM generate_series(1, 25000) n, unnest('{c,d}'::text[]) c`)
	must(t, err)
	n, err := db.prune(24 * time.Hour)
	must(t, err)
	if n != 25000 {
		t.Errorf("%d ids were deleted, want 25,000", n)
	}
	var left int
	must(t, conn.QueryRow(ctx, `SELECT count(*) FROM billing.events`).Scan(&left))
	if left != 25000+3 {
		t.Errorf("%d ids are left; want those of the other consumer and the 3 new ones", left)
	}
}

// awaitWaiting waits until a session waits for a lock.
func awaitWaiting(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for waiting := 0; waiting == 0; {
		must(t, conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'`).Scan(&waiting))
		if time.Now().After(deadline) {
			t.Fatal("no session waits for a lock")
		}
	}
}
