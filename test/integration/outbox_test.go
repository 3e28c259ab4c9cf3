package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/test/check"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// outbox is one database with an outbox table, its publication and slot, and the topics that its rows go to.
type outbox struct {
	t            *testing.T
	pg           *pgtest.Server
	kafka        kafkatest.Cluster
	name         string   // of the database and the slot, and prefix of the topics' names
	args         []string // of the binary, before the command
	bytea        bool     // the type of payload is bytea
	deduplicated bool     // a daemon delivers deduplicated

	follow  *follower
	relays  []*relay
	writers []*writer
	ledger  ledger
	sampler *sampler
	admin   session
	older   pglogrepl.LSN // see tx
	proof   *proof        // a row of `make prove`, if the test is one
	checks  int           // histories written
}

// options describe an outbox; the zero value is valid.
type options struct {
	pg         *pgtest.Server    // default: the shared one of defaultMajor
	kafka      kafkatest.Cluster // default: the shared one
	types      []string          // aggregate types, each with a topic; default: "order"
	missing    []string          // those of types whose topic is not created yet (see makeTopic)
	partitions int               // of each topic; default 3
	configs    map[string]string // of each topic
	ring       int               // the table has so many partitions, which are used in turn
	payload    string            // type of the column payload; default: jsonb, as `setup apply` creates it
}

// newOutbox creates everything that a daemon needs to run.
func newOutbox(t *testing.T, opt options) *outbox {
	t.Helper()
	if opt.pg == nil {
		opt.pg = sharedPostgres(t, defaultMajor)
	}
	if opt.kafka == nil {
		opt.kafka = sharedKafka()
	}
	if opt.types == nil {
		opt.types = []string{"order"}
	}
	if opt.partitions == 0 {
		opt.partitions = 3
	}
	// Servers may be older than this run, and -count repeats a test.
	name := fmt.Sprintf("%.40s_%06x", plain(strings.ToLower(strings.TrimPrefix(t.Name(), "Test"))), rand.IntN(1<<24))
	o := &outbox{t: t, pg: opt.pg, kafka: opt.kafka, name: name, bytea: opt.payload == "bytea"}
	must(t, opt.pg.Exec(testContext(t), "postgres", "CREATE DATABASE "+name))
	o.admin.url = opt.pg.SuperURL(name)
	t.Cleanup(o.tearDown)
	o.setUp(opt)
	for _, typ := range opt.types {
		if !contains(opt.missing, typ) {
			o.makeTopic(typ, opt.partitions, opt.configs)
		}
	}
	o.follow = startFollower(o, opt.types)
	return o
}

func contains(list []string, s string) bool {
	for _, e := range list {
		if e == s {
			return true
		}
	}
	return false
}

// plain keeps the characters that names of slots, databases and topics may all have.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') {
			return '_'
		}
		return r
	}, s)
}

func (o *outbox) setUp(opt options) {
	o.t.Helper()
	apply := []string{"setup", "apply"}
	if opt.ring > 0 {
		apply = append(apply, "--ring", strconv.Itoa(opt.ring))
	}
	if payload := opt.payload; payload != "" {
		o.exec(`CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_type text NOT NULL,
			aggregate_id text NOT NULL, event_type text NOT NULL, payload ` + payload + `, headers jsonb NOT NULL DEFAULT '{}')`)
	}
	if out, err := o.command(nil, apply...); err != nil {
		o.t.Fatalf("setup apply: %v\n%s", err, out)
	}
	// n orders the rows of a key. The daemon does not know it: extra columns are allowed.
	o.exec(`ALTER TABLE outbox ADD COLUMN n bigint`)
	o.exec(`CREATE TABLE counter (key text PRIMARY KEY, n bigint NOT NULL DEFAULT 0)`)
}

// tearDown removes everything from servers that other tests use.
func (o *outbox) tearDown() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	o.admin.close()
	if _, ok := kafkatest.FromEnv(); ok {
		for _, topic := range o.follow.topics {
			_ = kafkatest.DeleteTopic(ctx, o.kafka.Brokers(), topic)
		}
	}
	if o.pg.Pid() == 0 && o.pg.DataDir != "" { // stopped, and only this test's
		return
	}
	err := poll(patience, func() error {
		return o.pg.Exec(ctx, o.name, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = '"+o.name+"' AND NOT temporary AND slot_name ~ '^"+o.name+"$|_recovery$|_backfill_[0-9a-f]{8}$'")
	})
	if err == nil {
		// A temporary slot, of peek, ends with its walsender: shortly after the client.
		err = poll(patience, func() error { return o.pg.Exec(ctx, "postgres", "DROP DATABASE IF EXISTS "+o.name+" WITH (FORCE)") })
	}
	if err != nil {
		o.t.Errorf("tear down: %v", err)
	}
}

// topic returns the topic for rows of an aggregate type.
func (o *outbox) topic(typ string) string { return o.name + "." + typ }

