package replication

import (
	"context"
	"net"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Host is one of the servers that connection strings name.
type Host struct {
	Address  string // host:port, or the path of a socket; never with user or password
	dsn      string // the string that names it
	password PasswordFunc
	cfg      *pgx.ConnConfig
}

// Hosts returns the servers that the connection strings name, each address once, in their order. application is
// the application_name of connections to them. password is called for each connection, with host and port; nil:
// the strings have the passwords. The error is without secrets; n is the index of the string that caused it.
func Hosts(urls []string, application string, password PasswordFunc) (hosts []*Host, n int, err error) {
	c := Config{application: application}
	seen := map[string]bool{}
	for n, url := range urls {
		cfg, err := parseURL(url, c.controlParams())
		if err != nil {
			return nil, n, URLError(err)
		}
		// pgconn tries a host once for each way to encrypt that sslmode allows.
		ways := append([]*pgconn.FallbackConfig{{Host: cfg.Host, Port: cfg.Port, TLSConfig: cfg.TLSConfig}}, cfg.Fallbacks...)
		for len(ways) > 0 {
			first := ways[0]
			own := 1
			for own < len(ways) && ways[own].Host == first.Host && ways[own].Port == first.Port {
				own++
			}
			if address := hostPort(first.Host, first.Port); !seen[address] {
				seen[address] = true
				hosts = append(hosts, &Host{Address: address, dsn: url, password: password, cfg: hostConfig(cfg, ways[:own])})
			}
			ways = ways[own:]
		}
	}
	return hosts, 0, nil
}

// hostConfig is cfg for one of its hosts.
func hostConfig(cfg *pgx.ConnConfig, ways []*pgconn.FallbackConfig) *pgx.ConnConfig {
	own := cfg.Copy()
	own.Host, own.Port, own.TLSConfig, own.Fallbacks = ways[0].Host, ways[0].Port, ways[0].TLSConfig, ways[1:]
	own.ValidateConnect = nil // target_session_attrs: a primary and a standby are both welcome
	return own
}

func hostPort(host string, port uint16) string {
	if strings.HasPrefix(host, "/") {
		return host + "/.s.PGSQL." + strconv.Itoa(int(port))
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

// Connect opens an ordinary connection to the server, which may be in recovery. Its transactions are read-only by
// default.
func (h *Host) Connect(ctx context.Context) (*pgx.Conn, error) {
	open, err := h.Prepare(ctx)
	if err != nil {
		return nil, err
	}
	return open(ctx)
}
