package config

import (
	"errors"
	"io"
	"net/url"
	"os"
	"strings"
)

// maxSecretBytes is far more than any connection string or password; it keeps a wrong file name from being read whole.
const maxSecretBytes = 64 << 10

// PostgresURL is the connection string to use now: postgres.url, or the present content of postgres.url_file. Ask at
// each connect, not once, or a rotated secret is not seen. "" means the PG* environment.
func (c *Config) PostgresURL() (string, error) {
	if c.Postgres.URLFile == "" {
		return c.Postgres.URL, nil
	}
	fail := func(problem string) (string, error) {
		return "", &Error{Where: c.origins["postgres.url_file"], Path: "postgres.url_file", Problem: problem}
	}
	dsn, err := ReadSecret(c.Postgres.URLFile)
	if err != nil {
		return fail("read the secret: " + err.Error())
	}
	if dsn == "" { // would silently mean the PG* environment
		return fail(quote(c.Postgres.URLFile) + " is empty; put the connection string into it")
	}
	if problem := checkPostgresURL(dsn); problem != "" {
		return fail(quote(c.Postgres.URLFile) + ": " + problem)
	}
	return dsn, nil
}

// SASLPassword is the password, or the client's secret, to use now: kafka.sasl.password, or the present content of
// kafka.sasl.password_file. Ask at each session.
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

// ReadSecret reads a file and trims one trailing newline, which editors and `echo` add; more may belong to the secret.
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

// masked stands where a secret was.
const masked = "xxxxx"

func isURL(dsn string) bool {
	return strings.HasPrefix(dsn, "postgres://") || strings.HasPrefix(dsn, "postgresql://")
}

// shownParameters are the connection parameters that are no secrets. All others are masked: a misspelt name is unknown, and its value
// may be the password.
var shownParameters = map[string]bool{
	"host": true, "hostaddr": true, "port": true, "dbname": true, "database": true, "user": true, "passfile": true, "service": true, "servicefile": true,
	"sslmode": true, "sslrootcert": true, "sslcert": true, "sslkey": true, "sslcrl": true, "sslsni": true, "sslnegotiation": true, "ssl_min_protocol_version": true,
	"ssl_max_protocol_version": true, "channel_binding": true, "require_auth": true, "gssencmode": true, "krbsrvname": true, "krbspn": true,
	"connect_timeout": true, "target_session_attrs": true, "load_balance_hosts": true, "application_name": true, "fallback_application_name": true,
	"min_protocol_version": true, "max_protocol_version": true, "client_encoding": true, "replication": true, "timezone": true, "search_path": true,
}

// shown is what may be seen of a parameter's value: all of it, unless it looks as if more than one parameter had got into it.
func shown(name, value string) string {
	if !shownParameters[strings.ToLower(name)] || strings.ContainsAny(value, ";=&#") {
		return masked
	}
	return value
}

// RedactDSN masks the passwords of a connection string, in the URL and in the keyword form. In doubt it masks more:
// the text may be malformed, and it is going to a log.
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

// redactURL works on the text: net/url refuses lists of hosts, and what it refuses must be masked as well. Everything
// between the first colon and the last @ counts as the password, since one that is not escaped may hold / ? # or @.
func redactURL(dsn string) string {
	scheme, rest, _ := strings.Cut(dsn, "://")
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		// A colon may be percent-encoded by who encoded user and password as one.
		name := strings.ReplaceAll(strings.ReplaceAll(rest[:at], "%3A", ":"), "%3a", ":")
		if user, _, ok := strings.Cut(name, ":"); ok {
			rest = user + ":" + masked + rest[at:]
		}
	}
	rest, fragment, hasFragment := strings.Cut(rest, "#")
	if hasFragment { // no connection string has one: the password has a # that is not encoded
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

// DSNUser is the user that a connection string names, "" if it names none.
func DSNUser(dsn string) string { return dsnParameter(dsn, "user") }

// DSNDatabase is the database that a connection string names, "" if it names none.
func DSNDatabase(dsn string) string { return dsnParameter(dsn, "dbname") }

// redactQuery masks what stands behind the ? of a URL: it may be a key.
func redactQuery(u string) string {
	if base, query, _ := strings.Cut(u, "?"); query != "" {
		return base + "?" + masked
	}
	return u
}

// misplacedAt: what looks like host and port is the beginning of a user and a password that are not encoded, which would be
// looked up, and shown.
func misplacedAt(dsn string) bool {
	_, rest, _ := strings.Cut(dsn, "://")
	end := strings.IndexAny(rest, "/?#")
	return end >= 0 && strings.Contains(rest[:end], ":") && !strings.Contains(rest[:end], "@") && strings.Contains(rest[end:], "@")
}

// dsnParameter finds user, dbname or another parameter. pgconn's own parser is of no use here: it fills what is missing from the
// environment and the operating system's user, and we ask what was written.
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
	switch key {
	case "user":
	case "dbname":
		return unescape(path)
	default:
		return ""
	}
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		user, _, _ := strings.Cut(authority[:at], ":")
		return unescape(user)
	}
	return ""
}

func unescape(s string) string {
	if u, err := url.PathUnescape(s); err == nil {
		return u
	}
	return s
}
