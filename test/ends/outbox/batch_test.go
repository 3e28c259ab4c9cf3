package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/outbox"
	"github.com/outboxcdc/outboxcdc/outbox/pgxoutbox"
	"github.com/outboxcdc/outboxcdc/outbox/pgxoutbox/pgxoutboxtest"
)

// configs are what a [outbox.Writer] may write: rows, deleted rows and messages.
var configs = map[string]outbox.Config{"rows": {}, "deleted": {DeleteRows: true}, "messages": {MessagePrefix: "shop"}}

var errPart = errors.New("this part fails")

// What a transaction, a savepoint or a batch has rolled back is not delivered, and the rest is in its order: in each
// way in which pgx sends statements.
func TestPartsRolledBack(t *testing.T) {
	t.Parallel()
	p := newPipeline(t, options{settings: []string{"OUTBOXCDC_MESSAGES_PREFIX=shop"}})
	for topic, config := range configs {
		w := newWriter(t, config)
		for _, mode := range execModes {
			conn := connect(t, withMode(p.url(), mode))
			savepoints(t, conn, w, topic)
			batches(t, conn, w, topic)
		}
		sqlSavepoints(t, p.url(), w, topic)
		var want []string
		for range execModes {
			want = append(want, "1", "4", "6", "7", "9", "11", "12", "14")
		}
		want = append(want, "21", "23")
		var got []string
		for _, r := range p.records(p.topic(topic), len(want)) {
			got = append(got, string(r.Value))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: the topic has the events\n%s, want\n%s", topic, strings.Join(got, " "), strings.Join(want, " "))
		}
	}
}

// numbered is an event of a topic's only key.
func numbered(topic string, n int) outbox.Event {
	return outbox.Event{AggregateType: topic, AggregateID: "42", Type: "Numbered", Payload: n}
}

// savepoints commits the events 1, 4, 6 and 7.
func savepoints(t *testing.T, conn *pgx.Conn, w *outbox.Writer, topic string) {
	t.Helper()
	ctx := testContext(t)
	emit := func(tx pgx.Tx, n int) { must(t, pgxoutbox.Emit(ctx, w, tx, numbered(topic, n))) }
	tx, err := conn.Begin(ctx)
	must(t, err)
	emit(tx, 1)
	err = pgx.BeginFunc(ctx, tx, func(part pgx.Tx) error {
		emit(part, 2)
		_, err := part.Exec(ctx, "SELECT 1/0")
		return err
	})
	if err == nil {
		t.Error("a part with a statement that fails is committed")
	}
	must(t, pgx.BeginFunc(ctx, tx, func(part pgx.Tx) error {
		if err := pgx.BeginFunc(ctx, part, func(inner pgx.Tx) error { emit(inner, 3); return errPart }); !errors.Is(err, errPart) {
			t.Error(err)
		}
		emit(part, 4)
		return nil
	}))
	err = pgx.BeginFunc(ctx, tx, func(part pgx.Tx) error {
		must(t, pgx.BeginFunc(ctx, part, func(inner pgx.Tx) error { emit(inner, 5); return nil }))
		return errPart
	})
	if !errors.Is(err, errPart) {
		t.Error(err)
	}
	var batch pgx.Batch
	must(t, pgxoutbox.Queue(ctx, w, &batch, numbered(topic, 6), numbered(topic, 7)))
	must(t, tx.SendBatch(ctx, &batch).Close())
	must(t, tx.Commit(ctx))
	tx, err = conn.Begin(ctx)
	must(t, err)
	emit(tx, 8)
	must(t, tx.Rollback(ctx))
}

// batches commits the events 9, 11, 12 and 14. A batch outside a transaction is one.
func batches(t *testing.T, conn *pgx.Conn, w *outbox.Writer, topic string) {
	t.Helper()
	ctx := testContext(t)
	var batch pgx.Batch
	event := func(n int) { must(t, pgxoutbox.Queue(ctx, w, &batch, numbered(topic, n))) }
	send := func() error {
		defer func() { batch = pgx.Batch{} }()
		return conn.SendBatch(ctx, &batch).Close()
	}
	batch.Queue("SELECT 1")
	event(9)
	must(t, send())

	event(10)
	batch.Queue("SELECT 1/$1::int", 0)
	if err := send(); err == nil {
		t.Error("a batch with a statement that fails has no error")
	}

	for _, step := range []any{"BEGIN", 11, "SAVEPOINT a", 10, "ROLLBACK TO a", 12, "COMMIT"} {
		if n, ok := step.(int); ok {
			event(n)
		} else {
			batch.Queue(step.(string))
		}
	}
	must(t, send())

	event(13)
	event(13)
	batch.Queue("SELECT no_such_function()")
	if err := send(); err == nil {
		t.Error("a batch with a statement that cannot be prepared has no error")
	}
	batch.BeginTx(pgx.TxOptions{})
	event(14)
	results := conn.SendBatch(ctx, &batch)
	must(t, results.Close())
	must(t, results.Tx().Commit(ctx))
}

// sqlSavepoints commits the events 21 and 23.
func sqlSavepoints(t *testing.T, url string, w *outbox.Writer, topic string) {
	t.Helper()
	ctx := testContext(t)
	db, err := sql.Open("pgx", url)
	must(t, err)
	defer db.Close()
	tx, err := db.BeginTx(ctx, nil)
	must(t, err)
	exec := func(query string) {
		_, err := tx.ExecContext(ctx, query)
		must(t, err)
	}
	must(t, w.Emit(ctx, tx, numbered(topic, 21)))
	exec("SAVEPOINT a")
	must(t, w.Emit(ctx, tx, numbered(topic, 22)))
	exec("ROLLBACK TO SAVEPOINT a")
	must(t, w.Emit(ctx, tx, numbered(topic, 23)))
	must(t, tx.Commit())
}

// The recorder works with the newest pgx, whose interfaces have more methods than those of the version that the module
// requires.
func TestRecorderWithNewestPgx(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newWriter(t, outbox.Config{})
	r := pgxoutboxtest.NewRecorder(w)
	r.Handle(func(string, []any) ([][]any, error) { return [][]any{{7}}, nil })
	for i, end := range []func(pgx.Tx) error{func(tx pgx.Tx) error { return tx.Commit(ctx) }, func(tx pgx.Tx) error { return tx.Rollback(ctx) }} {
		var batch pgx.Batch
		batch.BeginTx(pgx.TxOptions{})
		must(t, pgxoutbox.Queue(ctx, w, &batch, numbered("order", i)))
		results := r.SendBatch(ctx, &batch)
		must(t, results.Close())
		if n := len(r.Events()); n != i {
			t.Errorf("%d events before the transaction ends, want %d", n, i)
		}
		must(t, end(results.Tx()))
	}
	if got := r.Events(); len(got) != 1 || fmt.Sprintf("%s", got[0].Payload) != "0" {
		t.Errorf("the events are %+v, want 0", got)
	}
	rows, err := r.Query(ctx, "SELECT")
	must(t, err)
	if n, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[int]); err != nil || n != 7 {
		t.Errorf("%d, %v; want 7", n, err)
	}
}
