package frompolling

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/replication"
)

// Table is a table that a poller reads.
type Table struct {
	Schema, Name string
	Columns      []Column
	// PartitionKey are the columns that decide about the partition of a row.
	PartitionKey []string
}

// Column is a column of a [Table].
type Column struct {
	Name      string
	Type      string // for people, such as character varying(20)
	Base      string // name in pg_type, of a domain that of the type it is based on; "enum" for an enumeration
	NotNull   bool
	Generated bool // computed from other columns
	Sequence  bool // a sequence gives the default
	// Default is the default as Postgres prints it; "": there is none, or it is NULL.
	Default string
	// Values are the values of a column such as a status, see Read.
	Values Values
}

// Values are the values of a column such as a status.
type Values struct {
	List     []string
	Known    bool   // all values that rows have are in the list
	Complete bool   // the column cannot have other values
	From     string // where they come from, or why they are not known
}

const (
	// maxValues is the maximum number of values of a status column.
	maxValues = 20
	// queryTimeout bounds each query of the catalogs.
	queryTimeout = 5 * time.Second
	// DefaultTimeout is the default of the time for the values of a column.
	DefaultTimeout = time.Minute
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
		return nil, exit.With(exit.Unavailable, replication.ConnectError(err)) // names host, user and database, not the password
	}
	return conn, nil
}

// Read reads the columns of a table, in a read-only transaction. Of the columns that mark rows by a value, such as a
// status, it also reads the values that rows have: from the type or a check constraint, otherwise from an index or
// from all rows, for at most the given time.
func Read(ctx context.Context, conn *pgx.Conn, schema, name string, timeout time.Duration) (*Table, error) {
	r, err := newReader(ctx, conn, schema, name, timeout)
	if err != nil {
		return nil, err
	}
	defer r.close(ctx)
	for i := range r.t.Columns {
		if c := &r.t.Columns[i]; c.hasValues() {
			if err := r.values(ctx, c); err != nil {
				return nil, fmt.Errorf("read the values of column %s of table %s: %w", c.Name, r.name, err)
			}
		}
	}
	return r.t, nil
}

type reader struct {
	tx   pgx.Tx
	t    *Table
	oid  uint32
	name string // with quotes
	from string // for a FROM clause
	at   map[string]int16

	timeout time.Duration // for the values of a column
}

// newReader begins a read-only transaction, and reads the columns of a table.
func newReader(ctx context.Context, conn *pgx.Conn, schema, name string, timeout time.Duration) (*reader, error) {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly})
	if err != nil {
		return nil, err
	}
	r := &reader{tx: tx, t: &Table{Schema: schema, Name: name}, name: pgx.Identifier{schema, name}.Sanitize(), timeout: timeout}
	r.from = r.name
	if err := r.columns(ctx); err != nil {
		r.close(ctx)
		return nil, fmt.Errorf("read the columns of table %s: %w", r.name, err)
	}
	return r, nil
}

// close ends the transaction, which has changed nothing.
func (r *reader) close(ctx context.Context) { _ = r.tx.Rollback(context.WithoutCancel(ctx)) }

const columnsSQL = `
SELECT a.attname::text, a.attnum, format_type(a.atttypid, a.atttypmod), CASE b.typtype WHEN 'e' THEN 'enum' ELSE b.typname::text END, a.attnotnull,
    a.attgenerated <> '', a.attidentity <> '' OR coalesce(e.def LIKE 'nextval(%', false), CASE WHEN e.def ~ '^NULL(::|$)' THEN '' ELSE coalesce(e.def, '') END
  FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum CROSS JOIN LATERAL (SELECT pg_get_expr(d.adbin, d.adrelid) AS def) e CROSS JOIN LATERAL (
    WITH RECURSIVE base AS (
      SELECT t.oid, t.typbasetype, t.typtype, t.typname FROM pg_type t WHERE t.oid = a.atttypid
      UNION ALL SELECT t.oid, t.typbasetype, t.typtype, t.typname FROM base JOIN pg_type t ON t.oid = base.typbasetype
    ) SELECT typtype, typname FROM base WHERE typbasetype = 0) b
 WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum`

func (r *reader) columns(ctx context.Context) error {
	// Without row_security, rows that a policy hides are an error.
	for _, s := range []string{"SET LOCAL search_path = pg_catalog", "SET LOCAL row_security = off", fmt.Sprintf("SET LOCAL statement_timeout = %d", queryTimeout.Milliseconds()), "SET LOCAL lock_timeout = '1s'"} {
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
	if kind == "r" {
		r.from = "ONLY " + r.name // tables that inherit from it are other tables, as in the stream
	}
	rows, err := r.tx.Query(ctx, columnsSQL, r.oid)
	if err != nil {
		return err
	}
	r.at = map[string]int16{}
	r.t.Columns, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (c Column, err error) {
		var at int16
		err = row.Scan(&c.Name, &at, &c.Type, &c.Base, &c.NotNull, &c.Generated, &c.Sequence, &c.Default)
		r.at[c.Name] = at
		return c, err
	})
	if err != nil || kind != "p" {
		return err
	}
	r.t.PartitionKey, err = r.list(ctx, PartitionKeySQL, r.oid)
	return err
}

// PartitionKeySQL is a query for the names of the columns that decide about the partition of a row, at any level,
// also as a part of an expression. Its parameter is the OID of the table. The catalog has an internal dependency of
// each of these columns on its table.
const PartitionKeySQL = `SELECT DISTINCT a.attname::text FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_attribute a ON a.attrelid = d.objid AND a.attnum = d.objsubid
 WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refclassid = d.classid AND d.objid = d.refobjid AND d.objsubid > 0 AND d.refobjsubid = 0 AND d.deptype = 'i'
   AND d.objid IN (SELECT relid FROM pg_catalog.pg_partition_tree($1) WHERE NOT isleaf) ORDER BY 1`
