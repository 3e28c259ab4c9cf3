package doctor

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/kafka"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// world has what the cases of TestEveryOutcome share: servers, and the outcomes that were seen.
type world struct {
	t     *testing.T
	pg    *pgtest.Server // PostgreSQL 18
	kafka *kfake.Cluster // three brokers
	seen  map[string]bool
	n     int // number of databases
}

// outcomes are the checks that can have a result other than OK: WARN, or FAIL with an exit code.
var outcomes = map[string]string{
	"WARN": "password_command version encoding wal_level max_wal_senders max_replication_slots wal_sender_timeout " +
		"max_slot_wal_keep_size idle_replication_slot_timeout prepared_transactions long_transactions clock inserts " +
		"partition_key unique_ids table_privileges order retention messages publish publish_via_partition_root shards " +
		"other_tables active retained_wal failover standby_slots standby_hosts standby_connect standby_copy " +
		"standby_settings standby_waited_for token_command brokers authentication cluster_size routing " +
		"replication_factor min.insync.replicas cleanup.policy max.message.bytes message.timestamp dead_letters " +
		"receiver",
	"FAIL 69": "password_command connect primary replication max_wal_senders plugin_and_database wal_status standby_slots " +
		"token_command brokers authentication advertised_listeners producer_id topic min.insync.replicas partitions " +
		"dead_letters receiver",
	"FAIL 77": "connect replication output_plugin_libraries table_privileges producer_id topic dead_letters position_topic",
	"FAIL 78": "connect version wal_level max_replication_slots synchronous_standby_names table columns generated_columns " +
		"replica_identity column_list publish_via_partition_root plugin_and_database standby_hosts authentication " +
		"dead_letters position_topic receiver",
	"FAIL 79": "table publication publish tables row_filter shards slot recovery plugin_and_database wal_status standby_hosts",
}

// TestEveryOutcome causes every outcome on real servers, and checks that a correct set-up has no
// finding.
func TestEveryOutcome(t *testing.T) {
	w := &world{t: t, seen: map[string]bool{}}
	w.pg = pgtest.ForTest(t, pgtest.Options{Major: "18", Settings: map[string]string{
		"max_prepared_transactions": "5", "max_replication_slots": "100", "max_slot_wal_keep_size": "50GB", "fsync": "off",
	}})
	w.kafka = newKafka(t, 3)
	w.makeRole(w.pg)
	createTopic(t, w.kafka, "outbox.event.order", 6, 3, map[string]string{"min.insync.replicas": "2"})

	groups := []struct {
		name string
		test func(*testing.T, *world)
	}{
		{"Postgres", postgresOutcomes},
		{"outbox", outboxOutcomes},
		{"publication", publicationOutcomes},
		{"standbys", standbyOutcomes},
		{"slot", slotOutcomes},
		{"Kafka", kafkaOutcomes},
		{"topics", topicOutcomes},
		{"receiver", receiverOutcomes},
		{"plugins", pluginOutcomes},
		{"old server", oldServerOutcomes},
	}
	ran := 0
	for _, g := range groups {
		t.Run(g.name, func(t *testing.T) { ran++; g.test(t, w) })
	}
	if t.Failed() || ran < len(groups) { // -run has chosen some groups
		return
	}
	can := map[string]bool{}
	for result, checks := range outcomes {
		for check := range strings.FieldsSeq(checks) {
			if can[check+" "+result] = true; !w.seen[check+" "+result] {
				t.Errorf("no case reaches %s of %s", result, check)
			}
		}
	}
	for name := range w.seen {
		if !can[name] {
			t.Errorf("outcomes does not have %s", name)
		}
	}
}

const (
	roleName     = "doctor"
	rolePassword = "s3cr3t"
)

func (w *world) makeRole(s *pgtest.Server) {
	w.t.Helper()
	// Commits of the tests must not wait for standbys that a case configures.
	err := s.Exec(w.t.Context(), "postgres", "ALTER ROLE postgres SET synchronous_commit = local",
		"CREATE ROLE "+roleName+" LOGIN REPLICATION PASSWORD '"+rolePassword+"'")
	if err != nil {
		w.t.Fatal(err)
	}
}

// place is a database with a correct outbox, and its configuration. A case changes it.
type place struct {
	t     *testing.T
	w     *world
	s     *pgtest.Server
	name  string
	conn  *pgx.Conn // of an administrator
	cfg   Config
	rcfg  replication.Config
	kcfg  kafka.Config
	topic string

	patience time.Duration // of a run
}

const outboxColumns = `(id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_type text NOT NULL, aggregate_id text NOT NULL,
	event_type text NOT NULL, payload jsonb, headers jsonb NOT NULL DEFAULT '{}', created_at timestamptz NOT NULL DEFAULT now(),
	seq bigint GENERATED ALWAYS AS IDENTITY)`

