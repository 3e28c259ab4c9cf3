package doctor

import (
	"context"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/internal/frompolling"
)

// tablePartitions is the name of the check of [examination.checkPartitionKey].
const tablePartitions = "partition_key"

// checkPartitionKey warns if the partition of a row depends on a column that is updated, such as a status: an update
// that moves a row is an insert in the stream.
func (e *examination) checkPartitionKey(ctx context.Context, f *tableFacts) {
	switch {
	case !f.exists:
		return
	case !f.partitioned:
		e.ok(tablePartitions, "%s is not partitioned", f.Table)
		return
	}
	key, err := e.partitionKey(ctx, f)
	if err != nil {
		e.cannot(tablePartitions, err)
		return
	}
	moves := slices.DeleteFunc(slices.Clone(key), func(column string) bool { return !frompolling.Moves(column) })
	if len(moves) == 0 {
		e.ok(tablePartitions, "%s is partitioned by %s", f.Table, strings.Join(key, ", "))
		return
	}
	e.warn(tablePartitions, []Remedy{
		advicef("let nothing update %s: stop the programs that mark rows, such as the former poller or a cleaner", strings.Join(moves, ", ")),
		advicef("or partition the table by a column that is never updated, such as the time at which the row was written"),
	}, "%s is partitioned by %s: an UPDATE that moves a row to another partition is an INSERT in the stream, and the event is delivered twice", f.Table, strings.Join(moves, ", "))
}

func (e *examination) partitionKey(ctx context.Context, f *tableFacts) ([]string, error) {
	rows, err := e.conn.Query(ctx, frompolling.PartitionKeySQL, f.oid)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}
