package replication

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Connect opens an ordinary connection as the daemon does, under another name, for commands that look at the server from outside a
// session. It reads only, and no statement takes longer than the daemon allows. standby lets it be a server in recovery,
// which the daemon waits for the end of.
func (s *Source) Connect(ctx context.Context, application string, standby bool) (*pgx.Conn, error) {
	cfg := s.cfg
	cfg.application = application
	cc, err := cfg.parse(cfg.controlParams())
	if err != nil {
		return nil, err
	}
	if standby {
		cc.ValidateConnect = func(context.Context, *pgconn.PgConn) error { return nil }
	}
	conn, err := pgx.ConnectConfig(ctx, cc)
	if err != nil {
		return nil, classify("connect to Postgres", connecting, err)
	}
	return conn, nil
}

// Identify opens a replication connection as the daemon does, asks whose it is, and closes it: pg_hba.conf, the right
// REPLICATION and the room for one more walsender show here, and so does a pooler in between.
func (s *Source) Identify(ctx context.Context, application string) (Identity, error) {
	cfg := s.cfg
	cfg.application = application
	conn, err := cfg.dialStream(ctx, 0, nil, &tap{})
	if err != nil {
		return Identity{}, err
	}
	defer closeNow(conn)
	return identify(ctx, conn)
}

// CheckAsynchronous is an error if the server, with that value of synchronous_standby_names, would let commits wait for
// the daemon.
func (s *Source) CheckAsynchronous(names string) error { return s.cfg.verifyAsync(names, "") }

// ApplicationName is the daemon's in pg_stat_activity and pg_stat_replication.
func (s *Source) ApplicationName() string { return s.cfg.ApplicationName() }
