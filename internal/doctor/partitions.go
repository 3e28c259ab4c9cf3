package doctor

import (
	"context"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
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
	moves := slices.DeleteFunc(slices.Clone(key), func(column string) bool { return !isUpdated(f.Table, column) })
	if len(moves) == 0 {
		e.ok(tablePartitions, "%s is partitioned by %s", f.Table, strings.Join(key, ", "))
		return
	}
	e.warn(tablePartitions, []Remedy{
		advicef("let nothing update %s: stop the programs that mark rows, such as the former poller or a cleaner", strings.Join(moves, ", ")),
		advicef("or partition the table by a column that is never updated, such as the time at which the row was written"),
	}, "%s is partitioned by %s: an UPDATE that moves a row to another partition is an INSERT in the stream, and the event is delivered twice", f.Table, strings.Join(moves, ", "))
}

// isUpdated reports whether something updates a column, as far as its name tells: it marks rows that were sent, or
// that wait, such as status, published_at and locked_until.
func isUpdated(t *Table, column string) bool {
	name := strings.ToLower(column)
	return column != t.CreatedAt && slices.ContainsFunc(updatedStems, func(stem string) bool { return strings.Contains(name, stem) })
}

// updatedStems are parts of names of columns that pollers update.
var updatedStems = []string{
	"sent", "publi", "dispatch", "deliver", "process", "complet", "finish", "handle", "relay", "emit", "push", "forward", "done", "success", "status", "state", "phase",
	"flag", "archiv", "delet", "consum", "transmit", "export", "dead", "fail", "cancel", "discard", "abandon", "skip", "retr", "attempt", "lock", "claim", "lease", "updat", "modif",
}

// partitionKeySQL is a query for the names of the columns that decide about the partition of a row, at any level, also
// as a part of an expression. Its parameter is the OID of the table. The catalog has an internal dependency of each of
// these columns on its table.
const partitionKeySQL = `SELECT DISTINCT a.attname::text FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_attribute a ON a.attrelid = d.objid AND a.attnum = d.objsubid
 WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refclassid = d.classid AND d.objid = d.refobjid AND d.objsubid > 0 AND d.refobjsubid = 0 AND d.deptype = 'i'
   AND d.objid IN (SELECT relid FROM pg_catalog.pg_partition_tree($1) WHERE NOT isleaf) ORDER BY 1`

func (e *examination) partitionKey(ctx context.Context, f *tableFacts) ([]string, error) {
	rows, err := e.conn.Query(ctx, partitionKeySQL, f.oid)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}
