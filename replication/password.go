package replication

import (
	"context"
	"strconv"

	"github.com/jackc/pgx/v5"
)

// PasswordFunc returns the password of a connection, for example from a command that prints it; "" means that the
// connection string has it, or a file that libpq knows. dsn is the connection string. host and port are those of
// the server, or "" if the string names several: they all get one password. It is called for each connection,
// because a token expires. It ends when ctx ends. Its errors are without secrets.
type PasswordFunc func(ctx context.Context, dsn, host, port string) (string, error)

// Set sets the password of a connection. cfg was parsed from dsn. A nil function sets none.
func (f PasswordFunc) Set(ctx context.Context, dsn string, cfg *pgx.ConnConfig) error {
	if f == nil {
		return nil
	}
	host, port := cfg.Host, strconv.Itoa(int(cfg.Port))
	for _, other := range cfg.Fallbacks {
		if other.Host != cfg.Host || other.Port != cfg.Port {
			host, port = "", ""
		}
	}
	password, err := f(ctx, dsn, host, port)
	if err != nil {
		return fail(Credentials, "get the password", "", "%w", err)
	}
	if password != "" {
		cfg.Password = password
	}
	return nil
}

// Prepare gets the password of a connection and returns what opens the connection, as [Source.Connect] does: a
// limit for the server's answers can begin in between.
func (s *Source) Prepare(ctx context.Context, application string, standby bool) (Connector, error) {
	cfg := s.cfg
	cfg.application = application
	cc, err := cfg.parse(ctx, cfg.controlParams())
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (*pgx.Conn, error) { return connect(ctx, cc, standby) }, nil
}

// Connector opens a connection whose password is known.
type Connector func(ctx context.Context) (*pgx.Conn, error)

// Password returns the password of a connection, as [Config.Password] does.
func (s *Source) Password(ctx context.Context) (string, error) {
	cc, err := s.cfg.parse(ctx, nil)
	if err != nil {
		return "", err
	}
	return cc.Password, nil
}

// Prepare gets the password of a connection to the host and returns what opens the connection, as [Host.Connect]
// does.
func (h *Host) Prepare(ctx context.Context) (Connector, error) {
	cfg := h.cfg.Copy()
	if err := h.password.Set(ctx, h.dsn, cfg); err != nil {
		return nil, err
	}
	return func(ctx context.Context) (*pgx.Conn, error) {
		conn, err := pgx.ConnectConfig(ctx, cfg)
		if err != nil {
			return nil, classify("connect to "+h.Address, connecting, err)
		}
		return conn, nil
	}, nil
}