// keepsOldRecords configures topics for records with old timestamps, which Kafka may delete when it looks next.
var keepsOldRecords = map[string]string{"retention.ms": "-1"}

// makeTopic creates the topic of an aggregate type.
func (o *outbox) makeTopic(typ string, partitions int, configs map[string]string) {
	o.t.Helper()
	must(o.t, kafkatest.CreateTopic(testContext(o.t), o.kafka.Brokers(), o.topic(typ), partitions, configs))
}

// command runs the binary to its end, configured like a daemon of this outbox.
func (o *outbox) command(env []string, args ...string) (output string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, testSuite.binary, slices.Concat(o.args, args)...)
	cmd.Env = append(o.env(), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// cleanEnv returns our environment without variables that could configure the binary.
func cleanEnv() (env []string) {
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "OUTBOXCDC_") && !strings.HasPrefix(kv, "PG") && !strings.HasPrefix(kv, "GOMEMLIMIT=") {
			env = append(env, kv)
		}
	}
	return env
}

// atLeastOnce is the setting for tests of the repeats after a crash in which the daemon does not read Kafka.
const atLeastOnce = "OUTBOXCDC_DELIVERY_MODE=at_least_once"

// stopAtPoison is the setting for tests of a daemon that stops at a poison event.
const stopAtPoison = "OUTBOXCDC_POISON_POLICY=stop"

// steadyFence is a fence_wait for daemons whose session the test must not lose. A session with open requests lives
// for three quarters of it without a catalog check, which on a slow machine can take seconds. It costs nothing before
// an unclean end.
const steadyFence = 6 * time.Second

// steady is the setting for it.
var steady = "OUTBOXCDC_TUNING_FENCE_WAIT=" + steadyFence.String()

// env returns the environment of the binary: the settings of this outbox and no other variables that could configure
// it.
func (o *outbox) env() []string {
	return append(cleanEnv(),
		"OUTBOXCDC_POSTGRES_URL="+o.pg.URL(o.name, role, password),
		"OUTBOXCDC_POSTGRES_SLOT="+o.name,
		"OUTBOXCDC_KAFKA_BROKERS="+strings.Join(o.kafka.Brokers(), ","),
		"OUTBOXCDC_ROUTE_TOPIC="+o.name+".{aggregate_type}",
		"OUTBOXCDC_HTTP_LISTEN=127.0.0.1:0",
		"OUTBOXCDC_LOG_LEVEL=debug",
		"OUTBOXCDC_SETUP_URL="+o.pg.SuperURL(o.name),
		// Brokers on this machine answer, or are dead, in much less than the default.
		"OUTBOXCDC_TUNING_FENCE_WAIT=900ms",
	)
}

// session is a connection that is opened again after an error. Its methods may be called from several goroutines.
type session struct {
	url  string
	mu   sync.Mutex
	conn *pgx.Conn
}

func (s *session) do(f func(ctx context.Context, conn *pgx.Conn) error) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), stepLimit)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		old := s.conn != nil
		if !old {
			if s.conn, err = pgx.Connect(ctx, s.url); err != nil {
				s.conn = nil
				return err
			}
		}
		if err = f(ctx, s.conn); err == nil || !s.conn.IsClosed() {
			return err
		}
		s.conn = nil
		if !old { // else the server was stopped since the last use, and has done nothing
			return err
		}
	}
}

func (s *session) scan(sql string, dest ...any) error {
	return s.do(func(ctx context.Context, conn *pgx.Conn) error { return conn.QueryRow(ctx, sql).Scan(dest...) })
}

func (s *session) lsn(sql string) (lsn pglogrepl.LSN, err error) {
	var text string
	if err := s.scan(sql, &text); err != nil {
		return 0, err
	}
	return pglogrepl.ParseLSN(text)
}

func (s *session) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = s.conn.Close(ctx)
		s.conn = nil
	}
}

// exec runs one statement as the superuser.
func (o *outbox) exec(sql string, args ...any) {
	o.t.Helper()
	err := o.admin.do(func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql, args...)
		return err
	})
	if err != nil {
		o.t.Fatalf("%.200s: %v", sql, err)
	}
}

// insertInto begins a statement that writes rows.
const insertInto = `INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload, headers, n) VALUES `

