package pgxoutbox_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxcdc/outboxcdc/outbox"
	"github.com/outboxcdc/outboxcdc/outbox/pgxoutbox"
	"github.com/outboxcdc/outboxcdc/outbox/pgxoutbox/pgxoutboxtest"
)

// OrderPaid is emitted when an order is paid.
var OrderPaid = outbox.Define[map[string]string]("order", "OrderPaid")

// Pay is a method of an application.
func Pay(ctx context.Context, pool *pgxpool.Pool, writer *outbox.Writer, order string) error {
	event, err := OrderPaid.Event(order, map[string]string{"total": "9.50"})
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "UPDATE orders SET state = 'paid' WHERE id = $1", order); err != nil {
			return err
		}
		return pgxoutbox.Emit(ctx, writer, tx, event)
	})
}

// PayInOneRoundTrip sends the whole transaction as one batch.
func PayInOneRoundTrip(ctx context.Context, pool *pgxpool.Pool, writer *outbox.Writer, order string) error {
	event, err := OrderPaid.Event(order, map[string]string{"total": "9.50"})
	if err != nil {
		return err
	}
	var batch pgx.Batch
	batch.Queue("UPDATE orders SET state = 'paid' WHERE id = $1", order)
	if err := pgxoutbox.Queue(ctx, writer, &batch, event); err != nil {
		return err
	}
	return pool.SendBatch(ctx, &batch).Close()
}

func ExampleQueue() {
	_ = PayInOneRoundTrip
}

func ExampleEmit() {
	_ = Pay
}

func event(id string) outbox.Event {
	return outbox.Event{AggregateType: "order", AggregateID: id, Type: "OrderPaid"}
}

// Events of a part of the transaction that is rolled back are not there, and the remaining events are in their order.
func TestRecorder(t *testing.T) {
	ctx := context.Background()
	w, err := outbox.New(outbox.Config{DeleteRows: true})
	if err != nil {
		t.Fatal(err)
	}
	r := pgxoutboxtest.NewRecorder(w)
	emit := func(tx pgx.Tx, id string) {
		t.Helper()
		if err := pgxoutbox.Emit(ctx, w, tx, event(id)); err != nil {
			t.Fatal(err)
		}
	}
	refused := errors.New("refused")
	if err := pgx.BeginFunc(ctx, r, func(tx pgx.Tx) error { emit(tx, "0"); return refused }); !errors.Is(err, refused) {
		t.Fatal(err)
	}
	err = pgx.BeginFunc(ctx, r, func(tx pgx.Tx) error {
		emit(tx, "1")
		if err := pgxoutbox.Lock(ctx, tx, "order", "1"); err != nil {
			return err
		}
		_ = pgx.BeginFunc(ctx, tx, func(part pgx.Tx) error { emit(part, "no"); return refused })
		if err := pgx.BeginFunc(ctx, tx, func(part pgx.Tx) error { emit(part, "2"); return nil }); err != nil {
			return err
		}
		emit(tx, "3")
		if len(r.Events()) > 0 {
			t.Error("events are there before the commit")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var got string
	for _, e := range r.Events() {
		got += e.AggregateID + " "
	}
	if got != "1 2 3 " {
		t.Errorf("events %s, want 1 2 3", got)
	}
	var problem *outbox.EventError
	tx, _ := r.Begin(ctx)
	if err := pgxoutbox.Emit(ctx, w, tx, event("")); !errors.As(err, &problem) {
		t.Errorf("an invalid event: %v", err)
	}
}

// A batch outside a transaction is one: all of its events are there, or none. In a transaction it is a part of that.
func TestRecorderQueue(t *testing.T) {
	ctx := context.Background()
	for _, c := range []outbox.Config{{}, {DeleteRows: true}, {MessagePrefix: "p"}} {
		w, err := outbox.New(c)
		if err != nil {
			t.Fatal(err)
		}
		r := pgxoutboxtest.NewRecorder(w)
		broken := errors.New("broken")
		r.Handle(func(query string, _ []any) ([][]any, error) {
			if query == "broken" {
				return nil, broken
			}
			return [][]any{{1}}, nil
		})
		queue := func(id string, more ...string) *pgx.Batch {
			t.Helper()
			var b pgx.Batch
			b.Queue("UPDATE")
			if err := pgxoutbox.Queue(ctx, w, &b, event(id)); err != nil {
				t.Fatal(err)
			}
			var problem *outbox.EventError
			before := b.Len()
			if err := pgxoutbox.Queue(ctx, w, &b, event(id), event("")); !errors.As(err, &problem) || problem.Index != 1 || b.Len() != before {
				t.Errorf("an invalid event: %v, %d statements, want %d", err, b.Len(), before)
			}
			for _, query := range more {
				b.Queue(query)
			}
			return &b
		}
		results := r.SendBatch(ctx, queue("1"))
		for range 2 { // the second time nothing happens
			if err := results.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := r.SendBatch(ctx, queue("no", "broken")).Close(); !errors.Is(err, broken) {
			t.Errorf("a batch with a statement that fails: %v", err)
		}
		tx, _ := r.Begin(ctx)
		if err := tx.SendBatch(ctx, queue("2")).Close(); err != nil || len(r.Events()) != 1 {
			t.Errorf("%v, %d events before the commit, want 1", err, len(r.Events()))
		}
		if err := tx.Commit(ctx); err != nil {
			t.Error(err)
		}
		if got := r.Events(); len(got) != 2 || got[0].AggregateID != "1" || got[1].AggregateID != "2" {
			t.Errorf("%+v: the events are %+v, want 1 and 2", c, got)
		}
	}
}

// The application's own statements get the answers of the test.
func TestRecorderAnswers(t *testing.T) {
	ctx := context.Background()
	w, _ := outbox.New(outbox.Config{})
	r := pgxoutboxtest.NewRecorder(w)
	tx, _ := r.Begin(ctx)
	var n int
	if err := tx.QueryRow(ctx, "SELECT 1").Scan(&n); !errors.Is(err, pgx.ErrNoRows) {
		t.Errorf("without a handler: %v, want no rows", err)
	}
	broken := errors.New("broken")
	r.Handle(func(query string, args []any) ([][]any, error) {
		if query == "broken" {
			return nil, broken
		}
		return [][]any{{7, "a", nil}, {args[0], "b", "c"}}, nil
	})
	rows, err := tx.Query(ctx, "SELECT", int64(8))
	if err != nil {
		t.Fatal(err)
	}
	type result struct {
		N int
		A string
		B *string
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r result, err error) {
		err = row.Scan(&r.N, &r.A, &r.B)
		return r, err
	})
	if err != nil || len(all) != 2 || all[0] != (result{7, "a", nil}) || all[1].N != 8 || *all[1].B != "c" {
		t.Errorf("%+v, %v", all, err)
	}
	if tag, err := tx.Exec(ctx, "UPDATE", 1); err != nil || tag.RowsAffected() != 2 {
		t.Errorf("%d rows affected, want 2 (%v)", tag.RowsAffected(), err)
	}
	var batch pgx.Batch
	batch.Queue("SELECT", 1).QueryRow(func(row pgx.Row) error { return row.Scan(&n, new(string), new(*string)) })
	batch.Queue("broken")
	if err := tx.SendBatch(ctx, &batch).Close(); !errors.Is(err, broken) || n != 7 {
		t.Errorf("batch: %v and %d, want an error and 7", err, n)
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Error(err)
	}
	if err := tx.Commit(ctx); !errors.Is(err, pgx.ErrTxClosed) {
		t.Errorf("commit after rollback: %v", err)
	}
}
