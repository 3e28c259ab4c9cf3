// Package integration tests the built binary from outside: a process of its own, real PostgreSQL, a real Kafka, and a
// reader that shares no code with it.
//
// A test consists of
//   - servers: [sharedPostgres] (one of each major, a database per test) and [sharedKafka] (topics per test) for
//     tests that do not disturb them; [ownPostgres], [ownKafka] and [breakableKafka] for tests that stop, kill or
//     freeze them. Open transactions delay the creation of slots in the whole server, so a test that leaves one open
//     must not be parallel;
//   - an [outbox]: database, table, publication, slot (created by `setup apply`), topics, and a reader that follows
//     them. [outbox.exec], [outbox.insert] and [outbox.tx] write; [outbox.confirmed] and [outbox.walFlushed] read
//     positions;
//   - a [relay]: the binary as a process: [outbox.start], [relay.kill9], [relay.term], [relay.awaitExit],
//     [relay.awaitState], [relay.status], [relay.metrics], [relay.logged]. A relay that ends unexpectedly fails the
//     test;
//   - a [writer]: transactions on several connections that lock their keys, so that a number per key is the order of
//     their commits; some roll back, some use savepoints ([outbox.write], [writer.stop]);
//   - [outbox.verify]: waits until every row of the table has arrived and is confirmed, reads all topics from their
//     beginning, and fails unless the promise was kept: nothing missing, nothing uncommitted, order per key, identical
//     repeats, correct headers and positions. It returns the report; tests bound its Repeats. [outbox.awaitArrived] and
//     [outbox.check] are its two halves;
//   - a [sampler] of the confirm rule: what the slot confirms is in Kafka ([outbox.sample]);
//   - a [proof]: the test is a row of `make prove` ([outbox.proves], [outbox.awaitHealed]: proof_test.go).
//
// All evidence of a run is kept in a file, a [history], and can be judged again (OUTBOXCDC_TEST_HISTORY).
//
// No test sleeps for a fixed time: [await] polls a condition. Random tests print their seed; OUTBOXCDC_TEST_SEED
// repeats it. The log of every daemon is kept in a file, and printed when its test fails.
//
// Environment: OUTBOXCDC_TEST_KAFKA, OUTBOXCDC_TEST_POSTGRES_<major>: running servers (packages kafkatest, pgtest).
// OUTBOXCDC_TEST_BINARY: a binary to test instead of building one. OUTBOXCDC_TEST_FAKE_KAFKA=1: kfake even where a
// real Kafka is available. OUTBOXCDC_TEST_DIR: where logs and histories are written, and kept. OUTBOXCDC_TEST_AUDITS:
// how many audits [TestAuditBesideWriters] runs on each server. OUTBOXCDC_TEST_LOSSES: how many losses
// [TestRecoverRandomLosses] has. With CI=true a missing real Kafka is a failure.
package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/daemon"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
	"github.com/outboxcdc/outboxcdc/test/pgfull"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// defaultMajor is the PostgreSQL version of tests that do not depend on one.
const defaultMajor = "17"

// patience is how long a test waits for an event that should happen soon but without a promised time, and stepLimit how
// long a statement or a step of preparation may take. In `make prove` tests are larger, with many beside each other.
var patience, stepLimit = fullOrShort(3*time.Minute, time.Minute), fullOrShort(20*time.Minute, 3*time.Minute)

// busyAllowance is how much a busy machine may add to a time that the daemon keeps on a quiet one. Timeouts in tests
// are well above it, so that a bound with it still distinguishes an end at once from one after a timeout.
const busyAllowance = 15 * time.Second

func TestMain(m *testing.M) {
	kafkatest.MaybeServe()
	maybeReceive()
	maybePrintToken()
	os.Exit(testSuite.run(m))
}

// testSuite is shared by all tests of one run.
var testSuite suite

type suite struct {
	dir     string // the binary, the daemons' logs, histories, rows of `make prove`
	keepDir bool   // dir was given and is not removed
	began   time.Time
	binary  string
	fake    string // why no real Kafka can be started; "": it can
	kafka   kafkatest.Cluster

	mu       sync.Mutex
	postgres map[string]*pgtest.Server // by major

	breakableMu sync.Mutex // held by the test that uses the breakable one
	breakable   kafkatest.Cluster

	rows  rows
	seeds sync.Map // test name → seed
}

func (s *suite) run(m *testing.M) int {
	defer s.close()
	if err := s.start(); err != nil {
		fmt.Fprintln(os.Stderr, "integration:", err)
		return 1
	}
	code := m.Run()
	switch {
	case s.keepDir:
		return code
	case code == 0:
		_ = os.RemoveAll(s.dir)
		return 0
	}
	fmt.Fprintln(os.Stderr, "integration: the daemons' logs and the histories are in", s.dir)
	if os.Getenv("OUTBOXCDC_TEST_BINARY") == "" {
		_ = os.Remove(s.binary) // 30 MB each time
	}
	return code
}

