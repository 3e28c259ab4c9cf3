package outboxtest_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/outboxcdc/outboxcdc/outbox"
	"github.com/outboxcdc/outboxcdc/outbox/outboxtest"
)

// The code under test has statements of its own; the test answers them, and sees events of committed transactions only.
func TestRecorder(t *testing.T) {
	ctx := context.Background()
	w, err := outbox.New(outbox.Config{DeleteRows: true})
	if err != nil {
		t.Fatal(err)
	}
	r := outboxtest.NewRecorder(t, w)
	db := r.DB()
	var total float64
	if err := db.QueryRow("SELECT total FROM orders WHERE id = $1", 42).Scan(&total); !errors.Is(err, sql.ErrNoRows) {
		t.Errorf("without a handler: %v, want no rows", err)
	}
	r.Handle(func(query string, args []any) ([][]any, error) {
		if args[0] != 42 {
			t.Errorf("%s with the arguments %v", query, args)
		}
		return [][]any{{9}}, nil
	})
	for _, commit := range []bool{false, true} {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		stmt, err := tx.Prepare("SELECT total FROM orders WHERE id = $1")
		if err != nil {
			t.Fatal(err)
		}
		if err := stmt.QueryRow(42).Scan(&total); err != nil || total != 9 {
			t.Errorf("total %v, %v; want 9", total, err)
		}
		if res, err := tx.ExecContext(ctx, "UPDATE orders SET state = 'paid' WHERE id = $1", 42); err != nil {
			t.Error(err)
		} else if n, _ := res.RowsAffected(); n != 1 {
			t.Errorf("%d rows affected, want 1", n)
		}
		if err := w.Lock(ctx, tx, "order", "42"); err != nil {
			t.Error(err)
		}
		if err := w.Emit(ctx, tx, outbox.Event{AggregateType: "order", AggregateID: "42", Type: "OrderPaid", Payload: total}); err != nil {
			t.Error(err)
		}
		if commit {
			err = tx.Commit()
		} else {
			err = tx.Rollback()
		}
		if err != nil {
			t.Error(err)
		}
	}
	events := r.Events()
	if len(events) != 1 {
		t.Fatalf("%d events, want 1", len(events))
	}
	if e := events[0]; e.AggregateID != "42" || outboxtest.Payload[float64](t, e) != 9 {
		t.Errorf("the event is %+v", e)
	}
}
