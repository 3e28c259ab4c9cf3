// Package replication is the walsender's other end: it finds out whether server, slot and publication are what the
// configuration says, opens one START_REPLICATION stream, reads it and sends standby status updates.
//
// It promises that no status update carries a zero or an unrequested position, that the bytes of the stream do not
// depend on settings of the role or the database, and that every failure is an [Error] whose Kind says what it means.
// How far may be confirmed is package checkpoint's answer; when, and what happens after a failure, is package relay's.
package replication

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Config says which slot of which database is read.
type Config struct {
	// URL is asked at every connect, so that a rotated secret is noticed. "" means libpq's PG* environment.
	URL         func() (string, error)
	Slot        string // [a-z0-9_]{1,63}
	Publication string
	Tables      []Table // each outbox; none if logical messages are the only source
	Messages    bool    // logical messages are asked for
	// WalSenderTimeout is set for our own walsender: how soon the server frees the slot of a dead client, and, from
	// our side, how long a silent stream is believed in.
	WalSenderTimeout time.Duration
	// DecodingWorkMem sets logical_decoding_work_mem for our walsender; "" leaves the server's.
	DecodingWorkMem string
	// ReadInterval is the least time between two reads of the stream's socket that bring little; 0 reads whenever there is
	// something. ReceiveBuffer is SO_RCVBUF of that socket in bytes while it is read that way, 0 the kernel's choice; see
	// AutoReceiveBuffer.
	ReadInterval  time.Duration
	ReceiveBuffer int
	// Dial replaces the network dialer, for tests; nil is the default.
	Dial   pgconn.DialFunc
	Logger *slog.Logger

	application string // "": the daemon's name
}

// connectTimeout bounds one attempt to connect when the URL says nothing; queryTimeout bounds one catalog query.
const (
	connectTimeout = 10 * time.Second
	queryTimeout   = 5 * time.Second
)

// ApplicationName is how our connections appear in pg_stat_activity and pg_stat_replication: the server cuts names at
// 63 bytes.
func (c *Config) ApplicationName() string {
	name := cmp.Or(c.application, "outboxcdc-"+c.Slot)
	return name[:min(len(name), 63)]
}

// Table is an outbox.
type Table struct {
	Schema, Name string
	Columns      []string // that must be published
}

// String is the qualified name, for people.
func (t *Table) String() string { return t.Schema + "." + t.Name }

// tables names all of them, for people.
func (c *Config) tables() string {
	names := make([]string, len(c.Tables))
	for i := range c.Tables {
		names[i] = c.Tables[i].String()
	}
	return strings.Join(names, ", ")
}

// andTables ends the naming of the publication.
func (c *Config) andTables() string {
	if len(c.Tables) == 0 {
		return ""
	}
	return " and table " + c.tables()
}

// publicationRemedy says where what the publication did not carry has to be looked for.
func (c *Config) publicationRemedy() string {
	if len(c.Tables) == 0 {
		return "restore the publication (outboxcdc setup sql shows it); messages that could not be read without it are in no table"
	}
	return publicationRemedy
}

// forTables ends a sentence about the publication.
func (c *Config) forTables() string {
	if len(c.Tables) == 0 {
		return ""
	}
	return " for table " + c.tables()
}

// TextSettings are the session settings that decide how PostgreSQL prints values. A query under these settings returns the bytes that
// the stream carries. regclass and similar types name the schema of everything outside pg_catalog.
func TextSettings() map[string]string {
	return map[string]string{
		"client_encoding":       "UTF8", // of a SQL_ASCII database: SQL_ASCII, see asStored
		"quote_all_identifiers": "off",
		"DateStyle":             "ISO",
		"IntervalStyle":         "postgres",
		"extra_float_digits":    "3",
		"TimeZone":              "UTC",
		"bytea_output":          "hex",
		"search_path":           "pg_catalog",
		"lc_monetary":           "C",
	}
}

// streamParams are what the bytes of the stream depend on, and what could end it. As startup parameters they win over ALTER ROLE
// and ALTER DATABASE. client_min_messages must not be error: the notice that a publication was skipped is a warning. major is
// the server's, 0 if it is not known.
func (c *Config) streamParams(major int) map[string]string {
	p := TextSettings()
	maps.Copy(p, map[string]string{
		"replication":         "database",
		"application_name":    c.ApplicationName(),
		"client_min_messages": "warning",
		"wal_sender_timeout":  strconv.FormatInt(c.WalSenderTimeout.Milliseconds(), 10) + "ms",
	})
	if major >= 17 { // it would end the walsender in the middle of every transaction that takes longer to send
		p["transaction_timeout"] = "0"
	}
	if c.DecodingWorkMem != "" {
		p["logical_decoding_work_mem"] = c.DecodingWorkMem
	}
	return p
}

