package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
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
	pid    func() (pid uint32, err error)
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
					func() (pid uint32, err error) {
						err = tx.QueryRowContext(ctx, `SELECT pg_backend_pid()`).Scan(&pid)
						return pid, err
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
					func(ctx context.Context, e inbox.Event) (bool, error) { return ofPgx.Once(ctx, tx, "c", e) },
					func() (uint32, error) { return tx.Conn().PgConn().PID(), nil },
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
	expect(false)(tx.once(ctx, of("t", strings.ToUpper(random), "", 0)))
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
		holder, err := one.pid()
		must(t, err)
		answers := make(chan error, 1)
		go func() {
			once, err := two.once(ctx, of(name, "a", "", 1))
			if err == nil && once != c.first {
				err = fmt.Errorf("after a %s: %v; want %v", name, once, c.first)
			}
			answers <- err
		}()
		awaitBlocked(t, conn, holder)
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

// F135: a repeat that is looked up when its id has just been pruned is a new event, whose id is stored.
func TestInboxReusedPruned(t *testing.T) {
	useShared(t)
	t.Parallel()
	pg, kafka := startShared(t)
	r := roomOn(t, pg, kafka, "kgo", 1)
	event := inbox.Event{Topic: "t", ID: "a", Content: 1}
	r.exec(`INSERT INTO processed_events VALUES ($1, 't', 'a', '', 1)`, r.Group)
	tx, err := r.pool.Begin(t.Context())
	must(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	isNew, err := r.Store.OnceEach(t.Context(), beforeLook{pgxTx(tx), func() { r.exec(`DELETE FROM processed_events`) }}, r.Group, []inbox.Event{event})
	must(t, err)
	must(t, tx.Commit(t.Context()))
	if !isNew[0] || scan[int](r, `SELECT count(*) FROM processed_events`) != 1 {
		t.Errorf("it is new: %v", isNew)
	}
}

// beforeLook is a transaction that calls do before it looks up an id that is stored.
type beforeLook struct {
	inbox.Tx
	do func()
}

func (b beforeLook) QueryRow(ctx context.Context, query string, args []any, dest ...any) error {
	if strings.HasPrefix(query, "SELECT coalesce(origin") {
		b.do()
	}
	return b.Tx.QueryRow(ctx, query, args, dest...)
}

// awaitBlocked waits until a session waits for a lock that the session of the process holder has.
func awaitBlocked(t *testing.T, conn *pgx.Conn, holder uint32) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for isBlocked := false; !isBlocked; time.Sleep(10 * time.Millisecond) {
		must(t, conn.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND $1::int = ANY (pg_blocking_pids(pid)))`, holder).Scan(&isBlocked))
		if !isBlocked && time.Now().After(deadline) {
			t.Fatalf("no session waits for a lock of process %d", holder)
		}
	}
}
