package frompolling

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// values finds the values of a column, from the cheapest source that has all of them.
func (r *reader) values(ctx context.Context, c *Column) error {
	for _, from := range []func(context.Context, *Column) error{r.fromEnum, r.fromCheck, r.fromIndex, r.fromRows} {
		sub, err := r.tx.Begin(ctx) // a savepoint: a refused query does not end the transaction
		if err != nil {
			return err
		}
		err = from(ctx, c)
		if why := refused(err, fmt.Sprintf("%v (--timeout)", r.timeout)); why != "" {
			c.Values = Values{From: why}
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
			c.Values = Values{From: fmt.Sprintf("there are more than %d", maxValues)}
			return nil
		}
		if c.Values.From != "" {
			c.Values.Known = true
			return nil
		}
	}
	return nil
}

// refused says why the server has not answered a query for rows; "": it has, or the connection is broken.
func refused(err error, within string) string {
	const queryCanceled = "57014" // after statement_timeout
	pg, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case !ok:
		return ""
	case pg.Code == queryCanceled:
		return "they were not read within " + within
	}
	return "they could not be read: " + pg.Message
}

// readRows lets the next queries, which read rows, run for the time that they have.
func (r *reader) readRows(ctx context.Context) error {
	_, err := r.tx.Exec(ctx, fmt.Sprintf("SET LOCAL statement_timeout = %d", max(1, r.timeout.Milliseconds())))
	return err
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

// checkedValues returns the values that a check constraint of the form column IN ('a', 'b') allows; nil: the
// constraint has another form.
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
	if c.Base == "citext" { // its operators are outside pg_catalog
		return nil
	}
	var indexed bool
	err := r.tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_am m ON m.oid = x.relam
		WHERE i.indrelid = $1 AND i.indkey[0] = $2 AND i.indisvalid AND i.indpred IS NULL AND m.amname = 'btree')`, r.oid, r.at[c.Name]).Scan(&indexed)
	if err != nil || !indexed {
		return err
	}
	if err := r.readRows(ctx); err != nil {
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

// fromRows reads all rows. A part of them does not do: a poller's updates move rows to the end of the table.
func (r *reader) fromRows(ctx context.Context, c *Column) error {
	if err := r.readRows(ctx); err != nil {
		return err
	}
	c.Values.From = "all rows"
	name := pgx.Identifier{c.Name}.Sanitize()
	var err error
	c.Values.List, err = r.list(ctx, fmt.Sprintf(`SELECT DISTINCT %[1]s::text AS c FROM %[2]s WHERE %[1]s IS NOT NULL ORDER BY 1 LIMIT %[3]d`, name, r.from, maxValues+1))
	return err
}
