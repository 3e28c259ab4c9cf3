// Package ends tests the modules for applications, outbox/ and inbox/, between real servers and the built daemon. It
// is a module of its own, because these modules must not depend on the daemon's module, and the daemon's module must
// not depend on them.
//
// A test has a [pipeline]: a database with an outbox, a running daemon, and its topics in kfake. [pipeline.records]
// waits for records.
package outbox

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/daemon"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// patience is how long a test waits for an event that should happen soon but without a promised time.
const patience = 60 * time.Second

// majors are the supported versions of PostgreSQL, and defaultMajor the one of tests that do not depend on one.
var majors = []string{"14", "15", "16", "17", "18"}

const defaultMajor = "17"

// shared is used by all tests of a run.
var shared struct {
	dir    string // the binary and the daemons' logs
	binary string
	kafka  kafkatest.Cluster

	mu       sync.Mutex
	postgres map[string]*pgtest.Server // by major
}

func TestMain(m *testing.M) {
	kafkatest.MaybeServe()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, "ends:", err)
		return 1
	}
	var err error
	if shared.dir, err = os.MkdirTemp("", "outboxcdc-ends-"); err != nil {
		return fail(err)
	}
	defer os.RemoveAll(shared.dir)
	shared.binary = filepath.Join(shared.dir, "outboxcdc")
	if err := daemon.Build(ctx, shared.binary); err != nil {
		return fail(err)
	}
	kafka, err := kafkatest.StartFake(ctx, kafkatest.FakeOptions{})
	if err != nil {
		return fail(err)
	}
	defer kafka.Close()
	shared.kafka = kafka
	shared.postgres = map[string]*pgtest.Server{}
	defer func() {
		for _, s := range shared.postgres {
			_ = s.Close()
		}
	}()
	return m.Run()
}

// sharedPostgres returns the server of a major version. If the machine cannot have it, the test is skipped; with
// CI=true it fails.
func sharedPostgres(t testing.TB, major string) *pgtest.Server {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if s := shared.postgres[major]; s != nil {
		return s
	}
	s, external, err := pgtest.FromEnv(major)
	must(t, err)
	if !external {
		if _, err := pgtest.Fetch(testContext(t), major); err != nil && os.Getenv("CI") != "true" {
			t.Skipf("SKIPPED, THERE IS NO POSTGRESQL: %v", err)
		}
		s, err = pgtest.Start(testContext(t), pgtest.Options{Major: major})
		must(t, err)
	}
	shared.postgres[major] = s
	return s
}

// pipeline is a database with an outbox, a daemon, and its topics.
type pipeline struct {
	t    *testing.T
	pg   *pgtest.Server
	name string // of the database and the slot, and prefix of the topics' names
	env  []string
	log  string // the daemon's
	proc *child.Process
}

// options describe a pipeline; the zero value is valid.
type options struct {
	major    string   // of PostgreSQL; "" is defaultMajor
	encoding string   // of the database; "" is UTF8
	before   []string // statements before `setup apply`, such as the CREATE TABLE of another outbox
	settings []string // of the daemon: "OUTBOXCDC_…=…"
}

// newPipeline creates the database, runs `setup apply` and starts a daemon, which ends with the test. A daemon that
// ends before fails the test.
func newPipeline(t *testing.T, o options) *pipeline {
	t.Helper()
	if o.major == "" {
		o.major = defaultMajor
	}
	name := fmt.Sprintf("%.40s_%06x", plain(strings.TrimPrefix(t.Name(), "Test")), rand.IntN(1<<24))
	p := &pipeline{t: t, pg: sharedPostgres(t, o.major), name: name, log: filepath.Join(shared.dir, name+".log")}
	must(t, p.pg.Exec(testContext(t), "postgres", "CREATE DATABASE "+name+" TEMPLATE template0 LOCALE 'C' ENCODING '"+cmp.Or(o.encoding, "UTF8")+"'"))
	must(t, p.pg.Exec(testContext(t), name, o.before...))
	p.env = daemon.Environment(append([]string{
		"OUTBOXCDC_POSTGRES_URL=" + p.url(),
		"OUTBOXCDC_SETUP_URL=" + p.url(),
		"OUTBOXCDC_POSTGRES_SLOT=" + name,
		"OUTBOXCDC_KAFKA_BROKERS=" + strings.Join(shared.kafka.Brokers(), ","),
		"OUTBOXCDC_KAFKA_CREATE_TOPICS_PARTITIONS=6",
		"OUTBOXCDC_KAFKA_CREATE_TOPICS_REPLICATION_FACTOR=1",
		"OUTBOXCDC_ROUTE_TOPIC=" + name + ".{aggregate_type}",
		"OUTBOXCDC_POISON_TOPIC=" + name + ".dead",
		"OUTBOXCDC_HTTP_LISTEN=127.0.0.1:0",
		"OUTBOXCDC_TUNING_FENCE_WAIT=900ms",
	}, o.settings...)...)
	setup := exec.CommandContext(testContext(t), shared.binary, "setup", "apply")
	setup.Env = p.env
	if out, err := setup.CombinedOutput(); err != nil {
		t.Fatalf("setup apply: %v\n%s", err, out)
	}
	p.startDaemon()
	return p
}

