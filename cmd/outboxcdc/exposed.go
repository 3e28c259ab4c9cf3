package main

import (
	"crypto/tls"
	"net"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/internal/config"
)

// exposedSecrets says which secrets of a configuration the network can read, each with the reason.
func exposedSecrets(cfg *config.Config) (out []string) {
	if sasl := &cfg.Kafka.SASL; !cfg.HasReceiver() {
		switch {
		case cfg.TLS.Enabled:
		case sasl.Mechanism == "PLAIN":
			out = append(out, "the Kafka password is sent unencrypted: kafka.sasl.mechanism is PLAIN and tls.enabled is false")
		case sasl.Mechanism == "OAUTHBEARER":
			out = append(out, "Kafka's tokens are sent unencrypted: kafka.sasl.mechanism is OAUTHBEARER and tls.enabled is false")
		}
		if u, err := url.Parse(sasl.TokenURL); err == nil && strings.EqualFold(u.Scheme, "http") && !isLocal(u.Hostname()) {
			out = append(out, "the client's secret is sent unencrypted: kafka.sasl.token_url is http, and not of this machine")
		}
	}
	if len(cfg.Postgres.PasswordCommand) > 0 && !verifiesPostgres(cfg) {
		out = append(out, "a server in between may ask for the password of postgres.password_command: sslmode in postgres.url is neither verify-ca nor verify-full")
	}
	return out
}

// verifiesPostgres reports whether each connection to a server of postgres.url on another machine checks the
// server's certificate. It is true for a connection string that cannot be read, which has an error of its own.
func verifiesPostgres(cfg *config.Config) bool {
	dsn, err := cfg.PostgresAddress()
	if err != nil {
		return true
	}
	conn, err := pgx.ParseConfig(dsn)
	if err != nil {
		return true
	}
	verified := func(host string, t *tls.Config) bool { // with verify-ca, pgx checks the certificate by a function
		return isLocal(host) || t != nil && (!t.InsecureSkipVerify || t.VerifyPeerCertificate != nil)
	}
	all := verified(conn.Host, conn.TLSConfig)
	for _, other := range conn.Fallbacks {
		all = all && verified(other.Host, other.TLSConfig)
	}
	return all
}

// isLocal reports whether a host is this machine, by its name, address, or the folder of a socket.
func isLocal(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || strings.HasPrefix(host, "/") || ip != nil && ip.IsLoopback()
}
