// Package pgxinbox is package inbox for transactions of pgx.
package pgxinbox

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxcdc/outboxcdc/inbox"
)

// Store is an [inbox.Store] whose methods take transactions of pgx.
type Store struct{ inbox.Store }

// Once is [inbox.Store.Once].
func (s *Store) Once(ctx context.Context, tx pgx.Tx, consumer string, e inbox.Event) (first bool, err error) {
	news, err := s.OnceEach(ctx, tx, consumer, []inbox.Event{e})
	return err == nil && news[0], err
}

// OnceEach is [inbox.Store.OnceEach].
func (s *Store) OnceEach(ctx context.Context, tx pgx.Tx, consumer string, events []inbox.Event) (isNew []bool, err error) {
	return s.Store.OnceEach(ctx, Tx(tx), consumer, events)
}

// Execer is a *pgxpool.Pool, *pgx.Conn or pgx.Tx.
type Execer interface {
	Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error)
}

// PruneChunk is [inbox.Store.PruneChunk].
func (s *Store) PruneChunk(ctx context.Context, q Execer, consumer string, keep time.Duration) (int64, error) {
	return s.Store.PruneChunk(ctx, execIn{q}.Exec, consumer, keep)
}

type execIn struct{ q Execer }

func (e execIn) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	tag, err := e.q.Exec(ctx, query, args...)
	return tag.RowsAffected(), err
}

// Querier is a pgx.Tx, *pgxpool.Pool or *pgx.Conn.
type Querier interface {
	Execer
	QueryRow(ctx context.Context, query string, args ...any) pgx.Row
}

// Tx returns an [inbox.Tx] for the methods of [inbox.Store] that take one.
func Tx(q Querier) inbox.Tx { return txIn{execIn{q}, q} }

type txIn struct {
	execIn
	q Querier
}

func (t txIn) QueryRow(ctx context.Context, query string, args []any, dest ...any) error {
	return t.q.QueryRow(ctx, query, args...).Scan(dest...)
}
