package pgxoutboxtest

import (
	"context"
	"database/sql"
	"fmt"
	"reflect"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxcdc/outboxcdc/outbox/internal/record"
)

// runner executes statements.
type runner func(query string, args []any) (record.Result, error)

func (run runner) Exec(_ context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	r, err := run(query, args)
	return affected(r), err
}

func (run runner) Query(_ context.Context, query string, args ...any) (pgx.Rows, error) {
	r, err := run(query, args)
	return &rows{all: r.Rows, tag: affected(r), err: err}, err
}

func (run runner) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	r, _ := run.Query(ctx, query, args...) // its error is in r
	return row{r}
}

// affected returns a command tag. Its text does not have the statement's name.
func affected(r record.Result) pgconn.CommandTag {
	return pgconn.NewCommandTag("STATEMENT " + strconv.FormatInt(r.Affected, 10))
}

// rows are the rows of a handler.
type rows struct {
	pgx.Rows // nil: methods that later versions of pgx add

	all [][]any
	at  int // number of rows that were read
	tag pgconn.CommandTag
	err error
}

func (r *rows) Close()                                       { r.at = len(r.all) }
func (r *rows) Err() error                                   { return r.err }
func (r *rows) CommandTag() pgconn.CommandTag                { return r.tag }
func (r *rows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (r *rows) RawValues() [][]byte                          { return nil }
func (r *rows) Conn() *pgx.Conn                              { return nil }

func (r *rows) Next() bool {
	if r.err != nil || r.at == len(r.all) {
		return false
	}
	r.at++
	return true
}

func (r *rows) Values() ([]any, error) { return r.all[r.at-1], r.err }

func (r *rows) Scan(to ...any) error {
	values := r.all[r.at-1]
	if len(to) != len(values) {
		return fmt.Errorf("pgxoutboxtest: scan a row of %d values into %d variables", len(values), len(to))
	}
	for i := range to {
		if err := assign(to[i], values[i]); err != nil {
			return fmt.Errorf("pgxoutboxtest: scan value %d: %w", i+1, err)
		}
	}
	return nil
}

// assign sets what to points at. It converts as Go does.
func assign(to, value any) error {
	if s, ok := to.(sql.Scanner); ok {
		return s.Scan(value)
	}
	target := reflect.ValueOf(to)
	if target.Kind() != reflect.Pointer || target.IsNil() {
		return fmt.Errorf("%T is no pointer", to)
	}
	target = target.Elem()
	v := reflect.ValueOf(value)
	switch {
	case value == nil:
		target.SetZero()
	case v.CanConvert(target.Type()):
		target.Set(v.Convert(target.Type()))
	case target.Kind() == reflect.Pointer && v.CanConvert(target.Type().Elem()):
		target.Set(reflect.New(target.Type().Elem()))
		target.Elem().Set(v.Convert(target.Type().Elem()))
	default:
		return fmt.Errorf("%T is not assignable to %s", value, target.Type())
	}
	return nil
}

// row is the first of some rows.
type row struct{ rows pgx.Rows }

func (r row) Scan(to ...any) error {
	defer r.rows.Close()
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	return r.rows.Scan(to...)
}
