package inbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/inbox"
)

// soon is a schedule whose tries follow each other at once, and do not end.
var soon = slices.Repeat([]time.Duration{20 * time.Millisecond}, 100_000)

// park lets the room's consumer park records. An event with a row in the table failing fails.
func (r *room) park(schedule []time.Duration, onDead inbox.OnDead) {
	r.t.Helper()
	r.Park = &inbox.Park{Schedule: schedule, OnDead: onDead}
	r.exec(`ALTER TABLE ledger ADD n bigserial; CREATE TABLE failing (id text PRIMARY KEY)`)
}

// parking is the ledger as a handler, for events that may fail.
func (c *consumer) parking(ctx context.Context, tx pgx.Tx, rec record) error {
	if err := c.ledger(ctx, tx, rec); err != nil {
		return err
	}
	var fails bool
	err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM failing WHERE id = $1)`, rec.ID).Scan(&fails)
	if err == nil && fails {
		err = fmt.Errorf("event %s fails", rec.ID)
	}
	return err
}

// keyed is an event of a key; nil: it has none.
func (r *room) keyed(partition int, key any) *kgo.Record {
	rec := r.event(partition)
	rec.Key = nil
	if text, ok := key.(string); ok {
		rec.Key = []byte(text)
	}
	return rec
}

// produceTogether stores records of one partition as one batch, which a consumer gets as a whole.
func (r *room) produceTogether(records ...*kgo.Record) {
	r.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(r.Brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ManualFlushing())
	must(r.t, err)
	defer client.Close()
	for _, rec := range records {
		rec.Topic = r.Topic
		client.Produce(r.t.Context(), rec, func(_ *kgo.Record, err error) {
			if err != nil {
				r.t.Error(err)
			}
		})
	}
	must(r.t, client.Flush(r.t.Context()))
}

// awaitCount waits until a query returns n, and not longer than the consumer runs.
func (r *room) awaitCount(n int, sql string, args ...any) {
	r.t.Helper()
	r.await(func() error {
		if err := r.ended.Load(); err != nil {
			r.t.Fatalf("the consumer has ended: %v", *err)
		}
		if got := scan[int](r, sql, args...); got != n {
			return fmt.Errorf("%d, want %d: %s", got, n, sql)
		}
		return nil
	})
}

const (
	parkedKeys    = `SELECT count(*) FROM inbox_parked_keys`
	parkedRecords = `SELECT count(*) FROM inbox_parked_records`
)

// checkOrder compares the effects of some events with the order in which they were sent.
func (r *room) checkOrder(records ...*kgo.Record) {
	r.t.Helper()
	want := idsOf(records)
	rows, err := r.pool.Query(r.t.Context(), `SELECT id FROM ledger WHERE id = ANY ($1) ORDER BY n`, want)
	must(r.t, err)
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	must(r.t, err)
	if !slices.Equal(got, want) {
		r.t.Errorf("the effects are of %v, want %v", got, want)
	}
}

// A record that fails holds up its key only. Later records of the key wait behind it without a call of the handler,
// also one that is in the same batch. A record without a key is parked alone. When the cause is gone, the records are
// handled in their order, as they were, and nothing is left in the tables.
func TestParkHoldsTheKey(t *testing.T) {
	forClients(t, 2, func(t *testing.T, r *room) {
		r.park(soon, inbox.Hold)
		var records, ofKey []*kgo.Record
		for i := range 40 {
			rec := r.keyed(0, fmt.Sprint("k", i%4))
			if i%4 == 1 {
				ofKey = append(ofKey, rec)
			}
			records = append(records, rec)
		}
		lone := []*kgo.Record{r.keyed(0, nil), r.keyed(0, nil)}
		records = append(records, lone...)
		tombstone := r.keyed(0, "k1")
		tombstone.Value, tombstone.Timestamp = nil, time.UnixMilli(1_234_567_890_123)
		tombstone.Headers = append(tombstone.Headers, kgo.RecordHeader{Key: "x", Value: []byte{0, 255}}, kgo.RecordHeader{Key: "x", Value: nil})
		records, ofKey = append(records, tombstone), append(ofKey, tombstone)
		empty := []*kgo.Record{r.keyed(1, ""), r.keyed(1, "")} // an empty key is a key
		records = append(records, empty...)
		for _, id := range []string{idsOf(ofKey)[2], idsOf(lone)[0], idsOf(empty)[0]} {
			r.exec(`INSERT INTO failing VALUES ($1)`, id)
		}
		var calls [100]atomic.Int32 // by offset of partition 0
		var got atomic.Pointer[record]
		stop := r.start(func(ctx context.Context, tx pgx.Tx, rec record) error {
			if rec.Partition == 0 {
				calls[rec.Offset].Add(1)
			}
			if rec.ID == idsOf([]*kgo.Record{tombstone})[0] {
				got.Store(&rec)
			}
			return r.parking(ctx, tx, rec)
		})
		r.produce(slices.Clone(records)...)
		r.awaitEnd()
		if n := scan[int](r, `SELECT count(*) FROM ledger`); n != len(records)-8-1-1-2 {
			t.Errorf("%d effects while keys are parked", n)
		}
		if n := scan[int](r, parkedRecords); n != 8+1+1+2 {
			t.Errorf("%d records are parked", n)
		}
		for i := 13; i < 40; i += 4 {
			if n := calls[i].Load(); n != 0 {
				t.Errorf("the handler was called %d times for offset %d, which has to wait", n, i)
			}
		}
		again := scan[time.Time](r, `SELECT max(failed_at) FROM inbox_parked_keys`)
		r.await(func() error { // it is tried again
			if at := scan[time.Time](r, `SELECT max(failed_at) FROM inbox_parked_keys`); !at.After(again) {
				return errors.New("no record was tried again")
			}
			return nil
		})
		if text := scan[string](r, `SELECT last_error FROM inbox_parked_keys WHERE key = 'k1'`); text != "event "+idsOf(ofKey)[2]+" fails" {
			t.Errorf("the error is %q", text)
		}
		r.exec(`TRUNCATE failing`)
		r.awaitCount(0, parkedKeys)
		r.awaitCount(0, parkedRecords)
		more := r.keyed(0, "k1")
		r.produce(more)
		r.awaitEnd()
		must(t, stop())
		r.checkLedger(idsOf(append(records, more))...)
		r.checkOrder(append(ofKey, more)...)
		r.checkOrder(empty...)
		if rec := got.Load(); rec.Value != nil || !rec.Time.Equal(tombstone.Timestamp) || !bytes.Equal(rec.Key, tombstone.Key) || !slices.EqualFunc(rec.Headers, tombstone.Headers, func(a, b kgo.RecordHeader) bool {
			return a.Key == b.Key && bytes.Equal(a.Value, b.Value) && (a.Value == nil) == (b.Value == nil)
		}) {
			t.Errorf("the handler got %+v, want %+v", rec, tombstone)
		}
		counts := &r.Park.Counts
		if p, b := counts.Parked.Load(), counts.Behind.Load(); p != 3 || b != 9 {
			t.Errorf("%d records were counted as parked, and %d behind", p, b)
		}
	})
}

// F137: each fault of a handler parks the record, and fails its tries, also one that makes the connection useless.
func TestParkFaults(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		r.exec(constraint)
		r.park(soon, inbox.Hold)
		var isFixed atomic.Bool
		names := []string{}
		for name := range faults {
			names = append(names, name)
		}
		r.start(func(ctx context.Context, tx pgx.Tx, rec record) error {
			if err := r.ledger(ctx, tx, rec); err != nil || isFixed.Load() || string(rec.Value) == "good" {
				return err
			}
			return faults[string(rec.Value)](ctx, tx)
		})
		var records []*kgo.Record
		for _, name := range names {
			for _, value := range []string{"good", name, "good"} {
				rec := r.keyed(0, name)
				rec.Value = []byte(value)
				records = append(records, rec)
			}
		}
		r.produce(slices.Clone(records)...)
		r.awaitEnd()
		r.awaitCount(2*len(names), parkedRecords)
		r.awaitCount(len(names), parkedKeys+` WHERE failures > 2`)
		isFixed.Store(true)
		r.awaitCount(0, parkedKeys)
		r.checkLedger(idsOf(records)...)
	})
}

// The handler makes the connection useless, and its record is gone when the failure is to be stored. The failure is not
// that of the next record of the key.
func TestParkFailureOfAnother(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		r.park([]time.Duration{time.Millisecond}, inbox.Hold)
		records := []*kgo.Record{r.keyed(0, "k"), r.keyed(0, "k")}
		ids := idsOf(records)
		r.exec(`INSERT INTO failing VALUES ($1)`, ids[0])
		r.start(func(ctx context.Context, tx pgx.Tx, rec record) error {
			if rec.ID == ids[0] && scan[int](r, parkedRecords) == 2 {
				r.exec(`DELETE FROM inbox_parked_records WHERE event_id = $1`, ids[0])
				return errors.Join(context.DeadlineExceeded, tx.Conn().Close(ctx)) // as at a deadline of the handler's own
			}
			return r.parking(ctx, tx, rec)
		})
		r.produceTogether(records...)
		r.awaitEnd()
		r.await(func() error {
			if scan[int](r, parkedKeys+` WHERE next_try IS NULL`) > 0 {
				t.Fatal("the second record has died without a call of the handler")
			}
			if scan[int](r, parkedKeys) > 0 {
				return errors.New("the second record is not handled")
			}
			return nil
		})
		r.checkLedger(ids[1])
	})
}

// A database of another encoding than UTF8 does not have every character of an error. The record is parked anyway.
func TestParkEncoding(t *testing.T) {
	useShared(t)
	t.Parallel()
	pg, kafka := startShared(t)
	r := roomOn(t, pg, kafka, "kgo", 1)
	name := r.Group + "_latin1"
	must(t, pg.Exec(t.Context(), "postgres", "CREATE DATABASE "+name+" ENCODING LATIN1 LOCALE 'C' TEMPLATE template0"))
	r.Postgres = pg.SuperURL(name)
	r.pool.Close()
	var err error
	r.pool, err = pgxpool.New(t.Context(), r.Postgres)
	must(t, err)
	t.Cleanup(r.pool.Close)
	r.exec(r.Store.Schema())
	r.exec(`CREATE TABLE ledger (id text, part int, offs bigint, amount int)`)
	r.park([]time.Duration{time.Millisecond}, inbox.Release)
	records := []*kgo.Record{r.keyed(0, "k"), r.keyed(0, "l")}
	r.start(func(ctx context.Context, tx pgx.Tx, rec record) error {
		if rec.Offset == 0 {
			return errors.New("invalid character 'Ж'")
		}
		return r.ledger(ctx, tx, rec)
	})
	r.produce(slices.Clone(records)...)
	r.awaitEnd()
	r.awaitCount(1, parkedKeys+` WHERE alone AND last_error = $1`, `invalid character '\u0416'`)
	r.checkLedger(idsOf(records[1:])...)
}

// After its last try, a key stays with its records, and later ones go behind it. With Release the dead record is kept
// alone, and its key goes on.
func TestParkDies(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		r.park([]time.Duration{time.Millisecond, 2 * time.Millisecond}, inbox.Hold)
		first, second, third := r.keyed(0, "k"), r.keyed(0, "k"), r.keyed(0, "k")
		r.exec(`INSERT INTO failing VALUES ($1)`, idsOf([]*kgo.Record{first})[0])
		stop := r.start(r.parking)
		r.produce(first, second)
		r.awaitCount(1, parkedKeys+` WHERE next_try IS NULL AND failures = 3`)
		r.produce(third)
		r.awaitEnd()
		r.awaitCount(3, parkedRecords)
		r.checkLedger()
		must(t, stop())
		if n := r.Park.Counts.RetryDied.Load(); n != 1 {
			t.Errorf("%d tries were counted as the last ones", n)
		}

		r.Park = &inbox.Park{Schedule: r.Park.Schedule, OnDead: inbox.Release}
		stop = r.start(r.parking)
		r.exec(`UPDATE inbox_parked_keys SET next_try = now()`) // as outboxcdc parked retry does
		r.awaitCount(1, parkedKeys+` WHERE alone AND next_try IS NULL AND key = 'k'`)
		fourth := r.keyed(0, "k")
		r.produce(fourth)
		r.awaitEnd()
		r.awaitCount(1, parkedRecords)
		r.awaitCount(1, parkedKeys)
		must(t, stop())
		r.checkOrder(second, third, fourth)
		if text := scan[string](r, `SELECT event_id FROM inbox_parked_records`); text != idsOf([]*kgo.Record{first})[0] {
			t.Errorf("%s is kept", text)
		}
	})
}

// A duplicate of a parked record has no effect, wherever it arrives. The connections have no prepared statements, as
// behind a pooler.
func TestParkDuplicates(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		r.park(soon, inbox.Hold)
		conf, err := pgxpool.ParseConfig(r.Postgres)
		must(t, err)
		conf.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
		if r.Client == "sarama" {
			conf.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
		}
		r.consumer.pool, err = pgxpool.NewWithConfig(t.Context(), conf)
		must(t, err)
		t.Cleanup(r.consumer.pool.Close)
		records := []*kgo.Record{r.keyed(0, "k"), r.keyed(0, nil), r.keyed(0, "k")}
		ids := idsOf(records)
		r.exec(`INSERT INTO failing VALUES ($1), ($2)`, ids[0], ids[1])
		r.start(r.parking)
		r.produce(slices.Clone(records)...)
		r.produce(slices.Clone(records)...)
		r.awaitEnd()
		r.awaitCount(6, parkedRecords)
		r.exec(`TRUNCATE failing`)
		r.awaitCount(0, parkedKeys)
		r.produce(slices.Clone(records)...)
		r.awaitEnd()
		r.checkLedger(ids...)
	})
}

// F141: a duplicate of an event that was handled is parked for longer than ids are kept. When it is tried, its id is
// there still.
func TestParkKeepsIDs(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		r.Keep = 100 * time.Millisecond
		r.park([]time.Duration{time.Millisecond}, inbox.Hold)
		r.start(r.parking)
		lone := r.keyed(0, nil)
		id := idsOf([]*kgo.Record{lone})[0]
		r.exec(`INSERT INTO failing VALUES ($1)`, id)
		r.produce(lone)
		r.awaitCount(1, parkedKeys+` WHERE next_try IS NULL`)
		r.exec(`TRUNCATE failing`)
		r.produce(lone) // it is not held, because it has no key
		r.awaitEnd()
		r.checkLedger(id)
		// Ids that are old enough are deleted, and this one would be.
		handled := scan[time.Time](r, `SELECT clock_timestamp()`)
		r.awaitCount(1, `SELECT (clock_timestamp() > $1::timestamptz + interval '1 second')::int`, handled)
		r.exec(`INSERT INTO processed_events (consumer, topic, id, at) VALUES ($1, $2, 'old', now() - interval '1 hour')`, r.Group, r.Topic)
		r.awaitCount(0, `SELECT count(*) FROM processed_events WHERE id = 'old'`)
		r.exec(`UPDATE inbox_parked_keys SET next_try = now()`) // as outboxcdc parked retry does
		r.awaitCount(0, parkedKeys)
		r.checkLedger(id)
	})
}

// F141: while a try is at work, a batch parks behind the key without a wait. While a batch is open that adds a record,
// the key does not end: the record would never be tried.
func TestParkSlowHandlers(t *testing.T) {
	forClients(t, 2, func(t *testing.T, r *room) {
		r.park(soon, inbox.Hold)
		first, second, third := r.keyed(0, "k"), r.keyed(0, "k"), r.keyed(0, "k")
		slow := r.keyed(0, "slow")
		ids := idsOf([]*kgo.Record{first, second, third, slow})
		r.exec(`INSERT INTO failing VALUES ($1)`, ids[0])
		trying, goOn := make(chan bool, 100), make(chan bool)
		inBatch, endBatch := make(chan bool, 100), make(chan bool)
		letGo, letEnd := sync.OnceFunc(func() { close(goOn) }), sync.OnceFunc(func() { close(endBatch) })
		defer letEnd()
		defer letGo()
		var holds atomic.Bool
		stop := r.start(func(ctx context.Context, tx pgx.Tx, rec record) error {
			switch {
			case rec.ID == ids[3]:
				inBatch <- true
				<-endBatch
			case rec.ID == ids[0] && holds.Load():
				trying <- true
				<-goOn
			}
			return r.parking(ctx, tx, rec)
		})
		r.produce(first)
		r.awaitCount(1, parkedKeys)
		holds.Store(true)
		<-trying
		others := r.events(200, 2)
		r.produce(second)
		r.awaitEnd() // although the handler of the try has not returned
		r.awaitCount(2, parkedRecords)
		r.exec(`TRUNCATE failing`)
		r.produceTogether(third, slow)
		<-inBatch
		if n := scan[int](r, parkedRecords); n != 2 {
			t.Fatalf("%d records are parked: the batch that parks the third one is not open", n)
		}
		letGo()
		r.await(func() error {
			if scan[int](r, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event IN ('transactionid', 'tuple')`) > 0 {
				t.Fatal("the try waits for the batch")
			}
			if scan[int](r, `SELECT count(*) FROM ledger WHERE id = $1`, ids[1]) == 0 {
				return errors.New("the second record is not handled")
			}
			return nil
		})
		letEnd()
		r.awaitCount(0, parkedKeys)
		r.awaitEnd()
		must(t, stop())
		r.checkLedger(append(idsOf(others), ids...)...)
		r.checkOrder(first, second, third)
	})
}

