package replication

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Connect opens an ordinary connection for commands that inspect the server, with the daemon's parameters and another
// application_name. standby allows a server in recovery, if none of the hosts is a primary.
func (s *Source) Connect(ctx context.Context, application string, standby bool) (*pgx.Conn, error) {
	open, err := s.Prepare(ctx, application, standby)
	if err != nil {
		return nil, err
	}
	return open(ctx)
}

// connect opens a connection, also to a server in recovery if standby is set and none of the hosts is a primary.
func connect(ctx context.Context, cc *pgx.ConnConfig, standby bool) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, cc)
	if standby && errors.Is(err, errStandby) {
		cc.ValidateConnect = func(context.Context, *pgconn.PgConn) error { return nil }
		conn, err = pgx.ConnectConfig(ctx, cc)
	}
	if err != nil {
		return nil, classify("connect to Postgres", connecting, err)
	}
	return conn, nil
}

// Identify opens a replication connection with the daemon's parameters, identifies the server, and closes the
// connection. It fails because of pg_hba.conf, a missing REPLICATION attribute, max_wal_senders, or a pooler.
func (s *Source) Identify(ctx context.Context, application string) (Identity, error) {
	cfg := s.cfg
	cfg.application = application
	conn, err := cfg.dialStream(ctx, 0, nil, &readTap{})
	if err != nil {
		return Identity{}, err
	}
	defer closeNow(conn)
	return identify(ctx, conn)
}

// CheckAsynchronous returns an error if commits would wait for the daemon with that value of synchronous_standby_names.
func (s *Source) CheckAsynchronous(names string) error { return s.cfg.verifyAsync(names, "") }

// ApplicationName returns the daemon's application_name.
func (s *Source) ApplicationName() string { return s.cfg.ApplicationName() }
