// Package replication is the client of the walsender. It checks server, slot and publication, opens one
// START_REPLICATION stream, reads it and sends standby status updates.
//
// It guarantees that no status update has a zero or an unrequested position, that the bytes of the stream do not
// depend on settings of the role or the database, and that every failure is an [Error] with a Kind. Package
// checkpoint decides which position may be confirmed; package relay decides when, and what happens after a failure.
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

	"github.com/outboxcdc/outboxcdc/internal/advice"
)

// Config names the slot, the database and the outboxes, and has the settings of the connections.
type Config struct {
	// URL returns the connection string. It is called for every connection, because secrets rotate. "" means libpq's PG*
	// environment.
	URL         func() (string, error)
	Password    PasswordFunc // of a connection with that string; nil: the string has it
	Slot        string       // [a-z0-9_]{1,63}
	Publication string
	Tables      []Table // each outbox; none if logical messages are the only source
	Messages    bool    // whether the server should send logical messages
	// WalSenderTimeout is the wal_sender_timeout of our walsender: how long until the server frees the slot of a dead
	// client, and how long we wait for a silent server.
	WalSenderTimeout time.Duration
	// ReadInterval is the longest pause between two reads of the stream's socket; 0 means no pauses. ReceiveBuffer is the
	// SO_RCVBUF of that socket in bytes if there are pauses; 0 means the kernel's choice. See AutoReceiveBuffer.
	ReadInterval  time.Duration
	ReceiveBuffer int
	// Dial replaces the network dialer in tests; nil means the default.
	Dial   pgconn.DialFunc
	Logger *slog.Logger

	application string // application_name; "" means the daemon's
}

// connectTimeout limits one attempt to connect if the URL has no connect_timeout; queryTimeout limits one catalog
// query.
const (
	connectTimeout = 10 * time.Second
	queryTimeout   = 5 * time.Second
)

// ApplicationName is the application_name of our connections. The server truncates names to 63 bytes.
func (c *Config) ApplicationName() string {
	name := cmp.Or(c.application, "outboxcdc-"+c.Slot)
	return name[:min(len(name), 63)]
}

// Table is an outbox.
type Table struct {
	Schema, Name string
	Columns      []string // columns that must be published
}

// String returns the qualified name, without quotes.
func (t *Table) String() string { return t.Schema + "." + t.Name }

// tableNames lists all outboxes.
func (c *Config) tableNames() string {
	names := make([]string, len(c.Tables))
	for i := range c.Tables {
		names[i] = c.Tables[i].String()
	}
	return strings.Join(names, ", ")
}

// tablesPhrase continues a text about the publication: " and table …" for the word "and". Without tables it is "".
func (c *Config) tablesPhrase(word string) string {
	if len(c.Tables) == 0 {
		return ""
	}
	return " " + word + " table " + c.tableNames()
}

// publicationRemedy is the remedy for a publication that did not publish all events.
func (c *Config) publicationRemedy() string {
	if len(c.Tables) == 0 {
		return "restore the publication (outboxcdc setup sql shows it); messages that could not be read without it are in no table"
	}
	return publicationRemedy
}

// slotRemedy is the remedy for a slot that is missing or lost.
func (c *Config) slotRemedy() string {
	if len(c.Tables) == 0 {
		return advice.NoTable
	}
	return slotRemedy
}

// TextSettings are the session settings that decide how PostgreSQL prints values. A query under these settings
// returns the bytes that the stream carries. regclass and similar types name the schema of everything outside
// pg_catalog.
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

// streamParams returns the session parameters that the bytes of the stream depend on, and those that could end it.
// Startup parameters override ALTER ROLE and ALTER DATABASE. client_min_messages must include warnings: the server
// reports a skipped publication by a warning. major is the server's major version, 0 if it is not known.
func (c *Config) streamParams(major int) map[string]string {
	p := TextSettings()
	maps.Copy(p, transactionDefaults())
	maps.Copy(p, map[string]string{
		"replication":         "database",
		"application_name":    c.ApplicationName(),
		"client_min_messages": "warning",
		"wal_sender_timeout":  strconv.FormatInt(c.WalSenderTimeout.Milliseconds(), 10) + "ms",
	})
	if major >= 17 { // otherwise it could end the walsender while it sends a long transaction
		p["transaction_timeout"] = "0"
	}
	if major >= 19 { // otherwise a frozen daemon holds up a stop of the server for wal_sender_timeout
		p["wal_sender_shutdown_timeout"] = "5s"
	}
	return p
}

// controlParams returns the session parameters of the ordinary connection, which only reads catalogs and must never
// hang.
func (c *Config) controlParams() map[string]string {
	ms := strconv.FormatInt(queryTimeout.Milliseconds(), 10)
	p := map[string]string{
		"application_name":              c.ApplicationName(),
		"client_encoding":               "UTF8",
		"idle_session_timeout":          "0", // the connection is idle between two catalog checks
		"default_transaction_read_only": "on",
		"statement_timeout":             ms,
		"lock_timeout":                  ms,
		"search_path":                   "pg_catalog",
		"quote_all_identifiers":         "off", // names of types are read by people
	}
	maps.Copy(p, transactionDefaults())
	return p
}