// start builds the binary and starts the shared Kafka, both in parallel.
func (s *suite) start() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var err error
	if s.dir = os.Getenv("OUTBOXCDC_TEST_DIR"); s.dir != "" {
		s.keepDir = true
		err = os.MkdirAll(s.dir, 0o755)
	} else {
		s.dir, err = os.MkdirTemp("", "outboxcdc-integration-")
	}
	if err != nil {
		return err
	}
	s.began, s.postgres = time.Now(), map[string]*pgtest.Server{}
	built := make(chan error, 1)
	go func() { built <- s.build(ctx) }()
	kafka := s.startKafka(ctx)
	return errors.Join(<-built, kafka)
}

// build builds the binary as `make build` does, except for its version.
func (s *suite) build(ctx context.Context) error {
	if s.binary = os.Getenv("OUTBOXCDC_TEST_BINARY"); s.binary != "" {
		return nil
	}
	s.binary = filepath.Join(s.dir, "outboxcdc")
	return daemon.Build(ctx, s.binary)
}

// startKafka chooses the Kafka of this run and prints it in the one line that test/testrun reads.
func (s *suite) startKafka(ctx context.Context) error {
	var err error
	if c, ok := kafkatest.FromEnv(); ok {
		s.kafka = c
		which := "given by OUTBOXCDC_TEST_KAFKA"
		if s.fake = whyNotReal(); s.fake != "" {
			which += ", but kfake where the broker is killed or frozen"
		}
		fmt.Println("REAL-KAFKA:", which)
		return nil
	}
	if reason := whyNotReal(); reason == "" {
		// No test stops it: a machine without time for it must not make it lose the leadership.
		if s.kafka, err = s.newKafka(ctx, map[string]string{"broker.session.timeout.ms": "60000"}); err == nil {
			fmt.Println("REAL-KAFKA:", kafkatest.RealVersion)
			return nil
		}
		s.fake = err.Error()
	} else {
		s.fake = reason
	}
	s.fake = strings.ReplaceAll(s.fake, "\n", " ")
	fmt.Println("NO-REAL-KAFKA:", s.fake)
	if os.Getenv("CI") == "true" {
		return errors.New("no real Kafka, and CI=true requires one: " + s.fake)
	}
	s.kafka, err = s.newKafka(ctx, nil)
	return err
}

// needRealKafka is for tests that kfake cannot run. With CI=true its absence is a failure, also where brokers were
// given.
func needRealKafka(t *testing.T) {
	t.Helper()
	if testSuite.fake != "" {
		child.Need(t, "REAL KAFKA", errors.New(testSuite.fake))
	}
}

func whyNotReal() string {
	if os.Getenv("OUTBOXCDC_TEST_FAKE_KAFKA") != "" {
		return "OUTBOXCDC_TEST_FAKE_KAFKA is set"
	}
	if err := kafkatest.RealAvailable(); err != nil {
		return err.Error()
	}
	return ""
}

// newKafka starts a broker of this run's kind; a real one gets the settings.
func (s *suite) newKafka(ctx context.Context, settings map[string]string) (kafkatest.Cluster, error) {
	if s.fake != "" {
		return kafkatest.StartFake(ctx, kafkatest.FakeOptions{})
	}
	return kafkatest.StartReal(ctx, kafkatest.RealOptions{QuickStart: true, Settings: settings})
}

func (s *suite) close() {
	for _, pg := range s.postgres {
		_ = pg.Close()
	}
	for _, k := range []kafkatest.Cluster{s.kafka, s.breakable} {
		if k != nil {
			_ = k.Close()
		}
	}
}

// sharedKafka returns the Kafka for tests that do not disturb it.
func sharedKafka() kafkatest.Cluster { return testSuite.kafka }

