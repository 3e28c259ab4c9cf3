package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxcdc/outboxcdc/internal/human"
	"github.com/outboxcdc/outboxcdc/replication"
)

// server is the server's settings, and what the daemon's role may do there.
type server struct {
	replication.Server
	user            string
	encoding        string // of the database
	replication     bool   // the role has REPLICATION
	reads           bool   // the role sees the activity of other roles (pg_read_all_stats)
	senders, slots  capacity
	senderTimeout   time.Duration // wal_sender_timeout of the server, for other connections
	syncNames       string
	standbySlots    string // synchronized_standby_slots
	retained        int64  // WAL that the slots of the server retain, in bytes
	now             time.Time
	asked, answered time.Time // by this machine's clock
}

// capacity is how many of something the server allows, and how many are in use.
type capacity struct{ most, used int }

// postgres makes the checks of the server, the outbox, the publication and the slot.
func (e *examination) postgres(ctx context.Context) {
	if !e.connect(ctx, groupPostgres, groupOutbox, groupPublication, groupSlot) {
		return
	}
	e.checkServer(ctx)
	e.readSlots(ctx)
	e.readRows(ctx)
	e.readElsewhere(ctx)
	e.checkTables(ctx)
	e.checkPublication(ctx)
	e.checkSlot(ctx)
	e.checkPlugins(ctx)
	e.sample(ctx)
}

// connect connects to the server of postgres.url and reads its settings. If that fails, it reports why, and that the
// checks of the groups cannot be made.
func (e *examination) connect(ctx context.Context, groups ...string) bool {
	if !e.checkCommand(ctx, pgCommand, "postgres.password_command", e.PasswordCommand, e.Now()) {
		for _, g := range groups {
			e.because[g] = "there is no password for the daemon's role"
		}
		return false
	}
	conn, err := e.Source.Connect(ctx, e.application(), true)
	if err != nil {
		for _, g := range groups {
			e.because[g] = "the daemon's role cannot connect"
		}
		e.failConnect(err)
		return false
	}
	e.conn = conn
	if e.Database == "" {
		e.Database = conn.Config().Database
	}
	if err := e.readServer(ctx); err != nil {
		for _, g := range groups {
			e.because[g] = "the server did not answer: " + cause(err)
		}
		e.fail(pgConnect, Unavailable, nil, "the server does not answer: %s", cause(err))
		return false
	}
	s := &e.server
	e.ok(pgConnect, "role %s is connected to database %s at %s", s.user, s.Database, e.Server)
	return true
}

// application is the application_name of our connections. It differs from the daemon's, so that pg_stat_activity tells
// them apart.
func (e *examination) application() string { return "outboxcdc-doctor-" + e.Slot }

// isReady is the command that asks the server whether it accepts connections.
func (e *examination) isReady() Remedy {
	host, port, err := net.SplitHostPort(e.Server)
	if err != nil {
		return shellf("pg_isready -h %s", e.Server)
	}
	return shellf("pg_isready -h %s -p %s", host, port)
}

