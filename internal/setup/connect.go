// Package setup creates what outboxcdc needs in a database and in Kafka: role, table, publication, slot and
// position topic. Nothing else in outboxcdc changes a database, except that peek creates a temporary slot.
package setup

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/replication"
)

// URLEnv is the environment variable with the connection string of a privileged role. Unlike --url it is not visible in
// the list of processes.
const URLEnv = "OUTBOXCDC_SETUP_URL"

// DefaultTimeout is how long creating the slot waits for open transactions: longer than most transactions take, and
// short enough for a person who watches.
const DefaultTimeout = time.Minute

// connect opens a connection with the session settings that setup needs. lockTimeout bounds the wait for locks of the
// application.
func connect(ctx context.Context, dsn string, lockTimeout time.Duration) (*pgx.Conn, error) {
	cc, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, exit.With(exit.Usage, fmt.Errorf("read the connection string of --url or %s: %w", URLEnv, replication.URLError(err)))
	}
	cc.DefaultQueryExecMode = pgx.QueryExecModeExec // no prepared statements: there may be a pooler between
	if cc.ConnectTimeout == 0 {
		cc.ConnectTimeout = 15 * time.Second
	}
	cc.OnNotice = func(*pgconn.PgConn, *pgconn.Notice) {}
	conn, err := pgx.ConnectConfig(ctx, cc)
	if err != nil {
		return nil, exit.With(exit.Unavailable, replication.ConnectError(err)) // names host, user and database, not the password
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

// closeConn closes the connection, also after the command's context has ended.
func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

// withExitCode returns err with the exit code of a missing privilege, if err is one.
func withExitCode(err error) error {
	if replication.PluginRefused(err) {
		return exit.With(exit.NoPermission, fmt.Errorf("%w; remedy: %s", err, replication.PluginRemedy))
	}
	if replication.LacksPrivilege(err) {
		return exit.With(exit.NoPermission, fmt.Errorf("%w; connect as a role with that privilege", err))
	}
	return err
}
