package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxcdc/outboxcdc/internal/human"
	"github.com/outboxcdc/outboxcdc/internal/retention"
)

// tableRetention is the name of the check of [examination.checkRetention].
const tableRetention = "retention"

// Retention is what the settings say about the command retain. It may run on another machine, with other settings.
type Retention struct {
	Mode  string // off, truncate or delete
	Keep  time.Duration
	Slots []string // that retain waits for, besides the daemon's
}

// checkRetention says how large the outboxes are and how old their oldest rows, and warns of what keeps retain from
// removing any.
func (e *examination) checkRetention(ctx context.Context) {
	for i := range e.tables {
		f := &e.tables[i]
		if !f.usable {
			continue
		}
		is, err := e.tableSize(ctx, f)
		switch {
		case err != nil:
			e.cannot(tableRetention, err)
		case e.Retention.Mode == "truncate" && !f.partitioned:
			e.warn(tableRetention, []Remedy{settingf("retention: {mode: delete}"), advicef("or let the application write to a partitioned table (docs/retention.md)")},
				"%s; retention.mode is truncate, and the table is not partitioned: retain refuses it", is)
		case e.Retention.Mode == "off" || e.Retention.Mode == "":
			e.ok(tableRetention, "%s; retention.mode is off", is)
		default:
			e.ok(tableRetention, "%s; retention.mode is %s, and rows are kept for %s", is, e.Retention.Mode, human.Duration(e.Retention.Keep))
		}
	}
	if e.Retention.Mode != "off" && len(e.tables) > 0 {
		e.checkRetentionSlots(ctx)
	}
}

// markSQL reads the size of a table with its partitions, and when retain emptied one of these last, which it notes in
// the comment of the partition.
const markSQL = `
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint, count(*) FILTER (WHERE c.relkind = 'r' AND c.oid <> $1),
       max(substring(obj_description(c.oid, 'pg_class') FROM $2 || '(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)'))
  FROM pg_class c WHERE c.oid = $1 OR c.oid IN (SELECT relid FROM pg_partition_tree($1))`

// tableSize describes an outbox: its size, its oldest row, and when retain emptied a partition last.
func (e *examination) tableSize(ctx context.Context, f *tableFacts) (string, error) {
	var bytes int64
	var partitions int
	var emptied *string
	if err := e.conn.QueryRow(ctx, markSQL, f.oid, retention.Mark).Scan(&bytes, &partitions, &emptied); err != nil {
		return "", err
	}
	is := fmt.Sprintf("%s has %s", f.Table, human.Size(bytes))
	if f.partitioned {
		is += " in " + human.Count(partitions, "partition", "partitions")
	}
	is += ", " + e.oldestRow(ctx, f)
	switch {
	case emptied != nil:
		is += ", and retain emptied a partition last at " + *emptied
	case f.partitioned:
		is += ", and no partition has the note of retain that it was emptied"
	}
	return is, nil
}

// oldestRow describes the age of the oldest row. Without an index it may take too long to find.
func (e *examination) oldestRow(ctx context.Context, f *tableFacts) string {
	switch {
	case !f.has(f.CreatedAt):
		return "no column has the time of a row"
	case !f.readable || f.hidden:
		return "the oldest row is not known, because the role cannot read all rows"
	}
	tx, err := e.conn.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly})
	if err != nil {
		return "the oldest row is not known: " + cause(err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	var oldest pgtype.Timestamptz
	_, err = tx.Exec(ctx, "SET LOCAL statement_timeout = '"+sampleTimeout+"'; SET LOCAL enable_seqscan = off; SET LOCAL TimeZone = 'UTC'", pgx.QueryExecModeSimpleProtocol)
	if err == nil {
		from := f.quoted()
		if !f.partitioned {
			from = "ONLY " + from
		}
		err = tx.QueryRow(ctx, "SELECT min("+ident(f.CreatedAt)+")::timestamptz FROM "+from).Scan(&oldest)
	}
	switch {
	case err != nil:
		return "the oldest row is not known: " + cause(err)
	case !oldest.Valid:
		return "no row has a time"
	case oldest.InfinityModifier != pgtype.Finite:
		return "the oldest row has the time -infinity"
	}
	return "the oldest row is " + human.Duration(e.server.now.Sub(oldest.Time)) + " old"
}

// checkRetentionSlots warns of slots of retention.slots that block retain until a person acts.
func (e *examination) checkRetentionSlots(ctx context.Context) {
	rows, err := e.conn.Query(ctx, `SELECT w FROM unnest($1::text[]) w WHERE NOT EXISTS (
		SELECT FROM pg_replication_slots WHERE slot_name = w AND slot_type = 'logical' AND database = current_database() AND wal_status IS DISTINCT FROM 'lost')`, e.Retention.Slots)
	if err != nil {
		e.cannot(tableRetention, err)
		return
	}
	missing, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		e.cannot(tableRetention, err)
		return
	}
	if len(missing) > 0 {
		e.warn(tableRetention, []Remedy{settingf("retention: {slots: [<those whose clients need the rows>]}"), advicef("or create the slot again, when its client has what it needs")},
			"retention.slots has %s, which does not exist, is lost, or is not a logical slot of this database: retain removes nothing", strings.Join(missing, ", "))
	}
}