// failConnect reports why there is no connection.
func (e *examination) failConnect(err error) {
	kind, state := replication.KindOf(err), ""
	if pg, ok := errors.AsType[*replication.Error](err); ok {
		state = pg.SQLSTATE
	}
	role, database := ident(e.Role), ident(e.Database)
	why := cause(err)
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok { // without the addresses that were tried before
		why = pg.Error()
	}
	switch {
	case e.NoURL:
		e.fail(pgConnect, Wrong, []Remedy{settingf("postgres: {url: postgres://%s@<host>/<database of the application>}", e.Role)},
			"postgres.url is not set, nor is PGHOST, and there is no server at %s: %s", e.Server, why)
	case state == "" && strings.Contains(why, "server refused TLS connection"):
		e.fail(pgConnect, Wrong, []Remedy{
			sqlf("ALTER SYSTEM SET ssl = on"),
			advicef("with ssl_cert_file and ssl_key_file, then SELECT pg_reload_conf(); or sslmode=disable in postgres.url, if the network is trusted"),
		}, "the server at %s does not support TLS, and sslmode in postgres.url requires it", e.Server)
	case replication.RefusedByPooler(err):
		e.fail(pgConnect, Unavailable, []Remedy{advicef("%s", replication.PoolerRemedy)}, "%s is a connection pooler, not a server: %s", e.Server, why)
	case state == "42704":
		e.fail(pgConnect, Wrong, []Remedy{shellf("%s validate", e.Command), advicef("remove the keyword from postgres.url")},
			"the server does not know a keyword of postgres.url: %s", why)
	case state == "28000" && kind == replication.Credentials: // also if pg_hba.conf has no line for the role
		e.fail(pgConnect, Unavailable, []Remedy{
			e.setup(),
			advicef("in pg_hba.conf: hostssl %s %s <network of the daemon> scram-sha-256; then SELECT pg_reload_conf()", e.Database, e.Role),
		}, "the server refuses role %s, or has no line in pg_hba.conf for it: %s", e.Role, why)
	case kind == replication.Credentials && e.NoPassword && state == "28P01":
		e.fail(pgConnect, Unavailable, []Remedy{
			advicef("put the password into a file that PGPASSFILE names, or the whole URL into one that postgres.url_file names (docs/security.md)"),
		}, "the server requires a password for role %s, and none was found in postgres.url, PGPASSWORD or PGPASSFILE: %s", e.Role, why)
	case kind == replication.Credentials:
		e.fail(pgConnect, Unavailable, []Remedy{
			e.setup(),
			sqlf("ALTER ROLE %s LOGIN PASSWORD '<the password that postgres.url or PGPASSFILE has>'", role),
		}, "the server has no role %s, or the password is wrong: %s", e.Role, why)
	case replication.LacksPrivilege(err):
		e.fail(pgConnect, Denied, []Remedy{sqlf("GRANT CONNECT ON DATABASE %s TO %s", database, role)},
			"role %s may not connect to database %s: %s", e.Role, e.Database, cause(err))
	case state == "3D000":
		e.fail(pgConnect, Unavailable, []Remedy{
			settingf("postgres: {url: postgres://%s@%s/<database of the application>}", e.Role, e.Server),
		}, "the server has no database %s", e.Database)
	case state == "53300":
		e.fail(pgConnect, Unavailable, []Remedy{sqlf("ALTER SYSTEM SET max_connections = 200"), advicef("a number above the present one; then restart the server")},
			"all connections of the server are in use: %s", cause(err))
	default:
		e.fail(pgConnect, Unavailable, []Remedy{
			advicef("check that the server is running, that postgres.url has its address, and that no firewall blocks the connection"), e.isReady(),
		}, "no connection to %s: %s", e.Server, cause(err))
	}
}

// serverSQL does not count the slots of REPACK, which have a limit of their own (PostgreSQL 19,
// max_repack_replication_slots).
const serverSQL = `
SELECT current_user::text,
       (SELECT r.rolreplication OR r.rolsuper FROM pg_roles r WHERE r.rolname = current_user)
         OR EXISTS (SELECT FROM pg_roles m WHERE m.rolname = 'rds_replication' AND pg_has_role(current_user, m.oid, 'MEMBER')),
       pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'),
       current_setting('max_wal_senders')::int, (SELECT count(*) FROM pg_stat_replication)::int,
       current_setting('max_replication_slots')::int, (SELECT count(*) FROM pg_replication_slots WHERE plugin IS DISTINCT FROM 'pgrepack')::int,
       (SELECT coalesce(reset_val, setting)::bigint FROM pg_settings WHERE name = 'wal_sender_timeout'),
       current_setting('synchronous_standby_names'), coalesce(current_setting('synchronized_standby_slots', true), ''),
       (SELECT coalesce(max(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, restart_lsn)), 0)::bigint
          FROM pg_replication_slots WHERE wal_status IS DISTINCT FROM 'lost'),
       clock_timestamp()`

func (e *examination) readServer(ctx context.Context) error {
	s := &e.server
	settings, err := replication.ReadServer(ctx, e.conn)
	if err != nil {
		return err
	}
	s.Server = *settings
	var sender int64
	s.asked = e.Now()
	err = e.conn.QueryRow(ctx, serverSQL).Scan(&s.user, &s.replication, &s.reads, &s.senders.most, &s.senders.used,
		&s.slots.most, &s.slots.used, &sender, &s.syncNames, &s.standbySlots, &s.retained, &s.now)
	s.answered = e.Now()
	s.encoding = e.conn.PgConn().ParameterStatus("server_encoding")
	s.senderTimeout = time.Duration(sender) * time.Millisecond
	return err
}

func ident(parts ...string) string { return pgx.Identifier(parts).Sanitize() }

// alterSystem changes a setting that needs no restart. There are two remedies because ALTER SYSTEM may not run in a
// transaction, and so not in one query with another statement.
func alterSystem(format string, args ...any) []Remedy {
	return []Remedy{sqlf("ALTER SYSTEM SET "+format, args...), sqlf("SELECT pg_reload_conf()")}
}

func (e *examination) checkServer(ctx context.Context) {
	e.checkVersion()
	e.checkEncoding()
	e.checkPrimary()
	e.checkWALLevel()
	e.checkReplication(ctx)
	e.checkTimeouts()
	e.checkKeepSize()
	e.checkSync()
	e.checkClock()
	e.checkTransactions(ctx)
}

