// Package outboxtable reads the rows of outbox tables as events of a [router.Router], for commands that compare
// tables with Kafka or send rows again.
//
// It promises that the router makes the same record of a row, except for the position header, whether the row comes
// from the table or from the stream; that rows that row-level security hides, and rows of tables that inherit from an
// outbox, are an error with an exit code; and that memory does not grow with the number of rows. It changes nothing
// in the database.
//
// [router.Router]: https://pkg.go.dev/github.com/outboxcdc/outboxcdc/router#Router
package outboxtable

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxcdc/outboxcdc/replication"
)

// Table is an outbox.
type Table struct {
	Schema, Name string
	// Columns must exist: the router needs them. Other columns are read as well, as in the stream. Generated columns are
	// read only if they are named here.
	Columns []string
	// CreatedAt is the column with the time of the row, "" if there is none. The table need not have the column.
	CreatedAt string
	// Order are the columns that order the rows. If empty, the column [sql.SequenceColumn] orders them if [ReadOrder]
	// finds no fault with it. Of rows that are equal in these columns, CreatedAt decides, and then their place in the
	// table (ctid).
	Order []string
	// ByPartition gives the rows of a partition its name instead of the root's, as a publication does whose
	// publish_via_partition_root is off.
	ByPartition bool
}

// String is the qualified name, for people.
func (t *Table) String() string { return t.Schema + "." + t.Name }

// Snapshot is one read-only transaction in which all tables are read. All its methods see the same rows. It holds
// ACCESS SHARE locks, so ALTER TABLE and TRUNCATE wait until Close, and statements that wait for their locks wait as
// well. It is not safe for concurrent use.
type Snapshot struct {
	conn   *pgx.Conn
	tables []*table
	walEnd pglogrepl.LSN
	taken  time.Time
}

// Open begins the transaction on conn, which nothing else may use until Close. Events of tables[i] have
// Relation.Source i.
//
// When the context of a method ends, the method returns at once and closes conn.
func Open(ctx context.Context, conn *pgx.Conn, tables []Table) (*Snapshot, error) {
	s := &Snapshot{conn: conn}
	if err := s.begin(ctx, tables); err != nil {
		s.Close(ctx)
		return nil, err
	}
	return s, nil
}

func (s *Snapshot) begin(ctx context.Context, tables []Table) error {
	const op = "begin a transaction that reads the outbox"
	if err := s.exec(ctx, op, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"); err != nil {
		return err
	}
	for name, value := range s.settings() {
		if err := s.exec(ctx, op, "SET LOCAL "+name+" = "+literal(value)); err != nil {
			return err
		}
	}
	// Locks come before the snapshot: a TRUNCATE between the two would hide rows that the snapshot contains (PostgreSQL,
	// "Caveats" of concurrency control). Neither SET nor LOCK takes a snapshot.
	for i := range tables {
		if err := s.lock(ctx, &tables[i]); err != nil {
			return err
		}
	}
	var err error
	if s.walEnd, s.taken, err = readWALEnd(s.queryRow(ctx, walEndSQL)); err != nil {
		return s.fail(ctx, op, err)
	}
	for i := range tables {
		t, err := s.describe(ctx, tables, i)
		if err != nil {
			return err
		}
		s.tables = append(s.tables, t)
	}
	return nil
}

// walEndSQL reads the end of the WAL, and the time.
const walEndSQL = `SELECT pg_current_wal_insert_lsn()::text, clock_timestamp(), current_setting('wal_block_size')::bigint,
		pg_size_bytes(current_setting('wal_segment_size'))`

// WALEnd returns a position after the commit of everything that was visible before the call. A slot confirms it.
func WALEnd(ctx context.Context, conn *pgx.Conn) (pglogrepl.LSN, error) {
	end, _, err := readWALEnd(conn.QueryRow(ctx, walEndSQL, pgx.QueryExecModeExec))
	return end, err
}

func readWALEnd(row pgx.Row) (end pglogrepl.LSN, now time.Time, err error) {
	var next string
	var page, segment int64
	if err = row.Scan(&next, &now, &page, &segment); err != nil {
		return 0, now, err
	}
	end, err = pglogrepl.ParseLSN(next)
	return endOfRecords(end, pglogrepl.LSN(page), pglogrepl.LSN(segment)), now, err
}

