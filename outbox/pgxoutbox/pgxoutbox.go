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
	statements, err := w.Statements(ctx, events...)
	if err != nil || len(statements) == 0 {
		return err
	}
	var batch pgx.Batch
	for _, s := range statements {
		batch.Queue(s.SQL, s.Args...)
	}
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("outbox: write %d events: %w", len(events), err)
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