// controlParams are for the ordinary connection, which only reads catalogs and must never hang.
func (c *Config) controlParams() map[string]string {
	ms := strconv.FormatInt(queryTimeout.Milliseconds(), 10)
	return map[string]string{
		"application_name":              c.ApplicationName(),
		"client_encoding":               "UTF8",
		"idle_session_timeout":          "0", // it idles between two looks of the guard
		"default_transaction_read_only": "on",
		"statement_timeout":             ms,
		"lock_timeout":                  ms,
		"search_path":                   "pg_catalog",
	}
}

// parse reads the connection settings again.
func (c *Config) parse(params map[string]string) (*pgx.ConnConfig, error) {
	url, err := c.URL()
	if err != nil {
		return nil, fail(Credentials, "read the connection settings", "", "%w", err)
	}
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		if e := FileError(err); e != nil {
			return nil, fail(Credentials, "read the certificates that postgres.url names", "", "%w", e)
		}
		return nil, fail(Unsuitable, "read postgres.url", "see PostgreSQL, \"Connection Strings\"", "%w", URLError(err))
	}
	for k, v := range params {
		for old := range cfg.RuntimeParams {
			if strings.EqualFold(old, k) {
				delete(cfg.RuntimeParams, old)
			}
		}
		cfg.RuntimeParams[k] = v
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = connectTimeout
	}
	cfg.ValidateConnect = onlyPrimary
	cfg.AfterConnect = asStored
	if c.Dial != nil {
		cfg.DialFunc = c.Dial
	}
	return cfg, nil
}

// asStored has the server send the text of a SQL_ASCII database as it is stored. That is whatever bytes the clients wrote
// (PostgreSQL, "Character Set Support"), and the server would refuse to send some of it as UTF-8, at each try.
func asStored(ctx context.Context, conn *pgconn.PgConn) error {
	if conn.ParameterStatus("server_encoding") != "SQL_ASCII" {
		return nil
	}
	return conn.Exec(ctx, "SET client_encoding = SQL_ASCII").Close()
}

// dialControl opens the ordinary connection.
func (c *Config) dialControl(ctx context.Context) (*pgx.Conn, error) {
	cfg, err := c.parse(c.controlParams())
	if err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, classify("connect to Postgres", connecting, err)
	}
	return conn, nil
}

// tap is what a stream's connection tells of its reads, and calls before each; by the goroutine that reads it.
type tap struct {
	got     atomic.Bool // bytes have come since it was last asked
	drained atomic.Pointer[func()]
}

func (s *tap) onDrained() {
	if f := s.drained.Load(); f != nil {
		(*f)()
	}
}

// keepAlive is how long a silent connection is believed in by the kernel, as pgconn's own dialer has it.
const keepAlive = 5 * time.Minute

// dialStream opens the replication connection.
func (c *Config) dialStream(ctx context.Context, major int, onNotice pgconn.NoticeHandler, s *tap) (*pgconn.PgConn, error) {
	cfg, err := c.parse(c.streamParams(major))
	if err != nil {
		return nil, err
	}
	cfg.OnNotice = onNotice
	if c.Dial == nil {
		cfg.DialFunc = (&net.Dialer{KeepAlive: keepAlive, Control: limitSegments}).DialContext
	}
	dial := c.dialLate(cfg.DialFunc, s.onDrained)
	cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &listened{conn, &s.got}, nil
	}
	conn, err := pgconn.ConnectConfig(ctx, &cfg.Config)
	if err != nil {
		return nil, classify("open a replication connection", connecting, err)
	}
	return conn, nil
}

// listened is a connection, beneath TLS if there is any, that notes when bytes come.
type listened struct {
	net.Conn
	got *atomic.Bool
}

func (c *listened) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.got.Store(true)
	}
	return n, err
}

// quotePublication writes a publication name for publication_names, which is parsed as a list of SQL identifiers
// inside a string literal that pglogrepl pastes as it is.
func quotePublication(name string) string {
	ident := `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
	return "'" + strings.ReplaceAll(ident, "'", "''") + "'"
}

// CheckSlotName refuses what PostgreSQL would refuse, before pglogrepl pastes it into a command.
func CheckSlotName(name string) error {
	if name == "" || len(name) > 63 {
		return fmt.Errorf("slot name %q: 1 to 63 characters of a-z, 0-9 and _", name)
	}
	for _, r := range name {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '_' {
			return fmt.Errorf("slot name %q: 1 to 63 characters of a-z, 0-9 and _", name)
		}
	}
	return nil
}
