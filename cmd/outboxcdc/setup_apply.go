package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/sql"
)

func newSetupApplyCommand(loadConfig func() (*config.Config, error)) *cobra.Command {
	var url string
	var noTopic bool
	a := &applier{}
	cmd := &cobra.Command{
		Use:   "apply",
		Short: "Create what is missing: role, table, grants, publication, slot and position topic",
		Long: "Check every object first, then create what is missing. If an existing object is unfit, it is named with its remedy, and\n" +
			"nothing is changed. Creating the slot waits for open transactions that have written. The position topic is created last, by\n" +
			"the daemon's own Kafka user; delivery.mode at_least_once needs none.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.timeout <= 0 {
				return usageError(fmt.Errorf("--timeout %s: write a time above zero", a.timeout))
			}
			cfg, err := loadConfig()
			if err != nil {
				return err
			}
			if a.params, err = setupParams(cfg); err != nil {
				return err
			}
			if a.function && !a.params.HasFunction() {
				return usageError(errors.New("--function: these settings have none: it writes logical messages, or rows of one table with a column for each argument"))
			}
			dsn, err := setupURL(url)
			if err != nil {
				return err
			}
			a.out = cmd.OutOrStdout()
			if err := a.run(cmd.Context(), dsn); err != nil {
				return withExitCode(err)
			}
			if noTopic {
				return nil
			}
			return applyPositionTopic(cmd.Context(), cfg, a.out, a.dryRun)
		},
	}
	f := cmd.Flags()
	f.StringVar(&url, "url", "", "connection string of a role with the required privileges (default $"+setupURLEnv+")")
	f.BoolVar(&a.dryRun, "dry-run", false, "print what would be done, and change nothing")
	f.DurationVar(&a.timeout, "timeout", setupTimeout, "how long to wait for locks and, for the slot, for open transactions")
	f.BoolVar(&a.function, "function", false, "also make the function "+sql.FunctionName+", with which the application writes events")
	f.StringArrayVar(&a.owners, "owner", nil, "a `role` that may own a table or function that is there, in a schema where every role may create (as in public before PostgreSQL 15)")
	f.BoolVar(&a.noRole, "no-role", false, "do not create the role or grant privileges")
	f.BoolVar(&noTopic, "no-topic", false, "do not create the position topic, and do not connect to Kafka")
	return cmd
}

// applier is one run of `setup apply`.
type applier struct {
	params  sql.Params
	timeout time.Duration
	dryRun  bool
	noRole  bool
	out     io.Writer

	function bool
	owners   []string

	conn *pgx.Conn
	have *catalog
}

func (a *applier) run(ctx context.Context, dsn string) error {
	conn, err := connectSetup(ctx, dsn, a.timeout)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	a.conn, a.have = conn, &catalog{conn: conn, noRole: a.noRole, owners: a.owners, callers: a.function}
	if err := a.have.lookAtServer(ctx); err != nil {
		return err
	}
	a.have.expectDatabase(a.params.Database)
	if err := a.have.look(ctx, a.params); err != nil {
		return err
	}
	if err := errors.Join(a.have.problems...); err != nil {
		return fmt.Errorf("nothing was changed:\n%w", err)
	}
	a.params.Database, a.params.Timeout, a.params.RDS = a.have.database, a.timeout, a.have.rds()
	statements, err := sql.Setup(a.params, a.have.major)
	if err != nil {
		return err
	}
	for _, st := range statements {
		if err := a.step(ctx, st); err != nil {
			return err
		}
	}
	for _, note := range a.have.notes {
		a.say("note: %s", note)
	}
	return nil
}

// step is one object: there already, or made now. Each is a transaction of its own, so what a failed run has made
// stays, and the next run finds it.
func (a *applier) step(ctx context.Context, st sql.Statement) error {
	p := a.params
	object := map[string]struct {
		name  string
		there bool
	}{
		sql.Role:        {"role " + p.Role, a.have.role},
		sql.Outbox:      {"table " + st.Of, a.have.tables[st.Of]},
		sql.Grants:      {"grant to " + p.Role, a.have.grants},
		sql.Publication: {"publication " + p.Publication, a.have.publication},
		sql.Slot:        {"slot " + p.Slot, a.have.slot},
		sql.Function:    {"function " + quoteIdent(p.FunctionSchema(), sql.FunctionName), a.have.function},
	}
	o, isObject := object[st.Name]
	switch {
	case !isObject: // advice is for setup sql
		return nil
	case st.Name == sql.Function && !a.function:
		return nil
	case a.noRole && (st.Name == sql.Role || st.Name == sql.Grants):
		return nil
	case o.there:
		a.say("%s is already there", o.name)
		return nil
	case a.dryRun:
		a.say("would create %s:\n%s", o.name, indent(statementOnly(st.SQL)))
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
	a.say("created %s", o.name)
	if st.Name == sql.Role {
		a.say(`  it has no password yet: set one in psql with \password %s, and a line in pg_hba.conf (setup sql shows it)`, p.Role)
	}
	return nil
}

func (a *applier) say(format string, args ...any) { fmt.Fprintf(a.out, format+"\n", args...) }

// createSlot waits for the transactions that have written and are open. Should we die while it waits, the server
// removes the half-made slot by itself.
func (a *applier) createSlot(ctx context.Context, statement string) error {
	open, err := a.openTransactions(ctx)
	if err != nil {
		return err
	}
	if len(open) > 0 {
		a.say("creating slot %s waits up to %s for open transactions:\n%s", a.params.Slot, a.timeout, indent(strings.Join(open, "\n")))
	}
	_, err = a.conn.Exec(ctx, statement, pgx.QueryExecModeSimpleProtocol)
	if err == nil {
		a.say("created slot %s: from now on the server keeps WAL for it; start the daemon soon", a.params.Slot)
		return nil
	}
	if state := sqlState(err); state != stateLockTimeout && state != stateQueryCanceled {
		return fmt.Errorf("create slot %s: %w", a.params.Slot, err)
	}
	if _, err := a.conn.Exec(ctx, "ROLLBACK"); err != nil {
		return fmt.Errorf("create slot %s: timed out; then: %w", a.params.Slot, err)
	}
	if open, err = a.openTransactions(ctx); err != nil {
		return err
	}
	return fmt.Errorf("create slot %s: %s were not enough for the transactions open at its start to end; nothing is left behind. "+
		"Let them end and run this again, or give a longer --timeout. Open now: %s", a.params.Slot, a.timeout, listOr(open, "none any more"))
}

// openTransactions describes those that have written, oldest first: who has a transaction id holds a lock on it. This
// is visible without a right to see other sessions' activity; what else there is to say may not be.
func (a *applier) openTransactions(ctx context.Context) ([]string, error) {
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
		return nil, fmt.Errorf("look for open transactions: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("look for open transactions: %w", err)
	}
	return list, nil
}

// statementOnly drops the lines that are comments alone.
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
