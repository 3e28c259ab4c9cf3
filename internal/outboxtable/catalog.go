package outboxtable

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/decoder"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/sql"
)

// table is a Table as the catalogs describe it.
type table struct {
	Table
	oid      uint32
	from     string // for a FROM clause
	columns  []column
	relation *decoder.Relation
	// partitions are the relations of ByPartition, by OID in text format; nil: relation is that of each row.
	partitions  map[string]*decoder.Relation
	partitioned bool
	createdAt   *column // nil: the table has no such column
	sequence    *column // [sql.SequenceColumn], if it orders the rows, unless Order is set
}

// column is a column of a table.
type column struct {
	name      string
	typeOID   uint32
	baseOID   uint32 // of a domain the type that it is based on, otherwise typeOID
	generated bool
	notNull   bool
}

// Types in pg_type, the same on every server.
const (
	int8OID        = 20
	int2OID        = 21
	int4OID        = 23
	textOID        = 25
	varcharOID     = 1043
	dateOID        = 1082
	timestampOID   = 1114
	timestamptzOID = 1184
	uuidOID        = 2950
)

const columnsSQL = `
SELECT a.attname::text, a.atttypid, b.oid, a.attgenerated <> '', a.attnotnull
  FROM pg_attribute a CROSS JOIN LATERAL (
    WITH RECURSIVE base AS (
      SELECT t.oid, t.typbasetype FROM pg_type t WHERE t.oid = a.atttypid
      UNION ALL SELECT t.oid, t.typbasetype FROM base JOIN pg_type t ON t.oid = base.typbasetype
    ) SELECT oid FROM base WHERE typbasetype = 0) b
 WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum`

// describe reads the catalogs. The table is locked, so what it finds holds until the end of the transaction.
func (s *Snapshot) describe(ctx context.Context, tables []Table, source int) (*table, error) {
	want := &tables[source]
	t := &table{Table: *want, from: pgx.Identifier{want.Schema, want.Name}.Sanitize()}
	op := "read the columns of table " + t.String()
	var kind string
	var hidden bool
	err := s.queryRow(ctx, `SELECT c.oid, c.relkind::text, row_security_active(c.oid) FROM pg_class c WHERE c.oid = $1::text::regclass`, t.from).Scan(&t.oid, &kind, &hidden)
	if err != nil {
		return nil, s.fail(ctx, op, err)
	}
	switch kind {
	case "p":
		t.partitioned = true
	case "r":
		if err := s.refuseChildren(ctx, t, tables); err != nil {
			return nil, err
		}
		t.from = "ONLY " + t.from // children that are outboxes are read as such
	default:
		return nil, fmt.Errorf("%s: it is not a table; remedy: set outbox.table", op)
	}
	if hidden {
		return nil, exit.With(exit.NoPermission, fmt.Errorf("read table %s: row-level security hides rows from role %s; remedy: ALTER ROLE %[2]s BYPASSRLS, or connect as another role",
			t, pgx.Identifier{s.conn.Config().User}.Sanitize()))
	}
	if err := s.readColumns(ctx, t); err != nil {
		return nil, s.fail(ctx, op, err)
	}
	if err := t.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	t.createdAt = t.column(t.CreatedAt)
	unordered, err := ReadOrder(ctx, s.conn, t.Schema, t.Name)
	if err != nil {
		return nil, s.fail(ctx, op, err)
	}
	if unordered == nil {
		t.sequence = t.column(sql.SequenceColumn)
	}
	t.relation = &decoder.Relation{OID: t.oid, Namespace: t.Schema, Name: t.Name, Source: source}
	var types []uint32
	for _, c := range t.columns {
		if !c.generated || slices.Contains(t.Columns, c.name) {
			t.relation.Columns = append(t.relation.Columns, decoder.Column{Name: c.name, TypeOID: c.typeOID})
			types = append(types, c.typeOID)
		}
	}
	created, err := replication.ReadTypes(ctx, s.conn, types)
	if err != nil {
		return nil, s.fail(ctx, "read the types of table "+t.String(), err)
	}
	t.relation.TypeNames, t.relation.BaseTypes = created.Names, created.Bases
	if t.partitioned {
		if err := s.readPartitions(ctx, t); err != nil {
			return nil, s.fail(ctx, "read the partitions of table "+t.String(), err)
		}
	}
	return t, nil
}