func (e *examination) checkPrimary() {
	if e.server.Standby {
		e.fail(pgPrimary, Unavailable, []Remedy{advicef("let postgres.url name the primary; the daemon waits until this server is promoted")},
			"the server is in recovery (a standby): events are written on the primary")
		return
	}
	e.ok(pgPrimary, "the server is the primary")
}

func (e *examination) checkWALLevel() {
	s := &e.server
	raise := []Remedy{
		sqlf("ALTER SYSTEM SET wal_level = logical"),
		advicef("then restart the server (managed services: the parameter group, such as rds.logical_replication = 1)"),
	}
	switch {
	case !s.CanDecode():
		e.fail(pgWALLevel, Wrong, raise, "wal_level is %s and has to be %s", s.WALLevel, s.NeededWALLevel())
	case s.WALLevel != "logical":
		e.warn(pgWALLevel, raise, "wal_level is %s, and effective_wal_level is %s: %s", s.WALLevel, s.EffectiveWALLevel, replication.DynamicWALLevel)
	default:
		e.ok(pgWALLevel, "logical")
	}
}

// checkReplication checks the privilege and then opens a replication connection.
func (e *examination) checkReplication(ctx context.Context) {
	s := &e.server
	role := ident(s.user)
	if !s.replication {
		e.fail(pgReplication, Denied, []Remedy{sqlf("ALTER ROLE %s REPLICATION", role), advicef("on Amazon RDS: GRANT rds_replication TO %s", role)},
			"role %s lacks REPLICATION", s.user)
		return
	}
	if s.Standby {
		e.skip(pgReplication, "role %s has REPLICATION, but the server is a standby", s.user)
		return
	}
	id, err := e.Source.Identify(ctx, e.application())
	switch kind := replication.KindOf(err); {
	case err == nil:
		e.ok(pgReplication, "role %s has REPLICATION; a replication connection opens: system %d, timeline %d", s.user, id.SystemID, id.Timeline)
	case kind == replication.PrivilegeMissing:
		e.fail(pgReplication, Denied, []Remedy{sqlf("ALTER ROLE %s REPLICATION", role)}, "no replication connection: %s", cause(err))
	case s.senders.used >= s.senders.most:
		e.skip(pgReplication, "all walsenders are in use")
	default:
		e.fail(pgReplication, Unavailable, []Remedy{advicef("%s", replication.PoolerRemedy)}, "an ordinary connection succeeds, but a replication connection does not: %s", cause(err))
	}
}

// checkCapacity checks for a free walsender and a free slot. It runs after the slot was read, because the daemon may
// already use both.
func (e *examination) checkCapacity() {
	s := &e.server
	free := s.senders.most - s.senders.used
	more := []Remedy{sqlf("ALTER SYSTEM SET max_wal_senders = %d", s.senders.most+5), advicef("then restart the server")}
	switch reading := e.slot != nil && e.slot.Active; {
	case free > 1, reading && free > 0:
		e.ok(pgSenders, "%d of %d are in use", s.senders.used, s.senders.most)
	case free > 0 || reading:
		e.warn(pgSenders, more, "%d of %d are in use: there may be none for a standby, a backup or peek", s.senders.used, s.senders.most)
	default:
		e.fail(pgSenders, Unavailable, more, "all %d are in use: the daemon waits for a free one", s.senders.most)
	}
	free = s.slots.most - s.slots.used
	more = []Remedy{sqlf("ALTER SYSTEM SET max_replication_slots = %d", s.slots.most+5), advicef("then restart the server, or drop a slot that no client needs (not slot %s of the daemon): SELECT slot_name, active FROM pg_replication_slots", e.Slot)}
	switch {
	case free > 2, e.slot != nil && free > 1:
		e.ok(pgSlots, "%d of %d are in use", s.slots.used, s.slots.most)
	case free > 0 || e.slot != nil:
		e.warn(pgSlots, more, "%d of %d are in use: recover needs two for a time, and audit and peek one", s.slots.used, s.slots.most)
	default:
		e.fail(pgSlots, Wrong, more, "all %d are in use: the slot cannot be created", s.slots.most)
	}
}

// convertibleEncodings are those whose every text can be converted to UTF-8. In the other single-byte encodings some
// bytes are no character.
var convertibleEncodings = []string{
	"UTF8", "LATIN1", "LATIN2", "LATIN4", "LATIN5", "LATIN6", "LATIN7", "LATIN8", "LATIN9", "LATIN10",
	"ISO_8859_5", "KOI8R", "KOI8U", "WIN866", "WIN1256",
}

