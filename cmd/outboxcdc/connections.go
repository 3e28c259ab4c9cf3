package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/exporter-toolkit/web"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/wire"
	"github.com/outboxcdc/outboxcdc/replication"
)

// checkConnections reads the secrets, the certificates and the web configuration, and returns all errors.
func checkConnections(cfg *config.Config) error {
	_, secretErr := cfg.PostgresAddress()
	return errors.Join(secretErr, checkPostgresURL(cfg, true), checkStandbys(cfg, true), wire.SinkSecurity(cfg), checkWebConfig(cfg))
}

// checkStandbys validates the connection strings of postgres.standbys, as checkPostgresURL does. Keywords are not
// checked: servers refuse unknown ones, and a standby that cannot be asked stops nothing.
func checkStandbys(cfg *config.Config, files bool) error {
	if cfg.AutoStandbys() { // postgres.url, which has its own check
		return nil
	}
	urls, err := cfg.StandbyAddresses()
	if err != nil {
		return nil
	}
	for i, url := range urls {
		_, err := pgx.ParseConfig(url)
		if err != nil && (files || replication.FileError(err) == nil) {
			return cfg.Problem("postgres.standbys", fmt.Sprintf("entry %d: %v", i+1, replication.URLError(err)))
		}
	}
	return nil
}

// checkPostgresURL validates the connection string and, if files is true, reads the certificates that it names. The
// daemon waits for a file that cannot be read, because the file may be created later.
func checkPostgresURL(cfg *config.Config, files bool) error {
	url, err := cfg.PostgresAddress()
	if err != nil {
		return nil
	}
	path := "postgres.url"
	if cfg.Postgres.URLFile != "" {
		path = "postgres.url_file"
	}
	conn, err := pgx.ParseConfig(url)
	switch {
	case err != nil && replication.FileError(err) != nil && !files:
		return nil
	case err != nil:
		problem := replication.URLError(err).Error()
		if strings.HasPrefix(problem, "sslmode is invalid") {
			problem += "; write disable, allow, prefer, require, verify-ca or verify-full"
		}
		return cfg.Problem(path, problem)
	}
	for _, name := range slices.Sorted(maps.Keys(conn.RuntimeParams)) {
		if problem := checkKeyword(name); problem != "" {
			return cfg.Problem(path, problem)
		}
	}
	return nil
}

// keywords are those of a connection string, of libpq and of pgx, that are not settings of the server.
var keywords = []string{
	"host", "port", "dbname", "user", "password", "passfile", "service", "servicefile", "connect_timeout", "target_session_attrs",
	"sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword", "sslsni", "sslnegotiation", "krbsrvname", "krbspn", "channel_binding",
}

// unsupported are keywords of libpq that pgx does not have.
var unsupported = []string{
	"hostaddr", "require_auth", "requirepeer", "fallback_application_name", "gssencmode", "gsslib", "gssdelegation", "keepalives", "keepalives_idle",
	"keepalives_interval", "keepalives_count", "load_balance_hosts", "sslcompression", "sslcertmode", "sslcrl", "sslcrldir", "ssl_min_protocol_version",
	"ssl_max_protocol_version",
}

// serverSettings are settings of the server that a connection string may contain. All other settings can be given as
// options=-c NAME=VALUE.
var serverSettings = []string{
	"application_name", "options", "client_encoding", "timezone", "datestyle", "search_path", "statement_timeout", "lock_timeout",
	"idle_session_timeout", "idle_in_transaction_session_timeout", "transaction_timeout", "tcp_keepalives_idle", "tcp_keepalives_interval",
	"tcp_keepalives_count", "tcp_user_timeout", "extra_float_digits", "work_mem", "logical_decoding_work_mem", "role", "replication",
}

// checkKeyword says what is wrong with a keyword of a connection string, "" if nothing is. The text does not contain
// the value.
func checkKeyword(name string) string {
	if slices.Contains(serverSettings, strings.ToLower(name)) || strings.Contains(name, ".") {
		return ""
	}
	if slices.Contains(unsupported, name) {
		return fmt.Sprintf("the connection keyword %q of libpq is not supported; remove it", name)
	}
	problem := fmt.Sprintf("the connection keyword %q is unknown", name)
	if near := config.Nearest(name, slices.Concat(keywords, serverSettings)); near != "" {
		return problem + fmt.Sprintf("; did you mean %q?", near)
	}
	return problem + fmt.Sprintf("; remove it, or write options=-c %s=… for a setting of the server", name)
}

func checkWebConfig(cfg *config.Config) error {
	if err := web.Validate(cfg.HTTP.WebConfigFile); err != nil {
		return cfg.Problem("http.web_config_file", withoutValues(err.Error())+"; remedy: correct the file, or set \"\" for neither TLS nor passwords")
	}
	return nil
}
