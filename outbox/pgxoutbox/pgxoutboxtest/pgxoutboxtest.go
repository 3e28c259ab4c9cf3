// Package pgxoutboxtest is the recorder of package outboxtest for applications that use pgx.
package pgxoutboxtest

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxcdc/outboxcdc/outbox"
	"github.com/outboxcdc/outboxcdc/outbox/internal/record"
)

// Recorder is a database that executes nothing. It remembers the events of committed transactions. It has those
// methods of *pgxpool.Pool and *pgx.Conn that applications usually put into an interface, so that it can be passed to
// the code under test and to pgx.BeginFunc.
type Recorder struct{ database *record.Database }

// NewRecorder returns a recorder for the events of one writer.
func NewRecorder(w *outbox.Writer) *Recorder { return &Recorder{record.New(w)} }

// Events returns the events of committed transactions, in the order of the commits. They have ids and all headers,
// and their payloads are a json.RawMessage, or a []byte if the column is not JSON.
func (r *Recorder) Events() []outbox.Event { return r.database.Events() }

// Handle sets what answers the statements of the application: rows for a query, or any rows for another statement,
// whose number is then the number of affected rows. Without it each statement affects one row and returns none.
func (r *Recorder) Handle(h func(query string, args []any) (rows [][]any, err error)) {
	r.database.Handle(h)
}

// Begin starts a transaction.
func (r *Recorder) Begin(ctx context.Context) (pgx.Tx, error) { return r.BeginTx(ctx, pgx.TxOptions{}) }

// BeginTx starts a transaction; the options have no effect.
func (r *Recorder) BeginTx(context.Context, pgx.TxOptions) (pgx.Tx, error) {
	return newTx(r.database.Begin()), nil
}

// Exec executes a statement outside a transaction.
func (r *Recorder) Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	return runner(r.database.Run).Exec(ctx, query, args...)
}

// Query executes a query outside a transaction.
func (r *Recorder) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	return runner(r.database.Run).Query(ctx, query, args...)
}

// QueryRow executes a query outside a transaction.
func (r *Recorder) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	return runner(r.database.Run).QueryRow(ctx, query, args...)
}

// SendBatch executes a batch in a transaction of its own, which a batch outside a transaction is in Postgres, too.
func (r *Recorder) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	t := newTx(r.database.Begin())
	begun := len(b.QueuedQueries) > 0 && strings.HasPrefix(b.QueuedQueries[0].SQL, "begin")
	return &batch{ctx: ctx, runner: t.runner, queries: b.QueuedQueries, tx: t, begun: begun}
}
