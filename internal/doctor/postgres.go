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

// server is what one look at the server tells.
type server struct {
	replication.Server
	user            string
	encoding        string // of the database
	replication     bool   // the role may
	reads           bool   // it sees what others do (pg_read_all_stats)
	senders, slots  room
	senderTimeout   time.Duration // the server's, for others
	syncNames       string
	standbySlots    string // synchronized_standby_slots
	now             time.Time
	asked, answered time.Time // by our clock
}

// room is how many there may be and how many there are.
type room struct{ most, used int }

// postgres makes the checks of the server and of all that is in it.
func (e *examination) postgres(ctx context.Context) {
	groups := []string{groupPostgres, groupOutbox, groupPublication, groupSlot}
	conn, err := e.Source.Connect(ctx, e.application(), true)
	if err != nil {
		for _, g := range groups {
			e.because[g] = "the server does not let the role in"
		}
		e.refused(err)
		return
	}
	e.conn = conn
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = conn.Close(ctx)
	}()
	if e.Database == "" {
		e.Database = conn.Config().Database
	}
	if err := e.lookAtServer(ctx); err != nil {
		for _, g := range groups {
			e.because[g] = "the server has not answered: " + cause(err)
		}
		e.fail(pgConnect, Unavailable, nil, "the server does not answer: %s", cause(err))
		return
	}
	s := &e.server
	e.ok(pgConnect, "%s reaches database %s at %s", s.user, s.Database, e.Server)
	e.checkServer(ctx)
	e.checkTables(ctx)
	e.checkPublication(ctx)
	e.checkSlot(ctx)
	e.sample(ctx)
}

// application is our name at the server. It is not the daemon's: who looks there must be able to tell them apart.
func (e *examination) application() string { return "outboxcdc-doctor-" + e.Slot }

// isReady is the call that asks the server whether it takes connections.
func (e *examination) isReady() Remedy {
	host, port, err := net.SplitHostPort(e.Server)
	if err != nil {
		return shellf("pg_isready -h %s", e.Server)
	}
	return shellf("pg_isready -h %s -p %s", host, port)
}

// refused says why there is no connection.
func (e *examination) refused(err error) {
	kind, state := replication.KindOf(err), ""
	if pg, ok := errors.AsType[*replication.Error](err); ok {
		state = pg.SQLSTATE
	}
	role, database := ident(e.Role), ident(e.Database)
	why := cause(err)
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok { // without what was tried before
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
		}, "the server at %s has no TLS, and sslmode in postgres.url asks for it", e.Server)
	case state == "42704":
		e.fail(pgConnect, Wrong, []Remedy{shellf("%s validate", e.Command), advicef("remove the keyword from postgres.url")},
			"the server does not know a keyword of postgres.url: %s", why)
	case state == "28000" && kind == replication.Credentials: // also what pg_hba.conf says
		e.fail(pgConnect, Unavailable, []Remedy{
			e.setup(),
			advicef("in pg_hba.conf: hostssl %s %s <network of the daemon> scram-sha-256; then SELECT pg_reload_conf()", e.Database, e.Role),
		}, "the server refuses role %s, or has no line in pg_hba.conf for it: %s", e.Role, why)
	case kind == replication.Credentials && e.NoPassword && state == "28P01":
		e.fail(pgConnect, Unavailable, []Remedy{
			advicef("put the password into a file that PGPASSFILE names, or the whole URL into one that postgres.url_file names (docs/security.md)"),
		}, "the server asks role %s for a password, and none was found in postgres.url, PGPASSWORD or PGPASSFILE: %s", e.Role, why)
	case kind == replication.Credentials:
		e.fail(pgConnect, Unavailable, []Remedy{
			e.setup(),
			sqlf("ALTER ROLE %s LOGIN PASSWORD '<the password that postgres.url or PGPASSFILE has>'", role),
		}, "the server does not know role %s, or knows it by another password: %s", e.Role, why)
	case replication.LacksPrivilege(err):
		e.fail(pgConnect, Right, []Remedy{sqlf("GRANT CONNECT ON DATABASE %s TO %s", database, role)},
			"role %s may not connect to database %s: %s", e.Role, e.Database, cause(err))
	case state == "3D000":
		e.fail(pgConnect, Unavailable, []Remedy{
			settingf("postgres: {url: postgres://%s@%s/<database of the application>}", e.Role, e.Server),
		}, "the server has no database %s", e.Database)
	case state == "53300":
		e.fail(pgConnect, Unavailable, []Remedy{sqlf("ALTER SYSTEM SET max_connections = 200"), advicef("more than now; then restart the server")},
			"the server has no connection left: %s", cause(err))
	default:
		e.fail(pgConnect, Unavailable, []Remedy{
			advicef("is the server up, is this its address (postgres.url), does a firewall stand between?"), e.isReady(),
		}, "no connection to %s: %s", e.Server, cause(err))
	}
}

