package effect

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/outboxcdc/outboxcdc/inbox"
	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/daemon"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// F135: events are sent again while the shop is open: by replay, by a second daemon with a slot of its own, after the
// key and so the partition of each event has changed, and by recover and backfill after Kafka has lost the topic. In
// the end the ledger has each order once.
func TestEffectRepeated(t *testing.T) {
	t.Parallel()
	e := newEffect(t, "deduplicated")
	steps := []fault{
		{"replay", (*effect).replay},
		{"two slots", (*effect).runSecondSlot},
		{"routing changed", (*effect).changeRouting},
		{"topic lost, recover", func(e *effect) {
			e.loseTopic(func() { e.mustRun(daemonProgram, e.env, "recover", "--yes") })
		}},
		{"topic lost, backfill to a new slot", func(e *effect) {
			e.loseTopic(func() {
				e.exec(shopDB, `SELECT pg_drop_replication_slot('outboxcdc')`)
				e.env = append(e.env, "OUTBOXCDC_POSTGRES_SLOT=new")
				e.mustRun(daemonProgram, e.env, "backfill", "--yes")
			})
		}},
	}
	rand.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
	for _, step := range steps {
		e.await("new entries", e.hasNewEntries())
		t.Log(step.name)
		step.do(e)
	}
	e.settle()
}

func (e *effect) exec(database, sql string) {
	e.t.Helper()
	must(e.t, e.pg.Exec(testContext(e.t), database, sql))
}

// replay sends all orders again.
func (e *effect) replay() {
	tomorrow := time.Now().Add(24 * time.Hour).Format(time.RFC3339)
	e.mustRun(daemonProgram, e.env, "replay", "--since", "1d", "--until", tomorrow, "--yes")
}

// runSecondSlot lets a second daemon deliver the same orders for a time.
func (e *effect) runSecondSlot() {
	env := append(slices.Clone(e.env), "OUTBOXCDC_POSTGRES_SLOT=second")
	e.mustRun(daemonProgram, env, "setup", "apply")
	second := e.start(daemonProgram, env, "run")
	from := e.mustNumber(shopDB, `SELECT count(*) FROM orders`)
	e.await("more orders", func(ctx context.Context) (bool, error) {
		n, err := e.number(ctx, shopDB, `SELECT count(*) FROM orders`)
		return n > from, err
	})
	e.exec(shopDB, `CREATE TABLE place AS SELECT pg_current_wal_lsn() AS lsn`)
	e.await("the second daemon", func(ctx context.Context) (bool, error) {
		n, err := e.number(ctx, shopDB, `SELECT count(*) FROM pg_replication_slots, place WHERE slot_name = 'second' AND confirmed_flush_lsn >= lsn`)
		return n == 1, err
	})
	must(e.t, daemon.Stop(testContext(e.t), second))
	e.exec(shopDB, `SELECT pg_drop_replication_slot('second')`)
}

// changeRouting kills the daemon and starts it with other keys.
func (e *effect) changeRouting() {
	must(e.t, e.daemon.Kill())
	e.env = append(e.env, "OUTBOXCDC_ROUTE_KEY=another {aggregate_id}")
	e.startDaemon()
}

// loseTopic deletes the topic. bringBack sends the events again, and the ledger does what its error says.
func (e *effect) loseTopic(bringBack func()) {
	ctx := testContext(e.t)
	stop := func(p *child.Process) {
		// One that has only just begun does not handle the signal yet.
		if err := daemon.Stop(ctx, p); err != nil && daemon.ExitCode(p) != 128+int(syscall.SIGTERM) {
			e.t.Fatal(err)
		}
	}
	stop(e.daemon)
	e.daemon = nil
	for i, l := range e.ledgers {
		stop(l)
		e.ledgers[i] = nil
	}
	must(e.t, kafkatest.DeleteTopic(ctx, e.kafka.Brokers(), shopTopic))
	must(e.t, kafkatest.CreateTopic(ctx, e.kafka.Brokers(), shopTopic, 6, nil))
	bringBack()
	log := filepath.Join(e.dir, filepath.Base(ledgerProgram)+".log")
	before, err := os.ReadFile(log)
	must(e.t, err)
	ledger := e.startLedger()
	must(e.t, ledger.Wait(ctx))
	after, err := os.ReadFile(log)
	must(e.t, err)
	if said := string(after[len(before):]); daemon.ExitCode(ledger) != 1 || !strings.Contains(said, "the topic was recreated") {
		e.t.Errorf("the ledger has ended with %d, and does not say that the topic was recreated:\n%s", daemon.ExitCode(ledger), said)
	}
	config, err := pgx.ParseConfig(e.pg.SuperURL(ledgerDB))
	must(e.t, err)
	db := stdlib.OpenDB(*config)
	defer db.Close()
	must(e.t, (&inbox.Store{}).ForgetOffsets(ctx, db, "ledger", shopTopic))
	for i := range e.ledgers {
		e.ledgers[i] = e.startLedger()
	}
	e.startDaemon()
}

func (e *effect) mustNumber(database, query string) int {
	e.t.Helper()
	n, err := e.number(testContext(e.t), database, query)
	must(e.t, err)
	return n
}