// tx runs f in a transaction, commits it and notes the commit for the sampler. It returns a position at or after the
// transaction's end LSN, and stores one before its commit in o.older, with no other transaction of this test in
// between. Other tests write to this server, so the end of the WAL is less precise.
func (o *outbox) tx(f func(ctx context.Context, tx pgx.Tx) error) (end pglogrepl.LSN) {
	o.t.Helper()
	var ids []string
	err := o.admin.do(func(ctx context.Context, conn *pgx.Conn) error {
		tx, err := conn.Begin(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback(ctx) }() // does nothing after a commit
		if err := f(ctx, tx); err != nil {
			return err
		}
		if ids, err = ownIDs(ctx, tx); err != nil {
			return err
		}
		if o.older, err = scanLSN(tx.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text")); err != nil {
			return err
		}
		if err := tx.Commit(ctx); err != nil {
			return err
		}
		end, err = scanLSN(conn.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text"))
		return err
	})
	must(o.t, err)
	o.ledger.add(ids, end)
	return end
}

// ownIDs returns the ids that the open transaction has written.
func ownIDs(ctx context.Context, tx pgx.Tx) ([]string, error) {
	rows, err := tx.Query(ctx, "SELECT id::text FROM outbox WHERE xmin = pg_current_xact_id()::xid AND id IS NOT NULL")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

func scanLSN(row pgx.Row) (pglogrepl.LSN, error) {
	var text string
	if err := row.Scan(&text); err != nil {
		return 0, err
	}
	return pglogrepl.ParseLSN(text)
}

// insert commits count rows of one key in one transaction, numbered on from n (the first row gets n).
func (o *outbox) insert(typ, key string, n, count int) pglogrepl.LSN {
	o.t.Helper()
	return o.tx(func(ctx context.Context, tx pgx.Tx) error { return insertRows(ctx, tx, typ, key, n, count) })
}

// deliver writes rows beside a daemon, and stops it when Kafka has them.
func (o *outbox) deliver(env []string, typ, key string, n, count int) {
	o.t.Helper()
	r := o.startStreaming(env...)
	o.insert(typ, key, n, count)
	o.awaitArrived(patience)
	r.term()
}

func insertRows(ctx context.Context, tx pgx.Tx, typ, key string, n, count int) error {
	_, err := tx.Exec(ctx, `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, n)
		SELECT $1, $2, 'added', jsonb_build_object('n', g), g FROM generate_series($3::bigint, $3::bigint + $4 - 1) g`, typ, key, n, count)
	return err
}

// confirmed returns the slot's confirmed_flush_lsn.
func (o *outbox) confirmed() pglogrepl.LSN {
	o.t.Helper()
	lsn, err := o.admin.lsn(o.slotSQL("confirmed_flush_lsn::text"))
	must(o.t, err)
	return lsn
}

func (o *outbox) slotSQL(column string) string {
	return "SELECT " + column + " FROM pg_replication_slots WHERE slot_name = '" + o.name + "'"
}

// walFlushed returns how far the server's WAL is on disk: after everything that has committed.
func (o *outbox) walFlushed() pglogrepl.LSN {
	o.t.Helper()
	lsn, err := o.admin.lsn("SELECT pg_current_wal_flush_lsn()::text")
	must(o.t, err)
	return lsn
}

// awaitConfirmed waits until the slot confirms lsn, for d at most without any progress, and returns how long that took.
func (o *outbox) awaitConfirmed(lsn pglogrepl.LSN, d time.Duration) time.Duration {
	o.t.Helper()
	begin := time.Now()
	for {
		before := o.confirmed()
		err := poll(d, func() error {
			if now := o.confirmed(); now < lsn {
				return errors.Join(fmt.Errorf("it is %s", now), o.checkRelays())
			}
			return o.checkRelays()
		})
		switch {
		case err == nil:
			return time.Since(begin)
		case o.confirmed() == before || errors.As(err, new(*finalError)):
			o.t.Fatalf("waited %v for confirmed_flush_lsn to reach %s: %v", d, lsn, err)
		}
	}
}

// awaitSlotFree waits until no walsender has the slot.
func (o *outbox) awaitSlotFree() {
	o.t.Helper()
	await(o.t, patience, "the slot to be free", func() error {
		var active bool
		if err := o.admin.scan(o.slotSQL("active"), &active); err != nil || active {
			return errors.Join(err, errors.New("the slot is active"))
		}
		return nil
	})
}

// row is the record that one row of the outbox must become.
type row struct {
	check.Row
	EventType string
	N         int64 // orders all rows of a key, of any type; 0: no order
}

// truth reads the table: every committed row, with its place among the rows of its key.
func (o *outbox) truth() []row {
	o.t.Helper()
	payload := "convert_to(payload::text, 'UTF8')"
	if o.bytea {
		payload = "payload"
	}
	var truth []row
	err := o.admin.do(func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `SELECT id::text, aggregate_type, aggregate_id, event_type, `+payload+`,
			CASE WHEN n IS NULL THEN 0 ELSE row_number() OVER (PARTITION BY aggregate_type, aggregate_id, n IS NULL ORDER BY n) END,
			coalesce(n, 0) FROM outbox`)
		if err != nil {
			return err
		}
		truth, err = pgx.CollectRows(rows, func(c pgx.CollectableRow) (r row, err error) {
			var typ, key string
			err = c.Scan(&r.ID, &typ, &key, &r.EventType, &r.Value, &r.Seq, &r.N)
			r.Topic, r.Key = o.topic(typ), []byte(key)
			return r, err
		})
		return err
	})
	must(o.t, err)
	return truth
}
