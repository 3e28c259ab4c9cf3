package frompolling

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/replication"
)

// Table is a table that a poller reads.
type Table struct {
	Schema, Name string
	Columns      []Column
}

// Column is a column of a [Table].
type Column struct {
	Name      string
	Type      string // for people, such as character varying(20)
	Base      string // name in pg_type, of a domain that of the type it is based on; "enum" for an enumeration
	NotNull   bool
	Generated bool // computed from other columns
	Sequence  bool // a sequence gives the default
	// Values are the values of a status column, see Read.
	Values Values
}

// Values are the values of a status column.
type Values struct {
	List     []string
	Complete bool   // the column cannot have other values
	From     string // where they come from, or why they are not known
}

const (
	// maxValues is the maximum number of values of a status column.
	maxValues = 20
	// sampleRows and samplePages bound what is read of a table without an index on the status column.
	sampleRows  = 10_000
	samplePages = 200
	// queryTimeout bounds each query.
	queryTimeout = 5 * time.Second
)

// Connect opens a connection for [Read]. The error has an exit code and shows no secret.
func Connect(ctx context.Context, dsn string) (*pgx.Conn, error) {
	cc, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, exit.With(exit.Usage, fmt.Errorf("read the connection string: %w", replication.URLError(err)))
	}
	cc.DefaultQueryExecMode = pgx.QueryExecModeExec // no prepared statements: there may be a pooler between
	if cc.ConnectTimeout == 0 {
		cc.ConnectTimeout = 15 * time.Second
	}
	conn, err := pgx.ConnectConfig(ctx, cc)
	if err != nil {
		return nil, exit.With(exit.Unavailable, err) // names host, user and database, not the password
	}
	return conn, nil
}

// Read reads the columns of a table, in a read-only transaction. Of a status column it also reads the values, if that is cheap: from the
// type, a check constraint, or an index; otherwise it reads a sample of the rows.
func Read(ctx context.Context, conn *pgx.Conn, schema, name string) (*Table, error) {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly})
	if err != nil {
		return nil, err
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // nothing was changed
	r := &reader{tx: tx, t: &Table{Schema: schema, Name: name}, from: pgx.Identifier{schema, name}.Sanitize()}
	if err := r.columns(ctx); err != nil {
		return nil, fmt.Errorf("read the columns of table %s: %w", r.from, err)
	}
	if c := r.t.first(statusNames, isStatusType); c != nil {
		if err := r.values(ctx, c); err != nil {
			return nil, fmt.Errorf("read the values of column %s of table %s: %w", c.Name, r.from, err)
		}
	}
	return r.t, nil
}

type reader struct {
	tx   pgx.Tx
	t    *Table
	oid  uint32
	from string // for a FROM clause
	at   map[string]int16
}

const columnsSQL = `
SELECT a.attname::text, a.attnum, format_type(a.atttypid, a.atttypmod), CASE b.typtype WHEN 'e' THEN 'enum' ELSE b.typname::text END, a.attnotnull,
    a.attgenerated <> '', a.attidentity <> '' OR coalesce(pg_get_expr(d.adbin, d.adrelid) LIKE 'nextval(%', false)
  FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum CROSS JOIN LATERAL (
    WITH RECURSIVE base AS (
      SELECT t.oid, t.typbasetype, t.typtype, t.typname FROM pg_type t WHERE t.oid = a.atttypid
      UNION ALL SELECT t.oid, t.typbasetype, t.typtype, t.typname FROM base JOIN pg_type t ON t.oid = base.typbasetype
    ) SELECT typtype, typname FROM base WHERE typbasetype = 0) b
 WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum`

func (r *reader) columns(ctx context.Context) error {
	for _, s := range []string{"SET LOCAL search_path = pg_catalog", fmt.Sprintf("SET LOCAL statement_timeout = %d", queryTimeout.Milliseconds()), "SET LOCAL lock_timeout = '1s'"} {
		if _, err := r.tx.Exec(ctx, s); err != nil {
			return err
		}
	}
	var kind string
	err := r.tx.QueryRow(ctx, `SELECT c.oid, c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2`,
		r.t.Schema, r.t.Name).Scan(&r.oid, &kind)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return exit.With(exit.Config, errors.New("it does not exist; name the table in --table"))
	case err != nil:
		return err
	case kind != "r" && kind != "p":
		return exit.With(exit.Config, errors.New("it is not a table, so that the WAL has no rows of it; name the table in --table"))
	}
	rows, err := r.tx.Query(ctx, columnsSQL, r.oid)
	if err != nil {
		return err
	}
	r.at = map[string]int16{}
	r.t.Columns, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (c Column, err error) {
		var at int16
		err = row.Scan(&c.Name, &at, &c.Type, &c.Base, &c.NotNull, &c.Generated, &c.Sequence)
		r.at[c.Name] = at
		return c, err
	})
	return err
}