const serverSQL = `
SELECT current_user::text,
       (SELECT r.rolreplication OR r.rolsuper FROM pg_roles r WHERE r.rolname = current_user)
         OR EXISTS (SELECT FROM pg_roles m WHERE m.rolname = 'rds_replication' AND pg_has_role(current_user, m.oid, 'MEMBER')),
       pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'),
       current_setting('max_wal_senders')::int, (SELECT count(*) FROM pg_stat_replication)::int,
       current_setting('max_replication_slots')::int, (SELECT count(*) FROM pg_replication_slots)::int,
       (SELECT coalesce(reset_val, setting)::bigint FROM pg_settings WHERE name = 'wal_sender_timeout'),
       current_setting('synchronous_standby_names'), coalesce(current_setting('synchronized_standby_slots', true), ''),
       clock_timestamp()`

func (e *examination) lookAtServer(ctx context.Context) error {
	s := &e.server
	settings, err := replication.ReadServer(ctx, e.conn)
	if err != nil {
		return err
	}
	s.Server = *settings
	var sender int64
	s.asked = e.Now()
	err = e.conn.QueryRow(ctx, serverSQL).Scan(&s.user, &s.replication, &s.reads, &s.senders.most, &s.senders.used,
		&s.slots.most, &s.slots.used, &sender, &s.syncNames, &s.standbySlots, &s.now)
	s.answered = e.Now()
	s.encoding = e.conn.PgConn().ParameterStatus("server_encoding")
	s.senderTimeout = time.Duration(sender) * time.Millisecond
	return err
}

func ident(parts ...string) string { return pgx.Identifier(parts).Sanitize() }

// alterSystem changes a setting that needs no restart. Two statements: ALTER SYSTEM stands in no transaction, so not even in
// one text with another.
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
		e.fail(pgPrimary, Unavailable, []Remedy{advicef("let postgres.url lead to the primary; the daemon waits until this server is promoted")},
			"the server is in recovery (a standby): events are written at the primary")
		return
	}
	e.ok(pgPrimary, "the server is the primary")
}

func (e *examination) checkWALLevel() {
	if e.server.WALLevel != "logical" {
		e.fail(pgWALLevel, Wrong, []Remedy{
			sqlf("ALTER SYSTEM SET wal_level = logical"),
			advicef("then restart the server (managed services: the parameter group, such as rds.logical_replication = 1)"),
		}, "wal_level is %s", e.server.WALLevel)
		return
	}
	e.ok(pgWALLevel, "logical")
}