// endOfRecords returns where the last record before next ends. next is where the next record begins. If the last
// record fills a page, that is after the header of the next page, and the server flushes and confirms nothing beyond
// the page while it is idle.
func endOfRecords(next, page, segment pglogrepl.LSN) pglogrepl.LSN {
	const header, firstHeader = 24, 40 // of a page, and of the first page of a segment
	switch {
	case next%segment == firstHeader:
		return next - firstHeader
	case next%page == header && next%segment != header:
		return next - header
	}
	return next
}

// settings are those of the replication connection on which the bytes depend, and those that keep the transaction
// from ending early or from hiding rows.
func (s *Snapshot) settings() map[string]string {
	p := replication.TextSettings()
	if s.isASCII() {
		p["client_encoding"] = "SQL_ASCII"
	}
	for name, value := range map[string]string{
		"row_security":                        "off", // a hidden row is an error
		"statement_timeout":                   "0",
		"lock_timeout":                        "0",
		"idle_in_transaction_session_timeout": "0",
		"cursor_tuple_fraction":               "1", // cursors are read to the end
	} {
		p[name] = value
	}
	if major(s.conn.PgConn()) >= 17 {
		p["transaction_timeout"] = "0"
	}
	return p
}

// isASCII reports whether the database has no encoding. Its text is read as it is stored, as in the stream.
func (s *Snapshot) isASCII() bool {
	return s.conn.PgConn().ParameterStatus("server_encoding") == "SQL_ASCII"
}

// major is the server's major version, 0 if it is not known.
func major(conn *pgconn.PgConn) int {
	version := conn.ParameterStatus("server_version") // "17.2 (Debian …)", "18beta1"
	digits := strings.IndexFunc(version, func(r rune) bool { return r < '0' || r > '9' })
	if digits < 0 {
		digits = len(version)
	}
	n, _ := strconv.Atoi(version[:digits])
	return n
}

func (s *Snapshot) lock(ctx context.Context, t *Table) error {
	err := s.exec(ctx, "read table "+t.String(), "LOCK TABLE "+pgx.Identifier{t.Schema, t.Name}.Sanitize()+" IN ACCESS SHARE MODE")
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch pg.Code {
		case "42P01", "3F000": // undefined_table, invalid_schema_name
			return fmt.Errorf("%w; remedy: set outbox.table, or restore the table", err)
		case "42501": // insufficient_privilege
			return fmt.Errorf("%w; remedy: grant USAGE on the schema and SELECT on the table to the role", err)
		}
	}
	return err
}

// WALEnd is a position after the commit of each row in the snapshot.
func (s *Snapshot) WALEnd() pglogrepl.LSN { return s.walEnd }

// Close ends the transaction. The connection remains open unless that fails.
func (s *Snapshot) Close(ctx context.Context) {
	if s.conn.IsClosed() {
		return
	}
	if _, err := s.conn.PgConn().Exec(ctx, "ROLLBACK").ReadAll(); err != nil {
		s.closeConn()
	}
}

// closeConn closes the connection, also when the context is over.
func (s *Snapshot) closeConn() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = s.conn.Close(ctx)
}

// fail returns the error of what was attempted. It closes the connection if the context is over.
func (s *Snapshot) fail(ctx context.Context, op string, err error) error {
	if ctx.Err() != nil {
		s.closeConn()
		err = context.Cause(ctx)
	}
	return fmt.Errorf("%s: %w", op, err)
}

// exec runs one statement. Unlike [pgx.Conn.Exec], it never prepares the statement under a name.
func (s *Snapshot) exec(ctx context.Context, op, sql string) error {
	if _, err := s.conn.PgConn().ExecParams(ctx, sql, nil, nil, nil, nil).Close(); err != nil {
		return s.fail(ctx, op, err)
	}
	return nil
}

// queryRow and query do not prepare a statement either: a pooler may be in between.
func (s *Snapshot) queryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return s.conn.QueryRow(ctx, sql, append([]any{pgx.QueryExecModeExec}, args...)...)
}

func (s *Snapshot) query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return s.conn.Query(ctx, sql, append([]any{pgx.QueryExecModeExec}, args...)...)
}

// literal quotes a string. standard_conforming_strings may be off, but no value of ours has a backslash.
func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
