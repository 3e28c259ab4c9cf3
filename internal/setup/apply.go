package setup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxcdc/outboxcdc/internal/advice"
	"github.com/outboxcdc/outboxcdc/sql"
)

// Apply is one run of `setup apply`: it checks every object first, then creates what is missing.
type Apply struct {
	Params   sql.Params
	Timeout  time.Duration // for locks and, for the slot, for open transactions
	DryRun   bool          // print what would be done, and change nothing
	NoRole   bool          // do not create the role or grant privileges
	Function bool          // also create the function with which the application writes events
	Owners   []string      // roles that may own an existing table or function
	Create   bool          // create a table even if there is one with a similar name
	Out      io.Writer

	conn    *pgx.Conn
	catalog *catalog
}

// Run opens a connection, creates what is missing, and closes the connection. The error has an exit code. If dsn is
// empty, libpq's variables name the server.
func (a *Apply) Run(ctx context.Context, dsn string) error { return withExitCode(a.run(ctx, dsn)) }

func (a *Apply) run(ctx context.Context, dsn string) error {
	conn, err := connect(ctx, dsn, a.Timeout)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	a.conn, a.catalog = conn, &catalog{conn: conn, noRole: a.NoRole, owners: a.Owners, wantFunction: a.Function, createTable: a.Create}
	if err := a.catalog.checkServer(ctx); err != nil {
		return err
	}
	a.catalog.checkDatabase(a.Params.Database)
	if err := a.catalog.check(ctx, a.Params); err != nil {
		return err
	}
	if err := errors.Join(a.catalog.problems...); err != nil {
		return fmt.Errorf("nothing was changed:\n%w", err)
	}
	a.Params.Database, a.Params.Timeout, a.Params.RDS = a.catalog.server.Database, a.Timeout, a.catalog.isRDS()
	statements, err := sql.Setup(a.Params, a.catalog.server.Major())
	if err != nil {
		return err
	}
	for _, st := range statements {
		if err := a.step(ctx, st); err != nil {
			return err
		}
	}
	if a.Params.NoSlot && !a.catalog.slot {
		a.printf("slot %s is not created: backfill or recover creates it", a.Params.Slot)
	}
	for _, note := range a.catalog.notes {
		a.printf("note: %s", note)
	}
	return nil
}

// step creates one object unless it exists. Each step is a transaction of its own: what a failed run has created is
// kept, and the next run finds it.
func (a *Apply) step(ctx context.Context, st sql.Statement) error {
	p := a.Params
	object := map[string]struct {
		name   string
		exists bool
	}{
		sql.Role:        {"role " + p.Role, a.catalog.role},
		sql.Outbox:      {"table " + st.Table, a.catalog.tables[st.Table]},
		sql.Grants:      {"grant to " + p.Role, a.catalog.grants},
		sql.Publication: {"publication " + p.Publication, a.catalog.publication},
		sql.Slot:        {"slot " + p.Slot, a.catalog.slot},
		sql.Function:    {"function " + quoteIdent(p.FunctionSchema(), sql.FunctionName), a.catalog.function},
	}
	o, isObject := object[st.Name]
	switch {
	case st.Name == sql.Advice: // only setup sql prints it
		return nil
	case !isObject:
		return fmt.Errorf("internal error: setup apply does not know the step %s", st.Name)
	case st.Name == sql.Function && !a.Function:
		return nil
	case a.NoRole && (st.Name == sql.Role || st.Name == sql.Grants):
		return nil
	case o.exists:
		a.printf("%s already exists", o.name)
		return nil
	case a.DryRun:
		a.printf("would create %s:\n%s", o.name, indent(statementOnly(st.SQL)))
		return nil
	case st.Name == sql.Slot:
		return a.createSlot(ctx, st.SQL)
	}
	if _, err := a.conn.Exec(ctx, st.SQL, pgx.QueryExecModeSimpleProtocol); err != nil {
		return fmt.Errorf("create %s: %w", o.name, err)
	}
	if st.Name == sql.Grants {
		if err := a.verifyGrants(ctx); err != nil {
			return err
		}
	}
	a.printf("created %s", o.name)
	if st.Name == sql.Role {
		a.printf(`  the role has no password yet: set one in psql with \password %s, and add a line to pg_hba.conf (setup sql prints it)`, p.Role)
	}
	return nil
}