// refuseChildren refuses a plain table with children by inheritance. Their rows are not in the stream, so the result
// would be that nothing is missing.
func (s *Snapshot) refuseChildren(ctx context.Context, t *table, tables []Table) error {
	var outboxes []replication.Table
	for i := range tables {
		outboxes = append(outboxes, replication.Table{Schema: tables[i].Schema, Name: tables[i].Name})
	}
	child, err := replication.FindUnpublished(ctx, s.conn, t.Schema, t.Name, outboxes)
	switch op := "look for tables that inherit from " + t.String(); {
	case err != nil:
		return s.fail(ctx, op, err)
	case child != nil:
		return exit.With(exit.Config, fmt.Errorf("%s: %s; remedy: %s", op, child, child.Remedy()))
	}
	return nil
}

func (s *Snapshot) readColumns(ctx context.Context, t *table) error {
	rows, err := s.query(ctx, columnsSQL, t.oid)
	if err != nil {
		return err
	}
	t.columns, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (c column, err error) {
		return c, row.Scan(&c.name, &c.typeOID, &c.baseOID, &c.generated, &c.notNull)
	})
	return err
}

// readPartitions makes a relation of each partition.
func (s *Snapshot) readPartitions(ctx context.Context, t *table) error {
	if !t.ByPartition {
		return nil
	}
	rows, err := s.query(ctx, `SELECT c.oid, n.nspname::text, c.relname::text FROM pg_partition_tree($1) p
  JOIN pg_class c ON c.oid = p.relid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE p.isleaf`, t.oid)
	if err != nil {
		return err
	}
	t.partitions = map[string]*decoder.Relation{}
	for rows.Next() {
		rel := *t.relation
		if err := rows.Scan(&rel.OID, &rel.Namespace, &rel.Name); err != nil {
			rows.Close()
			return err
		}
		t.partitions[fmt.Sprint(rel.OID)] = &rel
	}
	return rows.Err()
}

// check finds configured columns that the table does not have.
func (t *table) check() error {
	has := func() string {
		names := make([]string, len(t.columns))
		for i := range t.columns {
			names[i] = t.columns[i].name
		}
		return strings.Join(names, ", ")
	}
	for _, name := range t.Columns {
		if t.column(name) == nil {
			return fmt.Errorf("it has no column %q, only %s; remedy: set outbox.columns, or restore the column", name, has())
		}
	}
	for _, name := range t.Order {
		if t.column(name) == nil {
			return fmt.Errorf("it has no column %q, only %s; remedy: set outbox.order", name, has())
		}
	}
	return nil
}

// column finds a column by name; nil if there is none.
func (t *table) column(name string) *column {
	if i := slices.IndexFunc(t.columns, func(c column) bool { return c.name == name }); i >= 0 {
		return &t.columns[i]
	}
	return nil
}

// Indexed reports whether an index makes a range of times quick: a valid B-tree or BRIN index of all rows that begins
// with CreatedAt.
func (s *Snapshot) Indexed(ctx context.Context, table int) (bool, error) {
	t := s.tables[table]
	var ok bool
	err := s.queryRow(ctx, `SELECT EXISTS (SELECT FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam
  JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
 WHERE i.indrelid = $1 AND a.attname = $2 AND i.indisvalid AND i.indpred IS NULL AND m.amname IN ('btree', 'brin'))`, t.oid, t.CreatedAt).Scan(&ok)
	if err != nil {
		return false, s.fail(ctx, "read the indexes of table "+t.String(), err)
	}
	return ok, nil
}

// Zoned reports whether CreatedAt has a time zone. Without one, the time of a row is taken as UTC.
func (s *Snapshot) Zoned(table int) bool {
	c := s.tables[table].createdAt
	return c == nil || c.baseOID == timestamptzOID
}
