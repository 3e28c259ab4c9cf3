// Package pgxoutbox writes events into an outbox in transactions of pgx. Package outbox describes what is written and
// checked.
package pgxoutbox

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/outbox"
)

// Emit writes the events, in their order, as part of the transaction, in one round trip. If an event is not valid,
// Emit returns an [*outbox.EventError] and has written nothing. After any other error the transaction cannot be
// committed.
func Emit(ctx context.Context, w *outbox.Writer, tx pgx.Tx, events ...outbox.Event) error {
	var batch pgx.Batch
	if err := Queue(ctx, w, &batch, events...); err != nil || batch.Len() == 0 {
		return err
	}
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("outbox: write %d events: %w", len(events), err)
	}
	return nil
}

// Queue adds the statements of Emit to a batch of the application, so that the events cost no round trip of their own.
// If an event is not valid, Queue returns an [*outbox.EventError] and has added nothing. An error of the statements is
// an error of the batch.
//
// The events are part of the transaction in which the batch is sent. A batch that is sent to a pool or connection is a
// transaction by itself, if it has no statements that begin or end one.
//
// Queue adds one statement, or none without events; with [outbox.Config.DeleteRows] two. An application that reads the
// results of the batch one by one, instead of by callbacks and Close, has to read theirs as well.
func Queue(ctx context.Context, w *outbox.Writer, batch *pgx.Batch, events ...outbox.Event) error {
	statements, err := w.Statements(ctx, events...)
	if err != nil {
		return err
	}
	for _, s := range statements {
		batch.Queue(s.SQL, s.Args...)
	}
	return nil
}

// Lock is [outbox.Writer.Lock] in a transaction of pgx.
func Lock(ctx context.Context, tx pgx.Tx, aggregateType, id string) error {
	s := outbox.LockStatement(aggregateType, id)
	if _, err := tx.Exec(ctx, s.SQL, s.Args...); err != nil {
		return fmt.Errorf("outbox: lock %s/%s: %w", aggregateType, id, err)
	}
	return nil
}
