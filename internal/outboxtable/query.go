package outboxtable

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Range chooses rows. The zero Range chooses all.
type Range struct {
	// Since is the first time of CreatedAt, and Until the time after the last. A row whose CreatedAt is NULL is in no
	// range of times.
	Since, Until time.Time
	// Where is a further condition, in SQL. Names outside pg_catalog need their schema, except for columns of the table.
	Where string
}

// ConditionError says what is wrong with [Range.Where].
type ConditionError struct {
	Table string
	Where string
	At    int // where Postgres has found the error, in characters of Where; -1: it does not say
	Err   error
}

// Error shows the line of the condition with a caret below it.
func (e *ConditionError) Error() string {
	what := e.Err.Error()
	pg, _ := errors.AsType[*pgconn.PgError](e.Err)
	if pg != nil {
		what = fmt.Sprintf("%s (SQLSTATE %s)", pg.Message, pg.Code)
	}
	text := fmt.Sprintf("read table %s: wrong condition: %s", e.Table, what)
	if e.At >= 0 {
		text += "\n" + mark(e.Where, e.At)
	}
	if pg != nil && pg.Hint != "" {
		text += "\nHint: " + pg.Hint
	}
	if pg != nil && (pg.Code == "42P01" || pg.Code == "42883" || pg.Code == "42704") { // an unknown table, function or type
		text += "\nHint: names outside pg_catalog need their schema, as in public.name"
	}
	return text
}

func (e *ConditionError) Unwrap() error { return e.Err }

// mark returns the line of text that contains the character at, and a caret below it.
func mark(text string, at int) string {
	runes := []rune(text)
	at = min(at, len(runes))
	begin, end := at, at
	for begin > 0 && runes[begin-1] != '\n' {
		begin--
	}
	for end < len(runes) && runes[end] != '\n' {
		end++
	}
	blank := strings.Map(func(r rune) rune {
		if r == '\t' {
			return r
		}
		return ' '
	}, string(runes[begin:at]))
	return "    " + string(runes[begin:end]) + "\n    " + blank + "^"
}

// rangeError says that rows cannot be chosen by time.
func (t *table) rangeError() error {
	switch {
	case t.CreatedAt == "":
		return fmt.Errorf("read table %s: no column has the time of a row; remedy: set outbox.columns.created_at, or leave out --since and --until", t)
	case t.createdAt == nil:
		return fmt.Errorf("read table %s: it has no column %q; remedy: set outbox.columns.created_at, or leave out --since and --until", t, t.CreatedAt)
	case !t.createdAt.isTime():
		return fmt.Errorf("read table %s: column %q is not of type timestamptz, timestamp or date; remedy: set outbox.columns.created_at, or leave out --since and --until",
			t, t.CreatedAt)
	}
	return nil
}

func (c *column) isTime() bool {
	return c.baseOID == timestamptzOID || c.baseOID == timestampOID || c.baseOID == dateOID
}

// statement is a query in the parts around the user's condition.
type statement struct{ before, where, after string }

func (q *statement) String() string { return q.before + q.where + q.after }

// statement is the query for the rows of a range: what begins with SELECT, rest follows the condition.
func (t *table) statement(what string, r Range, rest string) (*statement, error) {
	q := &statement{before: what + " FROM " + t.from + " WHERE true"}
	if !r.Since.IsZero() || !r.Until.IsZero() {
		if err := t.rangeError(); err != nil {
			return nil, err
		}
	}
	for _, bound := range []struct {
		operator string
		at       time.Time
	}{{">=", r.Since}, {"<", r.Until}} {
		if !bound.at.IsZero() {
			q.before += " AND " + quote(t.CreatedAt) + " " + bound.operator + " " + literal(timestamp(bound.at)) + "::timestamptz"
		}
	}
	if r.Where != "" {
		q.before += " AND (\n"
		q.where = r.Where
		q.after = "\n)" // the condition may end with a comment
	}
	q.after += rest
	return q, nil
}

// timestamp prints a time for Postgres, which counts microseconds, rounded up: that changes no comparison by >= and <.
func timestamp(t time.Time) string {
	return t.UTC().Add(time.Microsecond - time.Nanosecond).Truncate(time.Microsecond).Format("2006-01-02 15:04:05.999999+00")
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// failed turns the error of a statement into a *ConditionError if the condition may be what is wrong.
func (s *Snapshot) failed(ctx context.Context, t *table, q *statement, prefix string, err error) error {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || q.where == "" || ctx.Err() != nil {
		return s.fail(ctx, "read table "+t.String(), err)
	}
	e := &ConditionError{Table: t.String(), Where: q.where, At: -1, Err: pg}
	if pg.Position > 0 {
		e.At = int(pg.Position) - 1 - utf8.RuneCountInString(prefix+q.before)
	}
	if pg.Code == "08P01" { // protocol_violation: we send no values of parameters
		e.Err, e.At = errors.New("it cannot have parameters such as $1"), -1
		return e
	}
	switch pg.Code[:2] {
	case "0A", "21", "22", "42": // feature_not_supported, cardinality_violation, data_exception, syntax_error_or_access_rule_violation
		return e
	}
	return s.fail(ctx, "read table "+t.String(), err)
}

// Check finds out whether the rows of a range can be read. The error of a wrong condition is a *[ConditionError]. The
// snapshot can be used further in any case.
func (s *Snapshot) Check(ctx context.Context, table int, r Range) error {
	t := s.tables[table]
	q, err := t.statement("SELECT", r, " LIMIT 0")
	if err != nil {
		return err
	}
	op := "check the rows of table " + t.String()
	if err := s.exec(ctx, op, "SAVEPOINT outboxcdc_check"); err != nil {
		return err
	}
	found := s.checkStatement(ctx, t, q)
	if s.conn.IsClosed() {
		return found
	}
	if err := s.exec(ctx, op, "ROLLBACK TO outboxcdc_check"); err != nil {
		return err
	}
	return found
}

func (s *Snapshot) checkStatement(ctx context.Context, t *table, q *statement) error {
	run := func(sql string) error {
		_, err := s.conn.PgConn().ExecParams(ctx, sql, nil, nil, nil, nil).Close()
		return err
	}
	if err := run(q.String()); err != nil {
		return s.failed(ctx, t, q, "", err)
	}
	if q.where == "" {
		return nil
	}
	// In brackets, a condition that closes our parenthesis is a syntax error. Without them it would escape from the
	// range of times.
	if err := run("SELECT FROM " + t.from + " WHERE (ARRAY[\n" + q.where + "\n])[1] LIMIT 0"); err != nil {
		if ctx.Err() != nil {
			return s.fail(ctx, "check the rows of table "+t.String(), err)
		}
		return &ConditionError{Table: t.String(), Where: q.where, At: -1, Err: errors.New("it is not a single expression: check its parentheses")}
	}
	return nil
}