// F141: a process that is frozen or killed in a try delays no other process: batches of another process park behind its
// key, and when the server has ended its transaction, the other process tries the record. When the frozen process
// continues, its transaction has no effect.
func TestParkFrozenTry(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		r.park(soon, inbox.Hold)
		r.Session, r.Idle, r.Parking = 2*time.Second, 2*time.Second, true
		first := r.keyed(0, "k")
		id := idsOf([]*kgo.Record{first})[0]
		sent := []*kgo.Record{first}
		r.exec(`INSERT INTO failing VALUES ($1)`, id)
		victim := r.startProcess("victim")
		r.produce(first)
		r.awaitCount(1, parkedKeys)
		for round := range 2 {
			// The handler waits for the table, so the process is in a try.
			tx, err := r.pool.Begin(t.Context())
			must(t, err)
			_, err = tx.Exec(t.Context(), `LOCK TABLE failing`)
			must(t, err)
			awaitBlocked(t, pgtestConn(t, r), tx.Conn().PgConn().PID())
			if round == 0 {
				must(t, victim.Freeze(t.Context()))
			} else {
				must(t, victim.Kill())
			}
			must(t, tx.Commit(t.Context()))
			r.startProcess(fmt.Sprint("other", round))
			for range 3 {
				sent = append(sent, r.keyed(0, "k"))
			}
			r.produce(slices.Clone(sent[len(sent)-3:])...)
			r.awaitEnd()
			r.awaitCount(len(sent), parkedRecords)
			before := scan[int](r, `SELECT coalesce(max(failures), 0) FROM inbox_parked_keys`)
			r.await(func() error {
				if n := scan[int](r, `SELECT coalesce(max(failures), 0) FROM inbox_parked_keys`); n <= before {
					return errors.New("the other process has not tried the record")
				}
				return nil
			})
			if round == 0 {
				must(t, victim.Thaw())
			}
		}
		r.exec(`DELETE FROM failing`)
		r.awaitCount(0, parkedKeys)
		r.awaitEnd()
		r.checkLedger(idsOf(sent)...)
		r.checkOrder(sent...)
	})
}
