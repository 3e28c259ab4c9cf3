package pgxoutboxtest

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxcdc/outboxcdc/outbox/internal/record"
)

// tx is a transaction, or a part of one that can be rolled back alone.
type tx struct {
	runner
	record *record.Tx
	closed bool
}

var _ pgx.Tx = (*tx)(nil)

func newTx(r *record.Tx) *tx { return &tx{runner: r.Run, record: r} }

func (t *tx) Begin(context.Context) (pgx.Tx, error) {
	if t.closed {
		return nil, pgx.ErrTxClosed
	}
	return newTx(t.record.Begin()), nil
}

func (t *tx) Commit(context.Context) error {
	if t.closed {
		return pgx.ErrTxClosed
	}
	t.closed = true
	t.record.Commit()
	return nil
}

func (t *tx) Rollback(context.Context) error {
	if t.closed {
		return pgx.ErrTxClosed
	}
	t.closed = true
	return nil
}

func (t *tx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	return &batch{ctx: ctx, runner: t.runner, queries: b.QueuedQueries}
}

// CopyFrom counts the rows.
func (t *tx) CopyFrom(_ context.Context, _ pgx.Identifier, _ []string, rows pgx.CopyFromSource) (n int64, err error) {
	for rows.Next() {
		if _, err := rows.Values(); err != nil {
			return n, err
		}
		n++
	}
	return n, rows.Err()
}

func (t *tx) Prepare(_ context.Context, name, query string) (*pgconn.StatementDescription, error) {
	return &pgconn.StatementDescription{Name: name, SQL: query}, nil
}

// LargeObjects returns large objects that cannot be used.
func (t *tx) LargeObjects() pgx.LargeObjects { return pgx.LargeObjects{} }

// Conn returns nil: there is no connection.
func (t *tx) Conn() *pgx.Conn { return nil }

// batch executes its queries when their results are read.
type batch struct {
	pgx.BatchResults // nil: methods that later versions of pgx add

	ctx     context.Context
	runner  runner
	queries []*pgx.QueuedQuery // not executed yet
	err     error
	tx      *tx  // that the batch is or has begun; nil: it is part of one
	begun   bool // by Batch.BeginTx, so that the application ends it
}

// Tx returns the transaction that the batch has begun by Batch.BeginTx, which pgx has since version 5.12.
func (b *batch) Tx() pgx.Tx {
	if !b.begun {
		return nil
	}
	return b.tx
}

// next returns the next query.
func (b *batch) next() (*pgx.QueuedQuery, error) {
	if b.err == nil && len(b.queries) == 0 {
		return nil, errors.New("pgxoutboxtest: the batch has no further query")
	}
	if b.err != nil {
		return nil, b.err
	}
	q := b.queries[0]
	b.queries = b.queries[1:]
	return q, nil
}

func (b *batch) Exec() (pgconn.CommandTag, error) {
	q, err := b.next()
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	var tag pgconn.CommandTag
	tag, b.err = b.runner.Exec(b.ctx, q.SQL, q.Arguments...)
	return tag, b.err
}

func (b *batch) Query() (pgx.Rows, error) {
	q, err := b.next()
	if err != nil {
		return &rows{err: err}, err
	}
	var r pgx.Rows
	r, b.err = b.runner.Query(b.ctx, q.SQL, q.Arguments...)
	return r, b.err
}

func (b *batch) QueryRow() pgx.Row {
	r, _ := b.Query()
	return row{r}
}

func (b *batch) Close() error {
	for b.err == nil && len(b.queries) > 0 {
		if fn := b.queries[0].Fn; fn != nil {
			if err := fn(b); b.err == nil {
				b.err = err
			}
			continue
		}
		_, _ = b.Exec() // its error is in b.err
	}
	if b.tx != nil && !b.begun && b.err == nil && !b.tx.closed {
		return b.tx.Commit(b.ctx)
	}
	return b.err
}
