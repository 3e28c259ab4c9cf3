package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/internal/peek"
)

// errSameHistory ends the reading of a copy of the slot: the server has the transaction that was looked for.
var errSameHistory = errors.New("the server has the history of the position record")

// otherHistory returns why the daemon would stop when it reads the stream: the newest transaction that Kafka has, according to the position
// record, is not in it. So it is in an older copy of the server whose WAL has grown past that transaction. nil: the daemon would not stop.
func (t *tableSet) otherHistory(ctx context.Context, rec *checkpoint.PositionRecord) (why *checkpoint.HistoryError, err error) {
	slot, err := t.Read(ctx)
	if err != nil || slot == nil {
		return nil, err
	}
	var expected checkpoint.Resume
	acked, tx := rec.AckedFor(t.cfg.EventSources())
	if expected.AddRecord(t.identity, acked, tx, slot.ConfirmedFlush); !expected.Expecting() {
		return nil, nil
	}
	st, err := t.source.OpenCopy(ctx)
	if err != nil {
		return nil, err
	}
	defer st.Abandon()
	stream := t.peek(func(*peek.Event) error { return nil })
	stream.Begin = func(tx checkpoint.TxID) error {
		if _, err := expected.Begin(tx); err != nil || expected.Expecting() {
			return err
		}
		return errSameHistory
	}
	seen, err := stream.Run(ctx, st)
	switch {
	case errors.Is(err, errSameHistory):
		return nil, nil
	case errors.As(err, &why):
		return why, nil
	case err != nil:
		return nil, fmt.Errorf("compare the position record with what waits in slot %s: %w", t.cfg.Postgres.Slot, err)
	case !seen.Whole:
		return nil, context.Cause(ctx)
	}
	errors.As(expected.Advance(seen.UpTo), &why)
	return why, nil
}