// checkReplication asks for the right, and then for the thing itself.
func (e *examination) checkReplication(ctx context.Context) {
	s := &e.server
	role := ident(s.user)
	if !s.replication {
		e.fail(pgReplication, Right, []Remedy{sqlf("ALTER ROLE %s REPLICATION", role), advicef("on Amazon RDS: GRANT rds_replication TO %s", role)},
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
	case kind == replication.MissingRight:
		e.fail(pgReplication, Right, []Remedy{sqlf("ALTER ROLE %s REPLICATION", role)}, "no replication connection: %s", cause(err))
	case s.senders.used >= s.senders.most:
		e.skip(pgReplication, "all walsenders are in use")
	default:
		e.fail(pgReplication, Unavailable, []Remedy{
			advicef("let postgres.url lead to the server itself: poolers (PgBouncer before 1.23) and some proxies pass no replication connections"),
		}, "an ordinary connection opens, but no replication connection: %s", cause(err))
	}
}

// checkRoom is for later, when it is known whether slot and walsender are in use already.
func (e *examination) checkRoom() {
	s := &e.server
	free := s.senders.most - s.senders.used
	more := []Remedy{sqlf("ALTER SYSTEM SET max_wal_senders = %d", s.senders.most+5), advicef("then restart the server")}
	switch reading := e.slot != nil && e.slot.Active; {
	case free > 1, reading && free > 0:
		e.ok(pgSenders, "%d of %d are in use", s.senders.used, s.senders.most)
	case free > 0 || reading:
		e.warn(pgSenders, more, "%d of %d are in use: a standby, a backup or peek may find none", s.senders.used, s.senders.most)
	default:
		e.fail(pgSenders, Unavailable, more, "all %d are in use: the daemon has to wait for one", s.senders.most)
	}
	free = s.slots.most - s.slots.used
	more = []Remedy{sqlf("ALTER SYSTEM SET max_replication_slots = %d", s.slots.most+5), advicef("then restart the server, or drop a slot that is not needed: SELECT slot_name, active FROM pg_replication_slots")}
	switch {
	case free > 1, e.slot != nil && free > 0:
		e.ok(pgSlots, "%d of %d are in use", s.slots.used, s.slots.most)
	case free > 0 || e.slot != nil:
		e.warn(pgSlots, more, "%d of %d are in use: peek, which reads a copy of the slot, may find none", s.slots.used, s.slots.most)
	default:
		e.fail(pgSlots, Wrong, more, "all %d are in use: the slot cannot be made", s.slots.most)
	}
}

// wholeEncodings are those in which each byte is a letter that UTF-8 has as well; all others of one byte have gaps.
var wholeEncodings = []string{
	"UTF8", "LATIN1", "LATIN2", "LATIN4", "LATIN5", "LATIN6", "LATIN7", "LATIN8", "LATIN9", "LATIN10",
	"ISO_8859_5", "KOI8R", "KOI8U", "WIN866", "WIN1256",
}

func (e *examination) checkEncoding() {
	switch enc := e.server.encoding; {
	case slices.Contains(wholeEncodings, enc):
		e.ok(pgEncoding, "%s", enc)
	case enc == "SQL_ASCII":
		e.warn(pgEncoding, []Remedy{advicef("use a database with ENCODING 'UTF8'; until then see to it that all applications write UTF-8")},
			"SQL_ASCII: the server checks no text; records have the bytes that the applications wrote, and what has to be UTF-8 and is not becomes poison")
	default:
		e.warn(pgEncoding, []Remedy{advicef("use a database with ENCODING 'UTF8'")},
			"%s: it allows bytes that no letter of UTF-8 stands for; a row with one cannot be sent by the server, and ends delivery with 22P05 at each try", enc)
	}
}

// The bounds of tuning.wal_sender_timeout within which there is nothing to say.
const (
	shortSenderTimeout = 5 * time.Second
	longSenderTimeout  = 2 * time.Minute
)

func (e *examination) checkTimeouts() {
	s := &e.server
	said := fmt.Sprintf("%v for the daemon's own connection (the server's own is %v, for others)", e.SenderTimeout, s.senderTimeout)
	remedy := []Remedy{settingf("tuning: {wal_sender_timeout: 15s}")}
	switch {
	case e.SenderTimeout < shortSenderTimeout:
		e.warn(pgTimeout, remedy, "%s: so short a stall of the network, or of this machine, ends a healthy connection", said)
	case e.SenderTimeout > longSenderTimeout:
		e.warn(pgTimeout, remedy, "%s: for so long a dead daemon's slot stays taken, and a second instance waits", said)
	default:
		e.ok(pgTimeout, "%s", said)
	}
	switch {
	case s.Major() < 18:
		e.skip(pgIdle, "PostgreSQL has it since 18")
	case s.IdleTimeout == 0:
		e.ok(pgIdle, "off: an idle slot is kept")
	default:
		e.warn(pgIdle, alterSystem("idle_replication_slot_timeout = 0"),
			"a daemon that is down for %v loses its slot, and with it the events written since", s.IdleTimeout)
	}
}

// smallKeepSize is less WAL than a busy server writes in a short outage.
const smallKeepSize = 1 << 30

func (e *examination) checkKeepSize() {
	set := alterSystem("max_slot_wal_keep_size = '50GB'")
	switch n := e.server.KeepSize; {
	case n < 0:
		e.warn(pgKeepSize, append(set,
			advicef("take a size that the disk of pg_wal has to spare; events written beyond it while the daemon is down have to be found in the table"),
		), "no limit: while the daemon is down, or Kafka is, WAL is kept until the disk is full and the server stops")
	case n < smallKeepSize:
		e.warn(pgKeepSize, set,
			"%s: if more WAL than that is written while the daemon is down, or Kafka is, the slot is lost, and events with it", human.Size(n))
	default:
		e.ok(pgKeepSize, "%s: so much WAL may be written while the daemon is down, or Kafka is, before the slot is lost; watch outboxcdc_slot_retained_wal_bytes", human.Size(n))
	}
}

func (e *examination) checkSync() {
	names := e.server.syncNames
	if err := e.Source.CheckAsynchronous(names); err != nil {
		e.fail(pgSync, Wrong, alterSystem("synchronous_standby_names = '<names of the real standbys, or nothing>'"),
			"it is '%s', which counts the daemon (%s) as a standby: every commit would wait for Kafka", names, e.Source.ApplicationName())
		return
	}
	if names == "" {
		e.ok(pgSync, "empty: commits wait for nobody")
		return
	}
	e.ok(pgSync, "'%s' does not count the daemon", names)
}

// skew is how far apart clocks may be: beyond it latencies and ages mean little.
const skew = 2 * time.Second

func (e *examination) checkClock() {
	s := &e.server
	middle := s.asked.Add(s.answered.Sub(s.asked) / 2)
	off := s.now.Sub(middle)
	known := (s.answered.Sub(s.asked) / 2).Round(time.Millisecond)
	text := fmt.Sprintf("the server's clock is %v from this machine's (known to %v)", off.Round(time.Millisecond), known)
	if off.Abs() > skew+known {
		e.warn(pgClock, []Remedy{shellf("timedatectl set-ntp true")}, "%s: lag and latency in metrics are wrong by that much; Kafka may refuse records' times", text)
		return
	}
	e.ok(pgClock, "%s", text)
}
