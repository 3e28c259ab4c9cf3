package config

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/outboxcdc/outboxcdc/internal/credential"
	"github.com/outboxcdc/outboxcdc/internal/exit"
)

// maxSecretBytes is more than any connection string or password needs. It bounds what is read of a wrong file.
const maxSecretBytes = 64 << 10

// PostgresAddress is postgres.url, or the content of postgres.url_file; "" means the PG* environment variables.
// Call it for each connection, so that a rotated secret is used, and [Config.PostgresPassword] with it.
func (c *Config) PostgresAddress() (string, error) {
	if c.Postgres.URLFile == "" {
		return c.Postgres.URL, nil
	}
	const setting = "postgres.url_file"
	fail := func(problem string) (string, error) {
		return "", &Error{Where: c.origins[setting], Path: setting, Problem: problem}
	}
	file := c.Postgres.URLFile
	dsn, err := ReadSecret(file)
	if err != nil {
		return fail("read the secret: " + err.Error())
	}
	if dsn == "" { // an empty string would mean the PG* environment variables
		return fail(quote(file) + " is empty; put the connection string into it")
	}
	if problem := checkPostgresURL(dsn); problem != "" {
		return fail(quote(file) + ": " + problem)
	}
	return dsn, nil
}

// PasswordFromCommand reports whether the password of a connection string is the one that
// postgres.password_command prints: there is a command, and the string has no password.
func (c *Config) PasswordFromCommand(dsn string) bool {
	return len(c.Postgres.PasswordCommand) > 0 && dsnParameter(dsn, "password") == ""
}

// PostgresPassword runs postgres.password_command for a connection string, until ctx ends. It returns "" if the
// password is not the command's. host and port are those of the one server that is connected to; "": all of the
// string. The error is no [Error], because the command may succeed later: its exit code is [exit.Unavailable].
func (c *Config) PostgresPassword(ctx context.Context, dsn, host, port string) (string, error) {
	if !c.PasswordFromCommand(dsn) {
		return "", nil
	}
	if host == "" {
		host, port = dsnHosts(dsn)
	}
	var env []string
	for name, value := range map[string]string{"PGHOST": host, "PGPORT": port, "PGUSER": dsnParameter(dsn, "user"), "PGDATABASE": dsnParameter(dsn, "dbname")} {
		if value != "" {
			env = append(env, name+"="+value)
		}
	}
	password, err := credential.Run(ctx, c.Postgres.PasswordCommand, env)
	if err != nil {
		return "", exit.With(exit.Unavailable, fmt.Errorf("%s: %w", c.Problem("postgres.password_command", "").Error(), err))
	}
	return password, nil
}

// StandbyAddresses are the connection strings of postgres.standbys, completed from postgres.url; for auto, the
// string that names the hosts is postgres.url itself. Call it for each round of connections. No string means that
// no standby is watched.
func (c *Config) StandbyAddresses() ([]string, error) {
	base, err := c.PostgresAddress()
	if err != nil || len(c.Postgres.Standbys) == 0 {
		return nil, err
	}
	if c.AutoStandbys() {
		return []string{base}, nil
	}
	var out []string
	for _, dsn := range c.Postgres.Standbys {
		out = append(out, CompleteDSN(dsn, base))
	}
	return out, nil
}

// AutoStandbys reports whether the hosts of postgres.url are the ones to watch.
func (c *Config) AutoStandbys() bool { return slices.Equal(c.Postgres.Standbys, []string{"auto"}) }

// sharedParameters are the parameters that the standbys of a server have in common with it.
var sharedParameters = []string{
	"user", "password", "dbname", "passfile", "service", "servicefile", "sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword", "sslsni",
	"sslnegotiation", "channel_binding", "krbsrvname", "krbspn", "connect_timeout", "options",
}