func (p *pipeline) startDaemon() {
	p.t.Helper()
	proc, err := child.Start(child.Spec{
		Path: shared.binary, Args: []string{"run"}, Env: p.env, Dir: shared.dir, LogFile: p.log, DeathSignal: syscall.SIGKILL,
	})
	must(p.t, err)
	p.proc = proc
	p.t.Cleanup(func() {
		if proc.Exited() {
			p.t.Errorf("the daemon ended by itself: %v", proc.Err())
		} else if err := daemon.Stop(context.Background(), proc); err != nil {
			p.t.Errorf("stop the daemon: %v", err)
		}
		if p.t.Failed() {
			log, _ := os.ReadFile(p.log)
			p.t.Logf("the daemon's log:\n%s", log)
		}
		// The server keeps WAL for the slot.
		if err := p.pg.Exec(context.Background(), "postgres", "SELECT pg_drop_replication_slot('"+p.name+"')", "DROP DATABASE "+p.name); err != nil {
			p.t.Errorf("clean up: %v", err)
		}
	})
}

// url is the connection string of the database, as a superuser.
func (p *pipeline) url() string { return p.pg.SuperURL(p.name) }

// topic returns the topic of an aggregate type.
func (p *pipeline) topic(aggregateType string) string { return p.name + "." + aggregateType }

// queryInt returns the number that a query returns.
func (p *pipeline) queryInt(sql string, args ...any) (n int) {
	p.t.Helper()
	ctx := testContext(p.t)
	conn, err := pgx.Connect(ctx, p.url())
	must(p.t, err)
	defer conn.Close(context.WithoutCancel(ctx))
	must(p.t, conn.QueryRow(ctx, sql, args...).Scan(&n))
	return n
}

// records waits until a topic has n records, and returns all that it has, in the order of partitions and offsets.
func (p *pipeline) records(topic string, n int) []kafkatest.Record {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		got, err := kafkatest.ReadAll(ctx, shared.kafka.Brokers(), topic)
		if err == nil && len(got) >= n {
			return got
		}
		select {
		case <-p.proc.Done():
			p.t.Fatalf("the daemon ended, and the topic %s has %d of %d records", topic, len(got), n)
		case <-ctx.Done():
			p.t.Fatalf("the topic %s has %d of %d records after %v (%v)", topic, len(got), n, patience, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// headersOf returns the headers of a record as text, in their order, without those that the daemon adds for itself.
func headersOf(r *kafkatest.Record) []string {
	var all []string
	for _, h := range r.Headers {
		if !strings.HasPrefix(h.Key, "outboxcdc-") {
			all = append(all, h.Key+"="+string(h.Value))
		}
	}
	return all
}

// header returns the value of a header, or "".
func header(r *kafkatest.Record, name string) string {
	i := slices.IndexFunc(r.Headers, func(h kafkatest.Header) bool { return h.Key == name })
	if i < 0 {
		return ""
	}
	return string(bytes.Clone(r.Headers[i].Value))
}

// plain keeps the characters that names of slots, databases and topics may all have.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') {
			return '_'
		}
		return r
	}, strings.ToLower(s))
}

// testContext bounds one step of preparation; it is not for the subject of a test.
func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
