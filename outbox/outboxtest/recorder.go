// Package outboxtest tests applications that emit events: a [Recorder] for unit tests without a database, and
// [Contract], which fails when a change of a payload's type would break consumers.
//
// Package pgxoutboxtest is the recorder for pgx.
package outboxtest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"testing"

	"github.com/outboxcdc/outboxcdc/outbox"
	"github.com/outboxcdc/outboxcdc/outbox/internal/record"
)

// Recorder is a database of database/sql that executes nothing. It remembers the events of committed transactions.
//
//	recorder := outboxtest.NewRecorder(t, writer)
//	service := NewService(recorder.DB(), writer)
//	…
//	events := recorder.Events()
type Recorder struct {
	database *record.Database
	db       *sql.DB
}

// NewRecorder returns a recorder for the events of one writer, which ends with the test.
func NewRecorder(t testing.TB, w *outbox.Writer) *Recorder {
	r := &Recorder{database: record.New(w)}
	r.db = sql.OpenDB(connector{r.database})
	t.Cleanup(func() { _ = r.db.Close() })
	return r
}

// DB returns the database for the code under test.
func (r *Recorder) DB() *sql.DB { return r.db }

// Events returns the events of committed transactions, in the order of the commits. They have ids and all headers,
// and their payloads are a json.RawMessage, or a []byte if the column is not JSON. SAVEPOINT and ROLLBACK TO are not
// understood.
func (r *Recorder) Events() []outbox.Event { return r.database.Events() }

// Handle sets what answers the statements of the application: rows for a query, or any rows for another statement,
// whose number is then the number of affected rows. Without it each statement affects one row and returns none.
func (r *Recorder) Handle(h func(query string, args []any) (rows [][]any, err error)) {
	r.database.Handle(h)
}

// Payload decodes the payload of a recorded event.
func Payload[P any](t testing.TB, e outbox.Event) P {
	t.Helper()
	var p P
	raw, _ := e.Payload.(json.RawMessage)
	if err := json.Unmarshal(raw, &p); err != nil {
		t.Fatalf("the payload %q of the event %s is not a %T: %v", raw, e.Type, p, err)
	}
	return p
}

type connector struct{ database *record.Database }

func (c connector) Connect(context.Context) (driver.Conn, error) {
	return &conn{database: c.database}, nil
}
func (c connector) Driver() driver.Driver { return c }
func (connector) Open(string) (driver.Conn, error) {
	return nil, errors.New("outboxtest: a recorder has no data source name")
}

// conn is a connection, which has one transaction at a time.
type conn struct {
	database *record.Database
	tx       *record.Tx // nil outside a transaction
}

var (
	_ driver.ExecerContext  = (*conn)(nil)
	_ driver.QueryerContext = (*conn)(nil)
	_ driver.ConnBeginTx    = (*conn)(nil)
)

func (c *conn) run(query string, args []driver.NamedValue) (record.Result, error) {
	values := make([]any, len(args))
	for i, a := range args {
		values[i] = a.Value
	}
	if c.tx == nil {
		return c.database.Run(query, values)
	}
	return c.tx.Run(query, values)
}

func (c *conn) ExecContext(_ context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	r, err := c.run(query, args)
	return driver.RowsAffected(r.Affected), err
}

func (c *conn) QueryContext(_ context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	r, err := c.run(query, args)
	return &rows{r.Rows}, err
}

func (c *conn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) {
	c.tx = c.database.Begin()
	return c, nil
}

func (c *conn) Begin() (driver.Tx, error) { return c.BeginTx(context.Background(), driver.TxOptions{}) }

func (c *conn) Commit() error {
	c.tx.Commit()
	c.tx = nil
	return nil
}

func (c *conn) Rollback() error {
	c.tx = nil
	return nil
}

func (c *conn) Close() error { return nil }

func (c *conn) Prepare(query string) (driver.Stmt, error) { return &stmt{c, query}, nil }

// CheckNamedValue accepts every argument, as drivers for Postgres accept more than database/sql does.
func (c *conn) CheckNamedValue(*driver.NamedValue) error { return nil }

type stmt struct {
	conn  *conn
	query string
}

func (s *stmt) Close() error  { return nil }
func (s *stmt) NumInput() int { return -1 }

func (s *stmt) Exec(args []driver.Value) (driver.Result, error) {
	return s.conn.ExecContext(context.Background(), s.query, named(args))
}

func (s *stmt) Query(args []driver.Value) (driver.Rows, error) {
	return s.conn.QueryContext(context.Background(), s.query, named(args))
}

func named(args []driver.Value) []driver.NamedValue {
	var all []driver.NamedValue
	for i, a := range args {
		all = append(all, driver.NamedValue{Ordinal: i + 1, Value: a})
	}
	return all
}

// rows are the rows of a handler. Their columns have numbers as names.
type rows struct{ rest [][]any }

func (r *rows) Columns() []string {
	var names []string
	if len(r.rest) > 0 {
		for i := range r.rest[0] {
			names = append(names, strconv.Itoa(i+1))
		}
	}
	return names
}

func (r *rows) Close() error { return nil }

func (r *rows) Next(to []driver.Value) error {
	if len(r.rest) == 0 {
		return io.EOF
	}
	for i := range to {
		v, err := driver.DefaultParameterConverter.ConvertValue(r.rest[0][i])
		if err != nil {
			return err
		}
		to[i] = v
	}
	r.rest = r.rest[1:]
	return nil
}
