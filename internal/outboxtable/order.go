package outboxtable

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/sql"
)

// Unordered says why the column [sql.SequenceColumn] of a table does not have the order in which the rows were
// inserted.
type Unordered struct {
	Why      string // "it has no column seq"
	NoColumn bool
	SQL      string // statement that fixes it for new rows, "" if there is none
}

// ReadOrder reads from the catalogs whether the column [sql.SequenceColumn] orders the rows of a table whose Order is
// empty: one sequence gives all its values, one after the other. It returns nil if it does.
func ReadOrder(ctx context.Context, conn *pgx.Conn, schema, name string) (*Unordered, error) {
	table := pgx.Identifier{schema, name}.Sanitize()
	c := sequenceColumn{}
	err := conn.QueryRow(ctx, sequenceSQL, pgx.QueryExecModeExec, table, sql.SequenceColumn).
		Scan(&c.typ, &c.base, &c.identity, &c.value, &c.sequence, &c.increment, &c.cache, &c.cycle)
	if errors.Is(err, pgx.ErrNoRows) {
		return &Unordered{Why: "it has no column " + sql.SequenceColumn, NoColumn: true}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read column %s of table %s.%s: %w", sql.SequenceColumn, schema, name, err)
	}
	if u := c.unordered(); u != nil {
		return u, nil
	}
	var partition string
	switch err = conn.QueryRow(ctx, otherPartitionSQL, pgx.QueryExecModeExec, table, sql.SequenceColumn).Scan(&partition); {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read column %s of the partitions of table %s.%s: %w", sql.SequenceColumn, schema, name, err)
	}
	return &Unordered{Why: fmt.Sprintf("rows that are inserted into its partition %s get other values in its column %s", partition, sql.SequenceColumn)}, nil
}

// sequenceColumn is the column as the catalogs describe it.
type sequenceColumn struct {
	typ              string
	base             uint32 // OID of the type, of a domain that of the type that it is based on
	identity         bool
	value            string // the default
	sequence         string // quoted name, "" if there is none
	increment, cache int64
	cycle            bool
}

// nextValue is the default of a column that a sequence gives all values of.
var nextValue = regexp.MustCompile(`^nextval\('([^']|'')*'::regclass\)$`)

func (c *sequenceColumn) unordered() *Unordered {
	column, sequence := "its column "+sql.SequenceColumn, c.sequence
	alter := func(text string) string { return "ALTER SEQUENCE " + sequence + " " + text }
	switch {
	case !slices.Contains([]uint32{int2OID, int4OID, int8OID}, c.base):
		return &Unordered{Why: fmt.Sprintf("%s has the type %s, and not an integer type", column, c.typ)}
	case sequence == "" || !c.identity && !nextValue.MatchString(c.value):
		return &Unordered{Why: column + " is no identity column, and no sequence gives its default"}
	case c.increment < 0:
		return &Unordered{Why: fmt.Sprintf("the sequence %s of %s counts down", sequence, column)}
	case c.cycle:
		return &Unordered{Why: fmt.Sprintf("the sequence %s of %s starts again after its last value (CYCLE)", sequence, column), SQL: alter("NO CYCLE")}
	case c.cache > 1:
		return &Unordered{Why: fmt.Sprintf("each session takes %d values at a time from the sequence %s of %s (CACHE)", c.cache, sequence, column), SQL: alter("CACHE 1")}
	}
	return nil
}

// sequenceSQL reads the column. The sequence of an identity column depends on it; a default depends on its sequence.
const sequenceSQL = `
SELECT format_type(a.atttypid, a.atttypmod), b.oid, a.attidentity <> '', coalesce(pg_get_expr(d.adbin, d.adrelid), ''),
       coalesce(s.seqrelid::regclass::text, ''), coalesce(s.seqincrement, 0), coalesce(s.seqcache, 0), coalesce(s.seqcycle, false)
  FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
  CROSS JOIN LATERAL (
    WITH RECURSIVE base AS (
      SELECT t.oid, t.typbasetype FROM pg_type t WHERE t.oid = a.atttypid
      UNION ALL SELECT t.oid, t.typbasetype FROM base JOIN pg_type t ON t.oid = base.typbasetype
    ) SELECT oid FROM base WHERE typbasetype = 0) b
  LEFT JOIN LATERAL (
    SELECT objid FROM pg_depend WHERE refclassid = 'pg_class'::regclass AND refobjid = a.attrelid AND refobjsubid = a.attnum
       AND classid = 'pg_class'::regclass AND deptype = 'i'
    UNION ALL SELECT refobjid FROM pg_depend WHERE classid = 'pg_attrdef'::regclass AND objid = d.oid AND refclassid = 'pg_class'::regclass AND deptype = 'n') o ON true
  LEFT JOIN pg_sequence s ON s.seqrelid = o.objid
 WHERE a.attrelid = $1::text::regclass AND a.attname = $2 AND NOT a.attisdropped ORDER BY s.seqrelid LIMIT 1`

// otherPartitionSQL finds a partition that gives rows, if they are inserted into it and not into the root, a value
// that is not of the root's sequence. Before PostgreSQL 17 a partition could have an identity column of its own.
const otherPartitionSQL = `
WITH root AS (
  SELECT a.attrelid, pg_get_expr(d.adbin, d.adrelid) AS value FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
   WHERE a.attrelid = $1::text::regclass AND a.attname = $2 AND NOT a.attisdropped)
SELECT p.relid::regclass::text FROM root CROSS JOIN pg_partition_tree(root.attrelid) p
  JOIN pg_attribute a ON a.attrelid = p.relid AND a.attname = $2 AND NOT a.attisdropped
  LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE p.relid <> root.attrelid AND CASE
    WHEN d.oid IS NOT NULL THEN pg_get_expr(d.adbin, d.adrelid) IS DISTINCT FROM root.value
    ELSE NOT a.attnotnull OR EXISTS (SELECT FROM pg_depend WHERE refclassid = 'pg_class'::regclass AND refobjid = a.attrelid AND refobjsubid = a.attnum
       AND classid = 'pg_class'::regclass AND deptype = 'i') END
 ORDER BY 1 LIMIT 1`

// orderBy is the ORDER BY of the query for rows.
func (t *table) orderBy() string {
	var by []string
	for _, name := range t.Order {
		by = append(by, quote(name))
	}
	if len(by) == 0 && t.sequence != nil {
		by = append(by, quote(t.sequence.name))
		if !t.sequence.notNull { // rows without a value are older than the sequence. An index on a column NOT NULL can be used without this
			by[0] += " NULLS FIRST"
		}
	}
	if t.createdAt != nil {
		by = append(by, quote(t.CreatedAt))
	}
	if t.partitioned {
		by = append(by, "tableoid")
	}
	return " ORDER BY " + strings.Join(append(by, "ctid"), ", ")
}
