package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/inbox"
)

// faults are the ways in which a handler can fail at a record, each after it has written its effect.
var faults = map[string]func(ctx context.Context, tx pgx.Tx) error{
	"an error": func(context.Context, pgx.Tx) error { return errors.New("the handler's own error") },
	"a failed statement": func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SELECT 1/0`)
		return err
	},
	"a failed statement whose error is dropped": func(ctx context.Context, tx pgx.Tx) error {
		_, _ = tx.Exec(ctx, `SELECT 1/0`)
		return nil
	},
	"a panic": func(context.Context, pgx.Tx) error { panic("out of nowhere") },
	"a panic with open rows": func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Query(ctx, `SELECT generate_series(1, 100000)`); err != nil {
			return err
		}
		panic("out of nowhere")
	},
	"a deferred constraint": func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO child VALUES (1)`)
		return err
	},
	"a constraint that fails at COMMIT only": func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO late VALUES (1)`)
		return err
	},
	"an end of the transaction": func(ctx context.Context, tx pgx.Tx) error {
		if err := tx.Commit(ctx); err != nil {
			return err
		}
		return nil
	},
}

const constraint = `CREATE TABLE IF NOT EXISTS parent (id int PRIMARY KEY);
	CREATE TABLE IF NOT EXISTS child (id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
	CREATE TABLE late (id int); CREATE TABLE seen (id int);
	CREATE FUNCTION is_late() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE me xid; BEGIN
		INSERT INTO seen VALUES (1) RETURNING xmin INTO me; -- in a savepoint, it is not that of the transaction
		ASSERT me <> pg_current_xact_id()::xid, 'not at COMMIT';
		RETURN NULL; END $$;
	CREATE CONSTRAINT TRIGGER late AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION is_late()`

// F137: two records in a batch cannot be handled. Whatever the fault is, they are found, tried again on the schedule,
// and handed over in the same transaction; the other records have their effect once, in order.
func TestInboxDeadLetter(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		r.exec(constraint)
		r.exec(`CREATE TABLE dead (id text, cause text)`)
		r.Retries = []time.Duration{time.Millisecond, 2 * time.Millisecond}
		r.deadLetter = func(ctx context.Context, tx pgx.Tx, rec record, cause error) error {
			_, err := tx.Exec(ctx, `INSERT INTO dead VALUES ($1, $2)`, rec.ID, cause.Error())
			return err
		}
		for name, fault := range faults {
			t.Run(name, func(t *testing.T) {
				outer := r.t
				r.t = t
				defer func() { r.t = outer }()
				r.exec(`TRUNCATE ledger, dead`)
				records := r.events(40, 1)
				poison := []string{string(records[17].Key), string(records[18].Key)}
				good := slices.DeleteFunc(idsOf(records), func(id string) bool { return slices.Contains(poison, id) })
				stop := r.start(func(ctx context.Context, tx pgx.Tx, rec record) error {
					if err := r.ledger(ctx, tx, rec); err != nil {
						return err
					}
					if slices.Contains(poison, rec.ID) {
						return fault(ctx, tx)
					}
					return nil
				})
				r.awaitEnd()
				must(t, stop())
				r.checkLedger(good...)
				rows, err := r.pool.Query(t.Context(), `SELECT id FROM dead`)
				must(t, err)
				dead, err := pgx.CollectRows(rows, pgx.RowTo[string])
				must(t, err)
				if !slices.Equal(dead, poison) {
					t.Errorf("handed over: %v, want %v", dead, poison)
				}
			})
		}
	})
}

// Without a callback, the consumer stops at the record with the effects of the records before it, and the next run
// begins with it.
func TestInboxPoisonStops(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		r.exec(constraint)
		records := r.events(30, 1)
		var calls atomic.Int32
		r.Retries = []time.Duration{time.Millisecond}
		var poison *inbox.PoisonError
		r.runUntilError(&poison, func(ctx context.Context, tx pgx.Tx, rec record) error {
			if err := r.ledger(ctx, tx, rec); err != nil {
				return err
			}
			if rec.Offset == 20 {
				calls.Add(1)
				return errors.New("out of nowhere")
			}
			return nil
		}, "out of nowhere", "offset 20", string(records[20].Key))
		if poison.Offset != 20 || poison.Place != (inbox.Place{Topic: r.Topic}) {
			t.Errorf("%#v", poison)
		}
		r.checkLedger(idsOf(records[:20])...)
		if calls.Load() < 3 {
			t.Errorf("the handler was called %d times: the record was not tried again alone", calls.Load())
		}
		stop := r.start(r.ledger)
		r.awaitEnd()
		must(t, stop())
		r.checkLedger(idsOf(records)...)
	})
}

// A record that is tried again does not keep other partitions waiting, and has its effect once when it succeeds.
func TestInboxRetrySucceeds(t *testing.T) {
	forClients(t, 2, func(t *testing.T, r *room) {
		r.Retries = slices.Repeat([]time.Duration{10 * time.Millisecond}, 100_000)
		var isFixed atomic.Bool
		stop := r.start(func(ctx context.Context, tx pgx.Tx, rec record) error {
			if rec.Partition == 0 && rec.Offset == 3 && !isFixed.Load() {
				return errors.New("not yet")
			}
			return r.ledger(ctx, tx, rec)
		})
		records := r.events(20, 2)
		r.await(func() error {
			if n := scan[int](r, `SELECT count(*) FROM ledger`); n != 13 {
				return fmt.Errorf("%d effects, want 10 of partition 1 and 3 of partition 0", n)
			}
			return nil
		})
		more := r.events(600, 2)
		r.await(func() error {
			if n := scan[int](r, `SELECT count(*) FROM ledger WHERE part = 1`); n != 310 {
				return fmt.Errorf("%d effects of partition 1 while partition 0 waits", n)
			}
			return nil
		})
		isFixed.Store(true)
		r.awaitEnd()
		must(t, stop())
		r.checkLedger(idsOf(slices.Concat(records, more))...)
	})
}

// F139: if the callback fails, the record is not handed over, and the consumer stops with both errors.
func TestInboxDeadLetterFails(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		r.events(3, 1)
		fails := func(context.Context, pgx.Tx, record) error { return errors.New("the cause") }
		r.deadLetter = func(ctx context.Context, tx pgx.Tx, _ record, _ error) error {
			_, err := tx.Exec(ctx, `INSERT INTO missing VALUES (1)`)
			return err
		}
		r.runUntilError(nil, fails, "the cause", `"missing" does not exist`)
		// A callback that makes the connection useless is not called again and again.
		for _, use := range []func(ctx context.Context, tx pgx.Tx) error{
			func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Query(ctx, `SELECT generate_series(1, 10)`)
				return err
			},
			func(ctx context.Context, tx pgx.Tx) error { // as pgx does when a deadline is over
				_ = tx.Conn().Close(ctx)
				return context.DeadlineExceeded
			},
		} {
			calls := 0
			r.deadLetter = func(ctx context.Context, tx pgx.Tx, _ record, _ error) error { calls++; return use(ctx, tx) }
			r.runUntilError(nil, fails, "the cause", "hand the record over")
			if calls != 1 {
				t.Errorf("the callback was called %d times", calls)
			}
		}
	})
}

// F138: a handler that ends the transaction itself has no effect behind it: neither are the records before it lost with
// its ROLLBACK, nor do those behind it go on without a transaction.
func TestInboxHandlerEndsTransaction(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		var records []*kgo.Record
		for i, statement := range []string{"ROLLBACK", "COMMIT"} {
			records = append(records, r.events(10, 1)...)
			bad := idsOf(records)[10*i+4]
			var after atomic.Bool
			r.runUntilError(nil, func(ctx context.Context, tx pgx.Tx, rec record) error {
				if after.Load() {
					t.Errorf("the handler was called for %s after %s", rec.ID, statement)
				}
				err := r.ledger(ctx, tx, rec)
				if err == nil && rec.ID == bad {
					after.Store(true)
					_, err = tx.Exec(ctx, statement)
				}
				return err
			}, "has ended the transaction", fmt.Sprintf("%q", bad), "delete their ids")
			if statement == "COMMIT" { // as the error says
				r.exec(`DELETE FROM processed_events p WHERE NOT EXISTS (SELECT FROM ledger WHERE id = p.id)`)
			}
			stop := r.start(r.ledger)
			r.awaitEnd()
			must(t, stop())
			r.checkLedger(idsOf(records)...)
		}
	})
}

// Deadlocks, serialization failures and killed backends are not the record's fault: the batch is tried again. Each
// happens twice to a record that is alone in its batch: an error that is the record's fault would stop the consumer.
func TestInboxTransient(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		states := []string{"40001", "40P01", "kill"}
		var failures atomic.Int32
		stop := r.start(func(ctx context.Context, tx pgx.Tx, rec record) error {
			if err := r.ledger(ctx, tx, rec); err != nil {
				return err
			}
			n := int(failures.Load()) / 2
			if n != int(rec.Offset) {
				return nil
			}
			failures.Add(1)
			sql := `SELECT pg_terminate_backend(pg_backend_pid())`
			if states[n] != "kill" {
				sql = `DO $$ BEGIN RAISE EXCEPTION 'on purpose' USING ERRCODE = '` + states[n] + `'; END $$`
			}
			_, err := tx.Exec(ctx, sql)
			return fmt.Errorf("wrapped by the handler: %w", err)
		})
		var sent []string
		for range states {
			sent = append(sent, idsOf(r.events(1, 1))...)
			r.awaitEnd()
		}
		must(t, stop())
		r.checkLedger(sent...)
		if int(failures.Load()) != 2*len(states) {
			t.Errorf("%d failures, want %d", failures.Load(), 2*len(states))
		}
	})
}

// A context that ends leaves no half batch, and Run returns nil.
func TestInboxContextEnds(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		records := r.events(600, 1)
		entered := make(chan struct{})
		var calls atomic.Int32
		stop := r.start(func(ctx context.Context, tx pgx.Tx, rec record) error {
			if calls.Add(1) == 550 {
				close(entered)
				<-ctx.Done()
				return ctx.Err()
			}
			return r.ledger(ctx, tx, rec)
		})
		<-entered
		must(t, stop())
		n := scan[int64](r, `SELECT count(*) FROM ledger`)
		if at := scan[int64](r, `SELECT coalesce(sum(next_offset), 0) FROM inbox_marks`); at != n || n >= 600 {
			t.Errorf("%d effects, and the mark is at %d", n, at)
		}
		again := r.start(r.ledger)
		r.awaitEnd()
		must(t, again())
		r.checkLedger(idsOf(records)...)
	})
}

// F132: the row lock of the mark is the fence: while a transaction holds it, no effect of the partition is committed.
func TestInboxFence(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		records := r.events(10, 1)
		stop := r.start(r.ledger)
		r.awaitEnd()
		must(t, stop())
		tx, err := r.pool.Begin(t.Context())
		must(t, err)
		defer func() { _ = tx.Rollback(context.Background()) }() // the pool waits for it
		mark, err := r.Store.Lock(t.Context(), pgxTx(tx), r.Group, inbox.Place{Topic: r.Topic})
		must(t, err)
		records = append(records, r.events(10, 1)...)
		var calls atomic.Int32
		r.start(func(ctx context.Context, tx pgx.Tx, rec record) error { calls.Add(1); return r.ledger(ctx, tx, rec) })
		awaitBlocked(t, pgtestConn(t, r), tx.Conn().PgConn().PID())
		// The successor's work: it handles 4 records of the batch for which the other consumer waits.
		for _, rec := range records[10:14] {
			must(t, r.ledger(t.Context(), tx, record{ID: string(rec.Key)}))
		}
		mark.Next += 4
		must(t, r.Store.Save(t.Context(), pgxTx(tx), r.Group, inbox.Place{Topic: r.Topic}, mark))
		if calls.Load() != 0 {
			t.Error("the handler was called without the lock")
		}
		must(t, tx.Commit(t.Context()))
		r.awaitEnd()
		r.checkLedger(idsOf(records)...)
	})
}

// F133: the mark goes back when the consumer's database fails over to a standby without the last transactions. The
// consumer notices, and handles again what the database has forgotten.
func TestInboxRewound(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		first := r.events(10, 1)
		r.start(r.ledger)
		r.awaitEnd()
		r.exec(`CREATE TABLE saved AS SELECT * FROM inbox_marks; CREATE TABLE ids AS SELECT * FROM processed_events`)
		second := r.events(10, 1)
		r.awaitEnd()
		r.exec(`BEGIN; DELETE FROM ledger WHERE offs >= 10; DELETE FROM inbox_marks; INSERT INTO inbox_marks SELECT * FROM saved; ` +
			`DELETE FROM processed_events WHERE id NOT IN (SELECT id FROM ids); COMMIT`)
		third := r.events(10, 1)
		r.awaitEnd()
		r.checkLedger(idsOf(slices.Concat(first, second, third))...)
	})
}

// F131: the connection breaks after the server has executed COMMIT, and before the answer arrives. The effects are not
// repeated.
func TestInboxCommitAnswerLost(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		cut := newCommitCutter(t, r.Postgres)
		r.consumer.pool = cut.pool
		var calls atomic.Int32
		stop := r.start(func(ctx context.Context, tx pgx.Tx, rec record) error {
			if calls.Add(1)%7 == 0 {
				cut.next.Store(true)
			}
			return r.ledger(ctx, tx, rec)
		})
		var sent []string
		for range 8 { // the last one without a cut
			sent = append(sent, idsOf(r.events(5, 1))...)
			r.awaitEnd()
		}
		// The consumer has seen in the mark that the last batch was committed. Then the database fails over without it.
		calls.Store(-100)
		last := r.event(0)
		before, uses := cut.cuts.Load(), cut.pool.Stat().AcquireCount()
		cut.next.Store(true)
		r.produce(last)
		r.awaitEnd()
		r.await(func() error {
			if s := cut.pool.Stat(); cut.cuts.Load() == before || s.AcquireCount() < uses+2 || s.AcquiredConns() > 0 {
				return errors.New("no connection was cut, or the consumer has not read the mark since")
			}
			return nil
		})
		r.exec(`WITH m AS (UPDATE inbox_marks SET next_offset = next_offset - 1), e AS (DELETE FROM processed_events WHERE id = '` + idsOf([]*kgo.Record{last})[0] + `')
			DELETE FROM ledger WHERE offs = (SELECT max(offs) FROM ledger)`)
		sent = append(append(sent, idsOf([]*kgo.Record{last})...), idsOf(r.events(5, 1))...)
		r.awaitEnd()
		must(t, stop())
		r.checkLedger(sent...)
	})
}