// CompleteDSN adds to a connection string what it lacks and base has: user, password, database, TLS. It does not add
// hosts and ports, nor the password of another user.
func CompleteDSN(dsn, base string) string {
	user := dsnParameter(dsn, "user")
	for _, key := range sharedParameters {
		value := dsnParameter(base, key)
		if value == "" || dsnParameter(dsn, key) != "" || key == "password" && user != "" && user != dsnParameter(base, "user") {
			continue
		}
		dsn = addParameter(dsn, key, value)
	}
	return dsn
}

func addParameter(dsn, key, value string) string {
	switch {
	case !isURL(dsn):
		return strings.TrimLeft(dsn+" "+key+"="+quoteKeyword(value), " ")
	case strings.Contains(dsn, "?"):
		return dsn + "&" + key + "=" + url.QueryEscape(value)
	}
	return dsn + "?" + key + "=" + url.QueryEscape(value)
}

// SASLPassword is kafka.sasl.password, or the content of kafka.sasl.password_file. Call it for each session.
func (c *Config) SASLPassword() (string, error) {
	s := &c.Kafka.SASL
	if s.PasswordFile == "" {
		return s.Password, nil
	}
	password, err := ReadSecret(s.PasswordFile)
	if err == nil && password == "" {
		err = errors.New(quote(s.PasswordFile) + " is empty; put the password into it")
	}
	if err != nil {
		return "", c.Problem("kafka.sasl.password_file", "read the secret: "+err.Error())
	}
	return password, nil
}

// ReadSecret reads a file and removes one newline at the end, which editors and `echo` add. Further newlines may belong
// to the secret.
func ReadSecret(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSecretBytes))
	if err != nil {
		return "", err
	}
	s, cut := strings.CutSuffix(string(b), "\n")
	if cut {
		s = strings.TrimSuffix(s, "\r")
	}
	return s, nil
}

// masked replaces a secret.
const masked = "xxxxx"

func isURL(dsn string) bool {
	return strings.HasPrefix(dsn, "postgres://") || strings.HasPrefix(dsn, "postgresql://")
}

// shownParameters are the connection parameters that are no secrets. All others are masked: a misspelt name is unknown,
// and its value may be the password.
var shownParameters = map[string]bool{
	"host": true, "hostaddr": true, "port": true, "dbname": true, "database": true, "user": true, "passfile": true, "service": true, "servicefile": true,
	"sslmode": true, "sslrootcert": true, "sslcert": true, "sslkey": true, "sslcrl": true, "sslsni": true, "sslnegotiation": true, "ssl_min_protocol_version": true,
	"ssl_max_protocol_version": true, "channel_binding": true, "require_auth": true, "gssencmode": true, "krbsrvname": true, "krbspn": true,
	"connect_timeout": true, "target_session_attrs": true, "load_balance_hosts": true, "application_name": true, "fallback_application_name": true,
	"min_protocol_version": true, "max_protocol_version": true, "client_encoding": true, "replication": true, "timezone": true, "search_path": true,
}

// shown is the value of a parameter, masked if the parameter may be a secret or the value may contain further
// parameters.
func shown(name, value string) string {
	if !shownParameters[strings.ToLower(name)] || strings.ContainsAny(value, ";=&#") {
		return masked
	}
	return value
}

// RedactDSN masks the passwords of a connection string, as a URL or in keyword form. In doubt it masks more, because
// the string may be malformed.
func RedactDSN(dsn string) string {
	if dsn == "" {
		return ""
	}
	if isURL(dsn) {
		return redactURL(dsn)
	}
	params, ok := parseKeywords(dsn)
	if !ok || strings.Contains(dsn, "://") {
		return masked
	}
	var out []string
	for _, p := range params {
		out = append(out, p.key+"="+quoteKeyword(shown(p.key, p.value)))
	}
	return strings.Join(out, " ")
}

