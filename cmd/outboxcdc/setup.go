package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/sql"
)

// setupTimeout is how long creating the slot waits for open transactions by default: longer than most of them live, and
// short enough for a person who watches.
const setupTimeout = time.Minute

// defaultRole is the daemon's role when postgres.url names no user.
const defaultRole = "outboxcdc"

// newSetupCommand is `setup sql|apply|destroy`: the only part of outboxcdc that changes a database, and only when asked.
func newSetupCommand(loadConfig func() (*config.Config, error)) *cobra.Command {
	return group(&cobra.Command{
		Use:   "setup",
		Short: "Create or remove the role, table, publication, slot and position topic",
	}, newSetupSQLCommand(loadConfig), newSetupApplyCommand(loadConfig), newSetupDestroyCommand(loadConfig))
}

func newSetupSQLCommand(loadConfig func() (*config.Config, error)) *cobra.Command {
	var server, output string
	var partitioned, rds bool
	cmd := &cobra.Command{
		Use:   "sql",
		Short: "Print the SQL without executing it",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig()
			if err != nil {
				return err
			}
			p, err := setupParams(cfg)
			if err != nil {
				return err
			}
			p.Timeout, p.RDS = setupTimeout, rds
			for i := range p.Tables {
				p.Tables[i].Partitioned = partitioned
			}
			name, _, _ := strings.Cut(server, ".")
			major, err := strconv.Atoi(name)
			if err != nil {
				return usageError(fmt.Errorf("--server-version %s: write a major version from %d to %d", server, sql.MinMajor, sql.MaxMajor))
			}
			statements, err := sql.Setup(p, major)
			if err != nil {
				return usageError(err)
			}
			return printAs(cmd.OutOrStdout(), output, statements, fmt.Sprintf(
				"-- outboxcdc %s: set-up for PostgreSQL %d. Run it once, in the database of the outbox, as a role with the required privileges.\n\n%s",
				buildVersion(), major, statements)+positionTopicComment(cfg))
		},
	}
	cmd.Flags().StringVar(&server, "server-version", "17", "the server's major version, 14 to 18")
	cmd.Flags().BoolVar(&rds, "rds", false, "the server is Amazon RDS or Aurora, which grant REPLICATION through the role rds_replication")
	cmd.Flags().BoolVar(&partitioned, "partitioned", false, "the table is partitioned (of several tables: all are)")
	addOutputFlag(cmd, &output)
	return cmd
}

// setupParams takes the names from the configuration.
func setupParams(cfg *config.Config) (sql.Params, error) {
	dsn, err := cfg.PostgresURL()
	if err != nil {
		return sql.Params{}, err
	}
	var tables []sql.Table
	for _, s := range cfg.Sources() {
		schema, name := s.Name()
		tables = append(tables, sql.Table{Schema: schema, Name: name, Columns: sql.Columns(s.Columns)})
	}
	return sql.Params{
		Database: firstOf(config.DSNDatabase(dsn), os.Getenv("PGDATABASE")),
		Role:     firstOf(config.DSNUser(dsn), os.Getenv("PGUSER"), defaultRole),
		Tables:   tables, Messages: cfg.Messages.Prefix, Publication: cfg.Postgres.Publication, Slot: cfg.Postgres.Slot,
	}, nil
}

func firstOf(names ...string) string {
	for _, n := range names {
		if n != "" {
			return n
		}
	}
	return ""
}

// setupURLEnv passes the connection string of a role that may change the database without it being visible in
// the list of processes, as --url is.
const setupURLEnv = "OUTBOXCDC_SETUP_URL"

// setupURL finds the connection string: --url, the environment, the file it names, or libpq's own variables. It never
// falls back to postgres.url: the daemon's role should not be able to do this.
func setupURL(flag string) (string, error) {
	env, file := os.Getenv(setupURLEnv), os.Getenv(setupURLEnv+"_FILE")
	switch {
	case flag != "":
		return flag, nil
	case env != "" && file != "":
		return "", &exitError{code: exitConfig, err: fmt.Errorf("%s and %s_FILE are both set; remove one", setupURLEnv, setupURLEnv)}
	case env != "":
		return env, nil
	case file != "":
		dsn, err := config.ReadSecret(file)
		if err != nil {
			return "", &exitError{code: exitConfig, err: fmt.Errorf("%s_FILE: %w", setupURLEnv, err)}
		}
		return dsn, nil
	case os.Getenv("PGHOST") != "" || os.Getenv("PGSERVICE") != "":
		return "", nil // pgx reads them
	}
	return "", usageError(fmt.Errorf("no server named: give --url or %s, the connection string of a role with the required privileges (not the daemon's)", setupURLEnv))
}

// connectSetup opens a connection whose every session setting that matters is ours. lockTimeout bounds the waiting for
// the application's locks.
func connectSetup(ctx context.Context, dsn string, lockTimeout time.Duration) (*pgx.Conn, error) {
	cc, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, usageError(fmt.Errorf("read the connection string of --url or %s: %w", setupURLEnv, replication.URLError(err)))
	}
	cc.DefaultQueryExecMode = pgx.QueryExecModeExec // no prepared statements: a pooler may stand in between
	if cc.ConnectTimeout == 0 {
		cc.ConnectTimeout = 15 * time.Second
	}
	cc.OnNotice = func(*pgconn.PgConn, *pgconn.Notice) {}
	conn, err := pgx.ConnectConfig(ctx, cc)
	if err != nil {
		return nil, &exitError{code: exitUnavailable, err: err} // names host, user and database, not the password
	}
	_, err = conn.Exec(ctx, fmt.Sprintf(
		`SET search_path = pg_catalog; SET application_name = 'outboxcdc setup'; SET statement_timeout = 0; SET lock_timeout = '%dms'`,
		max(1, lockTimeout.Milliseconds())), pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		closeConn(conn)
		return nil, fmt.Errorf("prepare the session: %w", err)
	}
	return conn, nil
}

// closeConn says goodbye even when the command's context is over.
func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

// SQLSTATEs that setup tells apart.
const (
	stateNoPermission  = "42501"
	stateLockTimeout   = "55P03"
	stateQueryCanceled = "57014"
)

func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// withExitCode turns a missing right into exit code 77.
func withExitCode(err error) error {
	if sqlState(err) == stateNoPermission {
		return &exitError{code: exitNoPermission, err: fmt.Errorf("%w; connect as somebody with that right", err)}
	}
	return err
}