// breakableKafka returns a broker to kill and freeze. One test uses it at a time; it is restored when the test ends.
func breakableKafka(t *testing.T) kafkatest.Cluster {
	t.Helper()
	testSuite.breakableMu.Lock()
	t.Cleanup(testSuite.breakableMu.Unlock)
	ctx := testContext(t)
	if testSuite.breakable == nil {
		c, err := testSuite.newKafka(ctx, nil)
		must(t, err)
		testSuite.breakable = c
	}
	c := testSuite.breakable
	t.Cleanup(func() {
		if c.Pid() != 0 {
			if err := c.Thaw(); err == nil {
				return
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = c.Kill()
		if err := c.StartAgain(ctx); err != nil {
			t.Errorf("fix the broker: %v", err)
			_ = c.Close()
			testSuite.breakable = nil
		}
	})
	return c
}

// ownKafka returns a kfake of this test alone, to kill and freeze: what the daemon does while Kafka is away does not
// depend on the kind of Kafka. `make prove` runs the test on a real one.
func ownKafka(t *testing.T) kafkatest.Cluster {
	t.Helper()
	if isProving() {
		return breakableKafka(t)
	}
	return kafkatest.FakeForTest(t, kafkatest.FakeOptions{})
}

// sharedPostgres returns the server of a major version for tests that do not disturb it.
func sharedPostgres(t *testing.T, major string) *pgtest.Server {
	t.Helper()
	testSuite.mu.Lock()
	defer testSuite.mu.Unlock()
	if s := testSuite.postgres[major]; s != nil {
		return s
	}
	s, ok, err := pgtest.FromEnv(major)
	must(t, err)
	if !ok {
		s = startPostgres(t, major, nil)
	}
	testSuite.postgres[major] = s
	makeRole(t, s)
	return s
}

// ownPostgres returns a server for this test alone, closed at its end.
func ownPostgres(t *testing.T, major string, settings map[string]string) *pgtest.Server {
	t.Helper()
	return forThisTest(t, startPostgres(t, major, settings))
}

// fullPostgres is ownPostgres with a build of package pgfull, which may be a newer minor release.
func fullPostgres(t *testing.T, major string, settings map[string]string) *pgtest.Server {
	t.Helper()
	build := pgfull.ForTest(t, major)
	s, err := pgtest.Start(testContext(t), build.Options(pgtest.Options{Major: major, Settings: withSettings(settings)}))
	must(t, err)
	return forThisTest(t, s)
}

func forThisTest(t *testing.T, s *pgtest.Server) *pgtest.Server {
	t.Helper()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	makeRole(t, s)
	return s
}

func startPostgres(t *testing.T, major string, settings map[string]string) *pgtest.Server {
	t.Helper()
	ctx := testContext(t)
	_, err := pgtest.Fetch(ctx, major)
	child.Need(t, "POSTGRESQL", err)
	s, err := pgtest.Start(ctx, pgtest.Options{Major: major, Settings: withSettings(settings)})
	must(t, err)
	return s
}

// withSettings adds settings to those that every server of the tests has.
func withSettings(settings map[string]string) map[string]string {
	all := map[string]string{"max_prepared_transactions": "10", "max_replication_slots": "20", "max_wal_senders": "20"}
	maps.Copy(all, settings)
	return all
}

// The daemon's role. `setup apply` would create it too, but without a password.
const (
	role     = "outboxcdc"
	password = "outbox-secret"
)

func makeRole(t *testing.T, s *pgtest.Server) {
	t.Helper()
	err := s.Exec(testContext(t), "postgres", `DO $$ BEGIN
		IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '`+role+`') THEN CREATE ROLE `+role+`; END IF; END $$`,
		`ALTER ROLE `+role+` LOGIN REPLICATION PASSWORD '`+password+`'`)
	must(t, err)
}

// testContext bounds one step of preparation; it is not for the subject of a test.
func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), stepLimit)
	t.Cleanup(cancel)
	return ctx
}

// newRand returns the random numbers of a test, repeatable by its seed.
func newRand(t *testing.T) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("OUTBOXCDC_TEST_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("OUTBOXCDC_TEST_SEED: %v", err)
		}
		seed = n
	}
	t.Logf("seed %d", seed)
	testSuite.seeds.Store(t.Name(), seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// seedOf returns the seed of a test, or of its parent; 0 if it has none.
func (s *suite) seedOf(t *testing.T) uint64 {
	for name := t.Name(); name != ""; {
		if seed, ok := s.seeds.Load(name); ok {
			return seed.(uint64)
		}
		cut := strings.LastIndexByte(name, '/')
		name = name[:max(0, cut)]
	}
	return 0
}

// kafkaName returns a readable name of the Kafka.
func kafkaName(k kafkatest.Cluster) string {
	switch k.(type) {
	case *kafkatest.Real:
		return "Kafka " + kafkatest.RealVersion
	case *kafkatest.Fake:
		return "kfake"
	}
	return "given"
}

// await polls until done returns nil, and fails the test with the last error when that takes longer than d.
func await(t testing.TB, d time.Duration, what string, done func() error) {
	t.Helper()
	if err := poll(d, done); err != nil {
		t.Fatalf("waited %v for %s: %v", d, what, err)
	}
}

// poll asks every few milliseconds at first and, because asking costs processor time too, ten times a second later.
func poll(d time.Duration, done func() error) error {
	begin := time.Now()
	for {
		waited := time.Since(begin) // read before the check: after a standstill of the machine one more check follows
		err := done()
		if err == nil || errors.As(err, new(*finalError)) || waited > d {
			return err
		}
		time.Sleep(min(max(waited/20, 10*time.Millisecond), 100*time.Millisecond))
	}
}

// finalError is an error that ends an await at once.
type finalError struct{ error }

// is compares what was seen of a thing with what was wanted.
func is[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// says checks that a text contains these ones.
func says(t testing.TB, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