// redactURL does not use net/url, which refuses lists of hosts: a refused URL must be masked as well. Everything
// between the first colon and the last @ is masked, because a password that is not escaped may contain / ? # or @.
func redactURL(dsn string) string {
	scheme, rest, _ := strings.Cut(dsn, "://")
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		// The colon may be percent-encoded, if user and password were encoded together.
		name := strings.ReplaceAll(strings.ReplaceAll(rest[:at], "%3A", ":"), "%3a", ":")
		if user, _, ok := strings.Cut(name, ":"); ok {
			rest = user + ":" + masked + rest[at:]
		}
	}
	rest, fragment, hasFragment := strings.Cut(rest, "#")
	if hasFragment { // a connection string has no fragment, so the password contains a # that is not encoded
		fragment = "#" + masked
	}
	base, query, ok := strings.Cut(rest, "?")
	if !ok {
		return scheme + "://" + base + fragment
	}
	pairs := strings.Split(query, "&")
	for i, pair := range pairs {
		key, text, _ := strings.Cut(pair, "=")
		name, err1 := url.QueryUnescape(key)
		value, err2 := url.QueryUnescape(text)
		switch {
		case !strings.Contains(pair, "="):
			pairs[i] = masked
		case err1 != nil || err2 != nil || shown(name, value) != value:
			pairs[i] = key + "=" + masked
		}
	}
	return scheme + "://" + base + "?" + strings.Join(pairs, "&") + fragment
}

// DSNUser is the user in a connection string, "" if it has none.
func DSNUser(dsn string) string { return dsnParameter(dsn, "user") }

// DSNDatabase is the database in a connection string, "" if it has none.
func DSNDatabase(dsn string) string { return dsnParameter(dsn, "dbname") }

// redactQuery masks the query of a URL, which may contain a key.
func redactQuery(u string) string {
	if base, query, _ := strings.Cut(u, "?"); query != "" {
		return base + "?" + masked
	}
	return u
}

// misplacedAt reports whether the host of a URL is probably the start of a user and a password that are not encoded.
// The host would be resolved, and shown in errors.
func misplacedAt(dsn string) bool {
	_, rest, _ := strings.Cut(dsn, "://")
	end := strings.IndexAny(rest, "/?#")
	return end >= 0 && strings.Contains(rest[:end], ":") && !strings.Contains(rest[:end], "@") && strings.Contains(rest[end:], "@")
}

// dsnParameter is the value of a parameter in a connection string. The parser of pgconn is not used, because it adds
// values from the environment.
func dsnParameter(dsn, key string) string {
	if !isURL(dsn) {
		params, _ := parseKeywords(dsn)
		for _, p := range params {
			if p.key == key || (key == "dbname" && p.key == "database") {
				return p.value
			}
		}
		return ""
	}
	_, rest, _ := strings.Cut(dsn, "://")
	rest, query, _ := strings.Cut(rest, "?")
	if values, err := url.ParseQuery(query); err == nil && values.Has(key) {
		return values.Get(key)
	}
	authority, path, _ := strings.Cut(rest, "/")
	at := strings.LastIndexByte(authority, '@')
	user, password, _ := strings.Cut(authority[:max(at, 0)], ":")
	switch key {
	case "user":
		return unescape(user)
	case "password":
		return unescape(password)
	case "host":
		return unescape(authority[at+1:])
	case "dbname":
		return unescape(path)
	}
	return ""
}

// dsnHosts returns hosts and ports of a connection string, with commas between several.
func dsnHosts(dsn string) (hosts, ports string) {
	hosts, ports = dsnParameter(dsn, "host"), dsnParameter(dsn, "port")
	if !isURL(dsn) || ports != "" {
		return hosts, ports
	}
	var h, p []string
	for _, one := range strings.Split(hosts, ",") {
		host, port, err := net.SplitHostPort(one)
		if err != nil {
			host, port = strings.Trim(one, "[]"), ""
		}
		h, p = append(h, host), append(p, port)
	}
	return strings.Join(h, ","), strings.Trim(strings.Join(p, ","), ",")
}

func unescape(s string) string {
	if u, err := url.PathUnescape(s); err == nil {
		return u
	}
	return s
}