func (w *world) newPlace(t *testing.T, s *pgtest.Server) *place {
	t.Helper()
	w.n++
	p := &place{t: t, w: w, s: s, name: fmt.Sprintf("d%d", w.n), topic: "outbox.event.{aggregate_type}", patience: 20 * time.Second}
	create := "CREATE DATABASE " + p.name
	if s.Major >= "15" {
		create += " STRATEGY file_copy" // half the work where nothing is synced to the disk
	}
	must(t, s.Exec(t.Context(), "postgres", create))
	p.conn = pgtest.Connect(p.t, s.SuperURL(p.name))
	p.rcfg = replication.Config{
		URL: func() (string, error) { return s.URL(p.name, roleName, rolePassword), nil }, Slot: p.name, Publication: p.name,
		WalSenderTimeout: 15 * time.Second,
	}
	p.kcfg = kafka.DefaultConfig()
	p.kcfg.Brokers, p.kcfg.Compression = w.kafka.ListenAddrs(), "none"
	p.kcfg.DialTimeout, p.kcfg.AskTimeout = 5*time.Second, 10*time.Second
	p.cfg = Config{
		Role: roleName, Database: p.name, Server: "127.0.0.1", Slot: p.name, Publication: p.name, SenderTimeout: 15 * time.Second,
		Tables:  []Table{{Schema: "public", Name: "outbox", Needs: []string{"aggregate_id", "aggregate_type", "event_type", "headers", "id", "payload"}, CreatedAt: "created_at"}},
		Command: "outboxcdc", Now: time.Now, LongTransaction: time.Hour, Partitions: map[string]int{"outbox.event.order": 6},
	}
	return p
}

// in is the same place for another case, which undoes its changes.
func (p *place) in(t *testing.T) *place {
	q := *p
	q.t, q.cfg.Tables = t, slices.Clone(p.cfg.Tables)
	return &q
}

// make creates table, publication and slot, and writes one row.
func (p *place) make() *place {
	p.t.Helper()
	p.exec("CREATE TABLE outbox "+outboxColumns, "GRANT SELECT ON outbox TO "+roleName,
		"CREATE PUBLICATION "+p.name+" FOR TABLE outbox WITH (publish = 'insert')")
	p.makeSlot()
	p.exec("INSERT INTO outbox (aggregate_type, aggregate_id, event_type) VALUES ('order', '1', 'made')")
	return p
}

func (p *place) makeSlot() {
	p.t.Helper()
	failover := ""
	if p.s.Major >= "17" {
		failover = ", failover => true"
	}
	p.exec("SELECT pg_create_logical_replication_slot('" + p.name + "', 'pgoutput'" + failover + ")")
}

func (p *place) exec(statements ...string) {
	p.t.Helper()
	for _, s := range statements {
		if _, err := p.conn.Exec(p.t.Context(), s); err != nil {
			p.t.Fatalf("%s: %v", s, err)
		}
	}
}

// setting changes a setting of the whole server until the case ends.
func (p *place) setting(name, value string) {
	p.t.Helper()
	p.exec("ALTER SYSTEM SET "+name+" = "+value, "SELECT pg_reload_conf()")
	p.t.Cleanup(func() {
		_ = p.s.Exec(context.Background(), "postgres", "ALTER SYSTEM RESET "+name, "SELECT pg_reload_conf()")
		p.await("the setting of before", "SELECT NOT EXISTS (SELECT FROM pg_settings WHERE name = '"+name+"' AND setting = "+value+")")
	})
	// New sessions have the setting once the postmaster has reloaded it.
	p.await(name, "SELECT current_setting('"+name+"') = "+value)
}

// await repeats the query, each time in a new session, until it returns true.
func (p *place) await(what, question string) { p.awaitOn(p.s, what, question, func() {}) }

// awaitOn is await on another server. It calls move before each query.
func (p *place) awaitOn(s *pgtest.Server, what, question string, move func()) {
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) { // a session costs 8 ms of processor time
		move()
		conn, err := pgx.Connect(context.Background(), s.SuperURL("postgres"))
		if err == nil {
			var yes bool
			err = conn.QueryRow(context.Background(), question).Scan(&yes)
			_ = conn.Close(context.Background())
			if yes {
				return
			}
		}
		if time.Since(began) > time.Minute {
			p.t.Errorf("waited in vain for %s: %v", what, err)
			return
		}
	}
}

