// Package effect tests the whole chain, from the transaction that writes an event to the effect of its record.
package effect

import (
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

	"github.com/outboxcdc/outboxcdc/outbox"
	"github.com/outboxcdc/outboxcdc/outbox/pgxoutbox"
	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/daemon"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// isProving reports whether the long variants are wanted.
func isProving() bool { return os.Getenv("OUTBOXCDC_PROVE") != "" }

// The built programs.
var daemonProgram, ledgerProgram string

func TestMain(m *testing.M) {
	kafkatest.MaybeServe()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "outboxcdc-effect-")
	if err == nil {
		defer os.RemoveAll(dir)
		daemonProgram, ledgerProgram = filepath.Join(dir, "outboxcdc"), filepath.Join(dir, "ledger")
		err = daemon.Build(context.Background(), daemonProgram)
	}
	if err == nil {
		var out []byte
		if out, err = exec.Command("go", "build", "-o", ledgerProgram, "../ledger").CombinedOutput(); err != nil {
			err = fmt.Errorf("build the ledger: %w\n%s", err, out)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// testContext bounds one step.
func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// faults is how often each thing breaks.
type faults struct{ daemon, ledger, kafka, postgres, rebalances int }

// TestEffectOnce is the whole chain: a shop writes orders with package outbox, the daemon delivers them, and two
// ledgers of one group book them with package kgoinbox. Daemon, ledgers, Kafka and Postgres are killed again and
// again, and ledgers come and go. In the end the ledger has each order once, in both delivery modes.
func TestEffectOnce(t *testing.T) {
	much := faults{daemon: 5, ledger: 5, kafka: 1, postgres: 1, rebalances: 2}
	if isProving() {
		much = faults{daemon: 100, ledger: 100, kafka: 20, postgres: 10, rebalances: 10}
	}
	for _, mode := range []string{"deduplicated", "at_least_once"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			e := newEffect(t, mode)
			for _, f := range much.shuffled() {
				e.await("new entries", e.hasNewEntries())
				f.do(e)
			}
			e.settle()
		})
	}
}

type fault struct {
	name string
	do   func(*effect)
}

func (f faults) shuffled() (all []fault) {
	for _, kind := range []struct {
		n int
		fault
	}{
		{f.daemon, fault{"kill -9 of the daemon", (*effect).killDaemon}},
		{f.ledger, fault{"kill -9 of a ledger", (*effect).killLedger}},
		{f.kafka, fault{"kill -9 of Kafka", (*effect).killKafka}},
		{f.postgres, fault{"crash of Postgres", (*effect).crashPostgres}},
		{f.rebalances, fault{"rebalance", (*effect).rebalance}},
	} {
		all = append(all, slices.Repeat([]fault{kind.fault}, kind.n)...)
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// effect is one run of the chain, with servers of its own.
type effect struct {
	t       *testing.T
	dir     string
	kafka   kafkatest.Cluster
	pg      *pgtest.Server
	env     []string // of the daemon
	daemon  *child.Process
	ledgers [2]*child.Process

	closing chan struct{}
	shop    sync.WaitGroup
}

const (
	shopDB    = "shop"
	ledgerDB  = "ledger"
	orderKind = "order"
	shopTopic = "outbox.event." + orderKind
)

func newEffect(t *testing.T, mode string) *effect {
	ctx := testContext(t)
	e := &effect{t: t, dir: t.TempDir(), closing: make(chan struct{})}
	if isProving() {
		e.kafka = kafkatest.RealForTest(t, kafkatest.RealOptions{QuickStart: true})
	} else {
		e.kafka = kafkatest.FakeForTest(t, kafkatest.FakeOptions{})
	}
	must(t, kafkatest.CreateTopic(ctx, e.kafka.Brokers(), shopTopic, 6, nil))
	e.pg = pgtest.ForTest(t, pgtest.Options{Major: "18"})
	for _, name := range []string{shopDB, ledgerDB} {
		must(t, e.pg.Exec(ctx, "postgres", "CREATE DATABASE "+name))
	}
	must(t, e.pg.Exec(ctx, shopDB, `CREATE TABLE orders (id uuid PRIMARY KEY, cents bigint NOT NULL)`))
	e.env = daemon.Environment(
		"OUTBOXCDC_POSTGRES_URL="+e.pg.SuperURL(shopDB), "OUTBOXCDC_SETUP_URL="+e.pg.SuperURL(shopDB),
		"OUTBOXCDC_KAFKA_BROKERS="+strings.Join(e.kafka.Brokers(), ","), "OUTBOXCDC_DELIVERY_MODE="+mode,
		"OUTBOXCDC_HTTP_LISTEN=127.0.0.1:0", "OUTBOXCDC_TUNING_FENCE_WAIT=900ms",
	)
	e.mustRun(daemonProgram, e.env, "setup", "apply")
	e.mustRun(ledgerProgram, os.Environ(), e.ledgerArgs("-migrate")...)
	e.startDaemon()
	for i := range e.ledgers {
		e.ledgers[i] = e.startLedger()
	}
	e.openShop()
	t.Cleanup(e.showLogs)
	return e
}

func (e *effect) mustRun(program string, env []string, args ...string) {
	e.t.Helper()
	cmd := exec.CommandContext(testContext(e.t), program, args...)
	cmd.Env = env
	if out, err := cmd.CombinedOutput(); err != nil {
		e.t.Fatalf("%s %s: %v\n%s", filepath.Base(program), strings.Join(args, " "), err, out)
	}
}

func (e *effect) ledgerArgs(more ...string) []string {
	return append([]string{"-database", e.pg.SuperURL(ledgerDB), "-brokers", strings.Join(e.kafka.Brokers(), ","), "-topics", shopTopic}, more...)
}

func (e *effect) start(program string, env []string, args ...string) *child.Process {
	e.t.Helper()
	proc, err := child.Start(child.Spec{
		Path: program, Args: args, Env: env, Dir: e.dir, LogFile: filepath.Join(e.dir, filepath.Base(program)+".log"), DeathSignal: syscall.SIGKILL,
	})
	must(e.t, err)
	e.t.Cleanup(func() { _ = proc.Kill() })
	return proc
}

func (e *effect) startDaemon() { e.daemon = e.start(daemonProgram, e.env, "run") }

func (e *effect) startLedger() *child.Process {
	return e.start(ledgerProgram, os.Environ(), e.ledgerArgs()...)
}

func (e *effect) showLogs() {
	if !e.t.Failed() {
		return
	}
	for _, program := range []string{daemonProgram, ledgerProgram} {
		e.t.Logf("the end of the log of %s:\n%s", filepath.Base(program), child.Tail(filepath.Join(e.dir, filepath.Base(program)+".log")))
	}
}

// openShop starts four writers.
func (e *effect) openShop() {
	writer, err := outbox.New(outbox.Config{})
	must(e.t, err)
	for range 4 {
		e.shop.Go(func() {
			for ctx := context.Background(); ; {
				err := e.sell(ctx, writer)
				select {
				case <-e.closing:
					return
				default:
				}
				if err != nil {
					time.Sleep(20 * time.Millisecond) // Postgres is away
				}
			}
		})
	}
	e.t.Cleanup(e.closeShop)
}

func (e *effect) closeShop() {
	select {
	case <-e.closing:
	default:
		close(e.closing)
	}
	e.shop.Wait()
}

type placed struct {
	Order string `json:"order"`
	Cents int64  `json:"cents"`
}

var orderPlaced = outbox.Define[placed](orderKind, "OrderPlaced")

// sell sells on one connection until it breaks or the shop closes. Whether a COMMIT without an answer took effect is
// of no interest: the order and its event are in one transaction.
func (e *effect) sell(ctx context.Context, writer *outbox.Writer) error {
	conn, err := pgx.Connect(ctx, e.pg.SuperURL(shopDB))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for {
		select {
		case <-e.closing:
			return nil
		case <-time.After(rand.N(10 * time.Millisecond)):
		}
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			order := placed{Order: outbox.NewID().String(), Cents: 1 + rand.Int64N(10_000)}
			if _, err := tx.Exec(ctx, `INSERT INTO orders (id, cents) VALUES ($1, $2)`, order.Order, order.Cents); err != nil {
				return err
			}
			event, err := orderPlaced.Event(fmt.Sprint("customer-", rand.IntN(100)), order)
			if err != nil {
				return err
			}
			return pgxoutbox.Emit(ctx, writer, tx, event)
		})
		if err != nil {
			return err
		}
	}
}

func (e *effect) killDaemon() {
	must(e.t, e.daemon.Kill())
	e.startDaemon()
}

func (e *effect) killLedger() {
	i := rand.IntN(len(e.ledgers))
	must(e.t, e.ledgers[i].Kill())
	e.ledgers[i] = e.startLedger()
}

func (e *effect) killKafka() {
	must(e.t, e.kafka.Kill())
	must(e.t, e.kafka.StartAgain(testContext(e.t)))
}

func (e *effect) crashPostgres() {
	_, err := e.pg.Stop(testContext(e.t), pgtest.Immediate)
	must(e.t, err)
	must(e.t, e.pg.StartAgain(testContext(e.t)))
}

// rebalance ends a ledger in order, and another one takes its place: twice the partitions change hands.
func (e *effect) rebalance() {
	i := rand.IntN(len(e.ledgers))
	must(e.t, daemon.Stop(testContext(e.t), e.ledgers[i]))
	e.ledgers[i] = e.startLedger()
}

// await waits until a condition holds. Processes that end by themselves fail the test.
func (e *effect) await(what string, holds func(context.Context) (bool, error)) {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	var why error
	for {
		for _, p := range append(e.ledgers[:], e.daemon) {
			if p != nil && p.Exited() {
				e.t.Fatalf("while waiting for %s: process %d has ended by itself: %v", what, p.Pid(), p.Err())
			}
		}
		ok, err := holds(ctx)
		if ok {
			return
		}
		if ctx.Err() != nil {
			e.t.Fatalf("waited in vain for %s (%v)", what, why)
		}
		why = err
		time.Sleep(20 * time.Millisecond)
	}
}

// hasNewEntries returns a condition: the ledger has more entries than at the condition's first look.
func (e *effect) hasNewEntries() func(context.Context) (bool, error) {
	first := -1
	return func(ctx context.Context) (bool, error) {
		n, err := e.number(ctx, ledgerDB, `SELECT count(*) FROM entries`)
		if err != nil {
			return false, err
		}
		if first < 0 {
			first = n
		}
		return n > first, nil
	}
}

func (e *effect) number(ctx context.Context, database, query string) (n int, err error) {
	conn, err := pgx.Connect(ctx, e.pg.SuperURL(database))
	if err != nil {
		return 0, err
	}
	defer conn.Close(ctx)
	err = conn.QueryRow(ctx, query).Scan(&n)
	return n, err
}

// awaitNumber waits until a query of the ledger's database returns want or more.
func (e *effect) awaitNumber(what string, want int, query string) {
	e.t.Helper()
	had, since := 0, time.Now()
	e.await(fmt.Sprintf("%d %s", want, what), func(ctx context.Context) (bool, error) {
		n, err := e.number(ctx, ledgerDB, query)
		switch {
		case err != nil:
			return false, err
		case n > had:
			had, since = n, time.Now()
		case n < want && !isProving() && time.Since(since) > 15*time.Second:
			// kfake keeps a member that ended during a rebalance, and its partitions, until the next one. Kafka does not.
			e.t.Logf("no progress at %d of %d %s: the group is rebalanced", n, want, what)
			e.rebalance()
			since = time.Now()
		}
		return n >= want, fmt.Errorf("%d", n)
	})
}

// settle closes the shop, waits until the ledgers have handled every record, and compares orders and entries.
func (e *effect) settle() {
	e.closeShop()
	ordered := e.amounts(shopDB, `SELECT id::text, cents FROM orders`)
	e.awaitNumber("orders that are booked", len(ordered), `SELECT count(DISTINCT order_id) FROM entries`)
	must(e.t, daemon.Stop(testContext(e.t), e.daemon)) // then no record can follow
	e.daemon = nil
	records, err := kafkatest.ReadAll(testContext(e.t), e.kafka.Brokers(), shopTopic)
	must(e.t, err)
	e.awaitNumber("records that are handled", len(records), `SELECT coalesce(sum(next_offset), 0) FROM inbox_marks`)
	for _, l := range e.ledgers {
		if err := daemon.Stop(testContext(e.t), l); err != nil {
			e.t.Errorf("stop a ledger: %v", err)
		}
	}
	booked := e.amounts(ledgerDB, `SELECT order_id::text, cents FROM entries`)
	if err := compareAmounts(ordered, booked); err != nil {
		e.t.Error(err)
	}
	marks, err := e.number(testContext(e.t), ledgerDB, `SELECT count(*) FROM inbox_marks`)
	must(e.t, err)
	if marks > 6 {
		e.t.Errorf("there are %d marks, for 6 partitions", marks)
	}
	e.t.Logf("%d orders, %d records, %d marks", len(ordered), len(records), marks)
}

type amount struct {
	order string
	cents int64
}

func (e *effect) amounts(database, query string) []amount {
	e.t.Helper()
	ctx := testContext(e.t)
	conn, err := pgx.Connect(ctx, e.pg.SuperURL(database))
	must(e.t, err)
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, query)
	must(e.t, err)
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (a amount, err error) {
		err = row.Scan(&a.order, &a.cents)
		return a, err
	})
	must(e.t, err)
	return all
}

// compareAmounts returns an error unless each order is booked once, with its amount.
func compareAmounts(ordered, booked []amount) error {
	times := map[amount]int{}
	for _, a := range booked {
		times[a]++
	}
	missing, twice := 0, 0
	for _, a := range ordered {
		switch times[a] {
		case 0:
			missing++
		case 1:
		default:
			twice++
		}
		delete(times, a)
	}
	if missing+twice+len(times) > 0 {
		return fmt.Errorf("of %d orders %d are not booked, %d more than once; %d entries have no order", len(ordered), missing, twice, len(times))
	}
	return nil
}