func (e *examination) checkEncoding() {
	switch enc := e.server.encoding; {
	case slices.Contains(convertibleEncodings, enc):
		e.ok(pgEncoding, "%s", enc)
	case enc == "SQL_ASCII":
		e.warn(pgEncoding, []Remedy{advicef("use a database with ENCODING 'UTF8'; until then make sure that all applications write UTF-8")},
			"SQL_ASCII: the server does not check text; records have the bytes that the applications wrote, and a value that has to be UTF-8 and is not makes its event poison")
	default:
		e.warn(pgEncoding, []Remedy{advicef("use a database with ENCODING 'UTF8'")},
			"%s: some bytes have no UTF-8 character; the server cannot send a row with such a byte, and delivery fails with 22P05 at each attempt", enc)
	}
}

// The bounds of a tuning.wal_sender_timeout that needs no warning.
const (
	shortSenderTimeout = 5 * time.Second
	longSenderTimeout  = 2 * time.Minute
)

func (e *examination) checkTimeouts() {
	s := &e.server
	setting := fmt.Sprintf("%v for the daemon's connection (%v for other connections)", e.SenderTimeout, s.senderTimeout)
	remedy := []Remedy{settingf("tuning: {wal_sender_timeout: 15s}")}
	switch {
	case e.SenderTimeout < shortSenderTimeout:
		e.warn(pgTimeout, remedy, "%s: a short stall of the network or of this machine ends a healthy connection", setting)
	case e.SenderTimeout > longSenderTimeout:
		e.warn(pgTimeout, remedy, "%s: a second instance waits so long for the slot of a dead daemon", setting)
	default:
		e.ok(pgTimeout, "%s", setting)
	}
	switch {
	case s.Major() < 18:
		e.skip(pgIdle, "it exists since PostgreSQL 18")
	case s.IdleTimeout == 0:
		e.ok(pgIdle, "off: an idle slot is kept")
	default:
		e.warn(pgIdle, alterSystem("idle_replication_slot_timeout = 0"),
			"the slot of a daemon that is down for %v is invalidated, and the events written since have to be delivered from the table", s.IdleTimeout)
	}
}

const (
	// smallKeepSize is less than the WAL that a busy server writes during a short outage.
	smallKeepSize = 1 << 30
	usualKeepSize = 50 << 30
)

// limitWAL sets a limit that leaves each slot of the server as much again as the largest retains: the next checkpoint
// invalidates every slot that retains more than the limit.
func (e *examination) limitWAL(least int64) []Remedy {
	const gb = 1 << 30
	return alterSystem("max_slot_wal_keep_size = '%dGB'", (max(least, 2*e.server.retained)+gb-1)/gb)
}

func (e *examination) checkKeepSize() {
	set := e.limitWAL(usualKeepSize)
	switch n := e.server.KeepSize; {
	case n < 0:
		e.warn(pgKeepSize, append(set,
			advicef("choose a size that fits on the disk of pg_wal, and is larger than the %s that a slot of the server retains now; if more WAL is written while the daemon is down, the slot is lost, and the missing events have to be delivered from the table", human.Size(e.server.retained)),
		), "no limit: while the daemon or the sink is down, WAL is retained until the disk is full and the server stops")
	case n < smallKeepSize:
		e.warn(pgKeepSize, set,
			"%s: if more WAL than that is written while the daemon or the sink is down, the slot is lost, and the missing events have to be delivered from the table", human.Size(n))
	default:
		e.ok(pgKeepSize, "%s of WAL may be written while the daemon or the sink is down, before the slot is lost; watch outboxcdc_slot_retained_wal_bytes", human.Size(n))
	}
}

func (e *examination) checkSync() {
	names := e.server.syncNames
	if err := e.Source.CheckAsynchronous(names); err != nil {
		e.fail(pgSync, Wrong, alterSystem("synchronous_standby_names = '<names of the real standbys, or nothing>'"),
			"it is '%s', which counts the daemon (%s) as a standby: every commit would wait for the delivery of events", names, e.Source.ApplicationName())
		return
	}
	if names == "" {
		e.ok(pgSync, "empty: commits do not wait")
		return
	}
	e.ok(pgSync, "'%s' does not count the daemon", names)
}

// maxSkew is the maximum difference of clocks without a warning: beyond it latencies and ages mean little.
const maxSkew = 2 * time.Second

func (e *examination) checkClock() {
	s := &e.server
	middle := s.asked.Add(s.answered.Sub(s.asked) / 2)
	skew := s.now.Sub(middle)
	precision := (s.answered.Sub(s.asked) / 2).Round(time.Millisecond)
	text := fmt.Sprintf("the server's clock differs by %v from this machine's (±%v)", skew.Round(time.Millisecond), precision)
	if skew.Abs() > maxSkew+precision {
		e.warn(pgClock, []Remedy{shellf("timedatectl set-ntp true")}, "%s: lag and latency in metrics are wrong by that much; Kafka may refuse the timestamps of records", text)
		return
	}
	e.ok(pgClock, "%s", text)
}