// examine runs the doctor.
func (p *place) examine() *Report {
	p.t.Helper()
	route := router.DefaultConfig()
	route.Topic = p.topic
	var routes []router.Config
	p.rcfg.Tables = nil
	for i := range p.cfg.Tables {
		t := &p.cfg.Tables[i]
		if t.Routing == nil {
			t.Routing = []string{"aggregate_id", "aggregate_type", "event_type", "id"}
		}
		if t.ID == nil {
			t.ID = []string{"id"}
		}
		routes = append(routes, route)
		p.rcfg.Tables = append(p.rcfg.Tables, replication.Table{Schema: t.Schema, Name: t.Name, Columns: t.Needs})
	}
	if p.cfg.Messages != "" {
		route.Messages, route.Columns = true, router.MessageColumns()
		routes = append(routes, route)
	}
	var err error
	if p.cfg.Source, err = replication.NewSource(p.rcfg); err != nil {
		p.t.Fatal(err)
	}
	if p.cfg.Router, err = router.New(routes...); err != nil {
		p.t.Fatal(err)
	}
	if p.cfg.Kafka, err = kafka.NewCluster(p.kcfg, prometheus.NewRegistry()); err != nil {
		p.t.Fatal(err)
	}
	p.cfg.Brokers = p.kcfg.Brokers
	ctx, cancel := context.WithTimeout(p.t.Context(), p.patience)
	defer cancel()
	r := Run(ctx, p.cfg)
	if text := r.String(); strings.Contains(text, rolePassword) || strings.Contains(text, "internal error") {
		p.t.Errorf("the report shows what it must not:\n%s", text)
	}
	return r
}

// outcome is what a case expects: a check, its level, and words of the text.
type outcome struct{ check, outcome, words string }

// advises runs the doctor and checks that a remedy of the check contains these words.
func (p *place) advises(check, words string) {
	p.t.Helper()
	for _, f := range p.examine().Findings {
		if f.Check == check && slices.ContainsFunc(f.Remedy, func(r Remedy) bool { return strings.Contains(r.Text, words) }) {
			return
		}
	}
	p.t.Errorf("%s has no remedy with %q", check, words)
}

// advisesOnly checks that text for a person is the only remedy of checks that have failed, also of those that are not
// named.
func (p *place) advisesOnly(words string, checks ...string) {
	p.t.Helper()
	said := map[string]bool{}
	for _, f := range p.examine().Findings {
		for _, r := range f.Remedy {
			if f.Level == Fail && (r.Kind != Advice || !strings.Contains(r.Text, words)) {
				p.t.Errorf("%s: the remedy is %s", f.Check, r.Text)
			}
			said[f.Check] = said[f.Check] || f.Level == Fail
		}
	}
	for _, check := range checks {
		if !said[check] {
			p.t.Errorf("%s has no remedy", check)
		}
	}
}

// apply runs the doctor and executes the SQL remedies of a check, each in the order in which it is printed.
func (p *place) apply(check string) {
	p.t.Helper()
	n := 0
	for _, f := range p.examine().Findings {
		for _, r := range f.Remedy {
			if f.Check == check && r.Kind == SQL {
				p.exec(r.Text)
				n++
			}
		}
	}
	if n == 0 {
		p.t.Errorf("%s has no SQL remedy", check)
	}
}

// wants runs the doctor and checks that the report has exactly these outcomes besides OK.
func (p *place) wants(all ...outcome) {
	p.t.Helper()
	p.compare(p.examine(), all)
}

// compare checks that a report has exactly these outcomes besides OK.
func (p *place) compare(r *Report, all []outcome) {
	p.t.Helper()
	exit := 0
	left := slices.Clone(all)
	for _, f := range r.Findings {
		if f.Level == OK || f.Level == NotChecked {
			continue
		}
		is := string(f.Level)
		if f.Level == Fail {
			is = fmt.Sprintf("FAIL %d", f.Exit)
			exit = max(exit, f.Exit)
		}
		at := slices.IndexFunc(left, func(o outcome) bool {
			return o.check == f.Check && o.outcome == is && strings.Contains(f.Text, o.words)
		})
		if at < 0 {
			p.t.Errorf("not expected: %s %s: %s", is, f.Check, f.Text)
			continue
		}
		if len(f.Remedy) == 0 {
			p.t.Errorf("no remedy: %s: %s", f.Check, f.Text)
		}
		p.w.seen[f.Check+" "+is] = true
		left = slices.Delete(left, at, at+1)
	}
	for _, o := range left {
		p.t.Errorf("missing: %s %s with %q", o.outcome, o.check, o.words)
	}
	if r.Exit != exit {
		p.t.Errorf("exit %d, and the highest of the findings is %d", r.Exit, exit)
	}
	if p.t.Failed() {
		p.t.Logf("the report:\n%s", r)
	}
}

// closedPort is an address without a listener. A port that was free a moment ago could be used by another test.
const closedPort = "127.0.0.1:1"

// openPort is an address that accepts connections and passes each one to taken, which returns at once.
func openPort(t *testing.T, taken func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			taken(c)
		}
	}()
	return l.Addr().String()
}
