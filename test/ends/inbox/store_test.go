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
	once   func(ctx context.Context, e inbox.Event) (bool, error)
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
					func(ctx context.Context, e inbox.Event) (bool, error) { return store.Once(ctx, tx, "c", e) },
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
					func(ctx context.Context, e inbox.Event) (bool, error) { return ofPgx.Once(ctx, tx, "c", e) },
					func() error { return tx.Commit(ctx) }, func() error { return tx.Rollback(ctx) },
				}
			},
			func(keep time.Duration) (deleted int64, err error) {
				for {
					n, err := ofPgx.PruneChunk(ctx, pool, "c", keep)
					if deleted += n; n == 0 || err != nil {
						return deleted, err
					}
				}
			},
		},
	}
}

func TestInboxStore(t *testing.T) {
	t.Parallel()
	for _, major := range []string{"14", "15", "16", "17", "18"} {
		t.Run(major, func(t *testing.T) {
			pg := pgtest.ForTest(t, pgtest.Options{Major: major})
			store := inbox.Store{Marks: "billing.Marks", Events: "billing.events", ParkedKeys: "billing.keys", ParkedRecords: "billing.records"}
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
	const random = "0f8fad5b-d9cb-469f-a165-70867728950e"
	of := func(topic, id, origin string, content int64) inbox.Event {
		return inbox.Event{Topic: topic, ID: id, Origin: origin, Content: content}
	}

	// What is rolled back was not seen.
	tx := db.begin()
	expect(true)(tx.once(ctx, of("t", "a", "7:5", 1)))
	must(t, tx.undo())
	tx = db.begin()
	expect(true)(tx.once(ctx, of("t", "a", "7:5", 1)))
	expect(false)(tx.once(ctx, of("t", "a", "7:5", 1)))
	must(t, tx.commit())

	tx = db.begin()
	expect(false)(tx.once(ctx, of("t", "a", "7:5", 1)))
	expect(false)(tx.once(ctx, of("t", "a", "", 1))) // the record does not carry its origin
	expect(true)(tx.once(ctx, of("u", "a", "7:5", 1)))
	expect(true)(tx.once(ctx, of("t", `a"b\c,{}`, "", 1)))
	expect(false)(tx.once(ctx, of("t", `a"b\c,{}`, "", 1)))
	expect(true)(tx.once(ctx, of("t", random, "", 0)))
	expect(false)(tx.once(ctx, of("t", random, "8:9", 3))) // nothing generates it again
	for _, e := range []inbox.Event{of("t", "a", "7:6", 1), of("t", "a", "8:5", 1), of("t", "a", "7:5", 2), of("t", "a", "", 2)} {
		var reused *inbox.ReusedIDError
		if _, err := tx.once(ctx, e); !errors.As(err, &reused) || reused.Stored != of("t", "a", "7:5", 1) || reused.Event != e {
			t.Errorf("%v: %v", e, err)
		}
	}
	for _, e := range []inbox.Event{of("t", "", "", 0), of("", "a", "", 0)} {
		if _, err := tx.once(ctx, e); err == nil {
			t.Errorf("%v was accepted", e)
		}
	}
	must(t, tx.commit())

	// A second transaction waits for the first one's end.
	for name, c := range map[string]struct {
		end   func(storeTx) error
		first bool
	}{"commit": {func(tx storeTx) error { return tx.commit() }, false}, "rollback": {func(tx storeTx) error { return tx.undo() }, true}} {
		one, two := db.begin(), db.begin()
		expect(true)(one.once(ctx, of(name, "a", "", 1)))
		answers := make(chan error, 1)
		go func() {
			once, err := two.once(ctx, of(name, "a", "", 1))
			if err == nil && once != c.first {
				err = fmt.Errorf("after a %s: %v; want %v", name, once, c.first)
			}
			answers <- err
		}()
		awaitWaiting(t, conn)
		must(t, c.end(one))
		must(t, <-answers)
		must(t, two.commit())
	}

	// Prune deletes the old ids of one consumer, in several chunks.
	_, err := conn.Exec(ctx, `INSERT INTO billing.events (consumer, topic, id, at) SELECT c, 't', 'old' || n, now() - interval '2 days' FROM generate_series(1, 25000) n, unnest('{c,d}'::text[]) c`)
	must(t, err)
	n, err := db.prune(24 * time.Hour)
	must(t, err)
	if n != 25000 {
		t.Errorf("%d ids were deleted, want 25,000", n)
	}
	var left int
	must(t, conn.QueryRow(ctx, `SELECT count(*) FROM billing.events`).Scan(&left))
	if left != 25000+6 {
		t.Errorf("%d ids are left; want those of the other consumer and the 6 new ones", left)
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