// transactionDefaults are PostgreSQL's own. With other ones, of a role or a database, a query that reads in a
// serializable and deferrable transaction would wait until every serializable transaction of the database that writes
// has ended.
func transactionDefaults() map[string]string {
	return map[string]string{"default_transaction_isolation": "read committed", "default_transaction_deferrable": "off"}
}

// parse reads the connection string, gets the password, and adds params and our defaults.
func (c *Config) parse(ctx context.Context, params map[string]string) (*pgx.ConnConfig, error) {
	url, err := c.URL()
	if err != nil {
		return nil, fail(Credentials, "read the connection settings", "", "%w", err)
	}
	cfg, err := parseURL(url, params)
	if err != nil {
		if e := FileError(err); e != nil {
			return nil, fail(Credentials, "read the certificates that postgres.url names", "", "%w", e)
		}
		return nil, fail(Unsuitable, "read postgres.url", "see PostgreSQL, \"Connection Strings\"", "%w", URLError(err))
	}
	if err := c.Password.Set(ctx, url, cfg); err != nil {
		return nil, err
	}
	OfPrimary(cfg)
	if c.Dial != nil {
		cfg.DialFunc = c.Dial
	}
	return cfg, nil
}

// OfPrimary lets a connection be one to the primary, with text as it is stored.
func OfPrimary(cfg *pgx.ConnConfig) {
	cfg.ValidateConnect, cfg.AfterConnect = requirePrimary, keepStoredEncoding
}

// parseURL parses a connection string, and adds params and the default time limit. The error is pgx's: it may show
// the string.
func parseURL(url string, params map[string]string) (*pgx.ConnConfig, error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
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
	return cfg, nil
}

// keepStoredEncoding disables the conversion of text from a SQL_ASCII database. Such text consists of any bytes that
// clients wrote (PostgreSQL, "Character Set Support"), and the server cannot send all of them as UTF-8.
func keepStoredEncoding(ctx context.Context, conn *pgconn.PgConn) error {
	if conn.ParameterStatus("server_encoding") != "SQL_ASCII" {
		return nil
	}
	return conn.Exec(ctx, "SET client_encoding = SQL_ASCII").Close()
}

// dialControl opens the ordinary connection.
func (c *Config) dialControl(ctx context.Context) (*pgx.Conn, error) {
	cfg, err := c.parse(ctx, c.controlParams())
	if err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, classify("connect to Postgres", connecting, err)
	}
	return conn, nil
}

// readTap connects a stream and its connection, which are separated by pgconn and TLS.
type readTap struct {
	received atomic.Bool            // bytes have arrived since the last call of Swap
	drained  atomic.Pointer[func()] // called before a read waits or pauses, by the goroutine that reads
	more     atomic.Bool            // the connection has bytes in its buffer
	age      atomic.Int64           // of the last event: nanoseconds from its commit to its sending, by the server's clock
}

func (s *readTap) onDrained() {
	if f := s.drained.Load(); f != nil {
		(*f)()
	}
}

// keepAlive is the interval of TCP keep-alive probes, as in pgconn's own dialer.
const keepAlive = 5 * time.Minute

// dialStream opens the replication connection.
func (c *Config) dialStream(ctx context.Context, major int, onNotice pgconn.NoticeHandler, s *readTap) (*pgconn.PgConn, error) {
	cfg, err := c.parse(ctx, c.streamParams(major))
	if err != nil {
		return nil, err
	}
	cfg.OnNotice = onNotice
	if c.Dial == nil {
		cfg.DialFunc = (&net.Dialer{KeepAlive: keepAlive, Control: limitSegments}).DialContext
	}
	cfg.DialFunc = c.pacedDialer(cfg.DialFunc, s)
	conn, err := pgconn.ConnectConfig(ctx, &cfg.Config)
	if err != nil {
		return nil, classify("open a replication connection", connecting, err)
	}
	return conn, nil
}

// quotePublication quotes a publication name for publication_names, a string literal with a list of SQL identifiers.
// pglogrepl does not quote it.
func quotePublication(name string) string {
	ident := `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
	return "'" + strings.ReplaceAll(ident, "'", "''") + "'"
}

// reservedSlot is the name of a slot of the server itself, since PostgreSQL 19.
const reservedSlot = "pg_conflict_detection"

// CheckSlotName returns an error for a name that PostgreSQL would refuse. pglogrepl does not quote names.
func CheckSlotName(name string) error {
	if name == reservedSlot {
		return fmt.Errorf("slot name %q: PostgreSQL reserves it", name)
	}
	if name == "" || len(name) > maxName {
		return fmt.Errorf("slot name %q: 1 to 63 characters of a-z, 0-9 and _", name)
	}
	for _, r := range name {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '_' {
			return fmt.Errorf("slot name %q: 1 to 63 characters of a-z, 0-9 and _", name)
		}
	}
	return nil
}