// values finds the values of a status column, from the cheapest source that has them.
func (r *reader) values(ctx context.Context, c *Column) error {
	for _, from := range []func(context.Context, *Column) error{r.fromEnum, r.fromCheck, r.fromIndex, r.fromSample} {
		sub, err := r.tx.Begin(ctx) // a savepoint: a refused query does not end the transaction
		if err != nil {
			return err
		}
		err = from(ctx, c)
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
			c.Values = Values{From: "its values could not be read: " + pg.Message}
			if err := sub.Rollback(ctx); err != nil {
				return err
			}
			return nil
		}
		if err != nil {
			return err
		}
		if err := sub.Commit(ctx); err != nil {
			return err
		}
		if len(c.Values.List) > maxValues {
			c.Values = Values{From: fmt.Sprintf("it has more than %d values", maxValues)}
		}
		if c.Values.From != "" {
			return nil
		}
	}
	return nil
}

func (r *reader) list(ctx context.Context, sql string, args ...any) ([]string, error) {
	rows, err := r.tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

func (r *reader) fromEnum(ctx context.Context, c *Column) (err error) {
	if c.Base != "enum" {
		return nil
	}
	c.Values = Values{Complete: true, From: "the labels of its type"}
	c.Values.List, err = r.list(ctx, `WITH RECURSIVE base AS (
			SELECT t.oid, t.typbasetype FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid WHERE a.attrelid = $1 AND a.attnum = $2
			UNION ALL SELECT t.oid, t.typbasetype FROM base JOIN pg_type t ON t.oid = base.typbasetype)
		SELECT enumlabel::text FROM pg_enum JOIN base ON base.oid = enumtypid ORDER BY enumsortorder`, r.oid, r.at[c.Name])
	return err
}

func (r *reader) fromCheck(ctx context.Context, c *Column) error {
	defs, err := r.list(ctx, `SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = $1 AND contype = 'c' AND convalidated AND conkey = ARRAY[$2]::int2[] ORDER BY conname`,
		r.oid, r.at[c.Name])
	for _, def := range defs {
		if list := checkedValues(def); len(list) > 0 {
			c.Values = Values{List: list, Complete: true, From: "its check constraint"}
			return nil
		}
	}
	return err
}

var (
	checkList = regexp.MustCompile(`^CHECK \(+(?:"(?:[^"]|"")+"|[\pL_][\pL\pN_$]*)\)?(?:::[a-z ]+)? = ANY \(+ARRAY\[([^\]]*)\]\)?(?:::[a-z ]+\[\])?\)+$`)
	literals  = regexp.MustCompile(`'((?:[^']|'')*)'`)
)

// checkedValues returns the values that a check constraint of the form column IN ('a', 'b') allows; nil: the constraint has another form.
func checkedValues(def string) (list []string) {
	m := checkList.FindStringSubmatch(def)
	if m == nil {
		return nil
	}
	for _, l := range literals.FindAllStringSubmatch(m[1], -1) {
		list = append(list, strings.ReplaceAll(l[1], "''", "'"))
	}
	return list
}

// fromIndex reads one entry of an index for each value, however large the table is.
func (r *reader) fromIndex(ctx context.Context, c *Column) error {
	var indexed bool
	err := r.tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_am m ON m.oid = x.relam
		WHERE i.indrelid = $1 AND i.indkey[0] = $2 AND i.indisvalid AND i.indpred IS NULL AND m.amname = 'btree')`, r.oid, r.at[c.Name]).Scan(&indexed)
	if err != nil || !indexed {
		return err
	}
	c.Values.From = "all rows, by an index"
	name := pgx.Identifier{c.Name}.Sanitize()
	c.Values.List, err = r.list(ctx, fmt.Sprintf(`WITH RECURSIVE v AS (
			(SELECT %[1]s AS c FROM %[2]s WHERE %[1]s IS NOT NULL ORDER BY %[1]s LIMIT 1)
			UNION ALL SELECT (SELECT %[1]s FROM %[2]s WHERE %[1]s > v.c ORDER BY %[1]s LIMIT 1) FROM v WHERE v.c IS NOT NULL)
		SELECT c::text FROM v WHERE c IS NOT NULL LIMIT %[3]d`, name, r.from, maxValues+1))
	return err
}

func (r *reader) fromSample(ctx context.Context, c *Column) error {
	var pages int64
	if err := r.tx.QueryRow(ctx, `SELECT pg_relation_size($1::oid) / current_setting('block_size')::bigint`, r.oid).Scan(&pages); err != nil {
		return err
	}
	percent := min(100, 100*float64(samplePages)/float64(max(1, pages)))
	name := pgx.Identifier{c.Name}.Sanitize()
	list, err := r.list(ctx, fmt.Sprintf(`SELECT DISTINCT c::text FROM (SELECT %s AS c FROM %s TABLESAMPLE SYSTEM (%f) LIMIT %d) s WHERE c IS NOT NULL ORDER BY 1 LIMIT %d`,
		name, r.from, percent, sampleRows, maxValues+1))
	c.Values = Values{List: list, From: fmt.Sprintf("a sample of at most %d rows", sampleRows)}
	return err
}