func (a *Apply) printf(format string, args ...any) { fmt.Fprintf(a.Out, format+"\n", args...) }

// The SQLSTATEs of a wait that timed out.
const (
	lockTimeout   = "55P03"
	queryCanceled = "57014"
)

// createSlot creates the slot, for which the server waits until all open transactions that have written have ended. If
// this process dies meanwhile, the server removes the incomplete slot.
func (a *Apply) createSlot(ctx context.Context, statement string) error {
	open, err := a.openTransactions(ctx)
	if err != nil {
		return err
	}
	if len(open) > 0 {
		a.printf("creating slot %s waits up to %s for open transactions:\n%s", a.Params.Slot, a.Timeout, indent(strings.Join(open, "\n")))
	}
	_, err = a.conn.Exec(ctx, statement, pgx.QueryExecModeSimpleProtocol)
	if err == nil {
		a.printf("created slot %s: from now on the server keeps WAL for it; start the daemon soon", a.Params.Slot)
		a.noteOlderRows(ctx)
		return nil
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != lockTimeout && pg.Code != queryCanceled {
		return fmt.Errorf("create slot %s: %w", a.Params.Slot, err)
	}
	if _, err := a.conn.Exec(ctx, "ROLLBACK"); err != nil {
		return fmt.Errorf("create slot %s: timed out; then: %w", a.Params.Slot, err)
	}
	if open, err = a.openTransactions(ctx); err != nil {
		return err
	}
	return fmt.Errorf("create slot %s: transactions that were open at the start did not end within %s; the slot was not created. "+
		"Wait until they have ended and run this again, or give a longer --timeout. Open now: %s", a.Params.Slot, a.Timeout, listOr(open, "none"))
}

// noteOlderRows notes that a table has rows: those that are older than the slot are not in its stream. Whether
// another program has delivered them is not known here.
func (a *Apply) noteOlderRows(ctx context.Context) {
	for i := range a.Params.Tables {
		t := &a.Params.Tables[i]
		var rows bool
		_, err := a.conn.Exec(ctx, "SET row_security = off") // an error instead of hidden rows
		if err == nil {
			err = a.conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM "+t.String()+")").Scan(&rows)
		}
		switch {
		case err != nil:
			a.catalog.notes = append(a.catalog.notes, fmt.Sprintf("whether table %s has rows is not known (%v): %s", t, err, olderRows))
		case rows:
			a.catalog.notes = append(a.catalog.notes, fmt.Sprintf("table %s has rows: %s", t, olderRows))
		}
	}
}

// olderRows is what to do about rows that are older than the slot.
const olderRows = "the slot does not have those that were committed before it. Unless they need no delivery, do not start the daemon yet: " + advice.Recover

// openTransactions describes the open transactions that have written. Such a transaction has an id and holds a lock on
// that id, which every role may see. Role, database, application and state are shown if this role may see other
// sessions' activity.
func (a *Apply) openTransactions(ctx context.Context) ([]string, error) {
	rows, err := a.conn.Query(ctx, `
		SELECT format('pid %s (user %s, database %s, application "%s", %s%s)', l.pid, coalesce(usename, '?'), coalesce(datname, '?'),
				coalesce(application_name, '?'), coalesce(state, 'state not visible'),
				', open for ' || date_trunc('second', clock_timestamp() - xact_start))
			FROM pg_locks l LEFT JOIN pg_stat_activity s USING (pid)
			WHERE l.locktype = 'transactionid' AND l.granted AND l.mode = 'ExclusiveLock' AND l.pid <> pg_backend_pid()
			GROUP BY l.pid, usename, datname, application_name, state, xact_start
		UNION ALL
		SELECT format('prepared transaction %L (owner %s, database %s, prepared %s)', gid, owner, database, prepared) FROM pg_prepared_xacts`)
	if err != nil {
		return nil, fmt.Errorf("list open transactions: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("list open transactions: %w", err)
	}
	return list, nil
}

// statementOnly is text without the lines that are only a comment.
func statementOnly(text string) string {
	var keep []string
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "--") {
			keep = append(keep, line)
		}
	}
	return strings.TrimRight(strings.Join(keep, ""), "\n")
}

func indent(text string) string { return "    " + strings.ReplaceAll(text, "\n", "\n    ") }
