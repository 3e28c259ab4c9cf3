package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/test/check"
	"github.com/outboxcdc/outboxcdc/test/debezium"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// skipUnlessGolden is for tests that need a real Debezium. A skip is no gap: `make golden` runs them.
func skipUnlessGolden(t *testing.T) {
	t.Helper()
	if os.Getenv("OUTBOXCDC_GOLDEN") == "" {
		t.Skip("only `make golden` runs this test (OUTBOXCDC_GOLDEN=1): it needs a real Debezium")
	}
	needRealKafka(t)
	must(t, debezium.Available())
}

// A real Debezium delivers under load and is stopped, in order or by kill -9. Our daemon, configured by what `config
// from-debezium` prints, takes over its slot: nothing is missing, the order holds, and only events that the slot had
// not confirmed are repeated. For comparison Debezium itself starts again in the same situation, on a copy of the
// slot and of its offsets and into topics of its own, so that both can be counted. After a stop its slot is one
// transaction before its stored offset: of that one transaction, and of no other, ours may repeat what Debezium
// itself would not.
func TestTakeOverFromDebezium(t *testing.T) {
	skipUnlessGolden(t)
	for _, c := range []struct {
		name  string
		kill  bool
		flush time.Duration // offset.flush.interval.ms
	}{
		{"stopped", false, time.Minute}, // Connect's default
		{"stopped_1s", false, time.Second},
		{"killed", true, time.Minute},
		{"killed_1s", true, time.Second},
	} {
		t.Run(c.name, func(t *testing.T) { takeOverSlot(t, c.kill, c.flush) })
	}
}

func takeOverSlot(t *testing.T, kill bool, flush time.Duration) {
	rnd := newRand(t)
	types := []string{"order", "payment"}
	o := newOutbox(t, options{types: types})
	o.exec(addTx)
	theirs := o.debezium()
	dir := t.TempDir()
	worker := map[string]string{"offset.flush.interval.ms": fmt.Sprint(flush.Milliseconds())}
	first := startDebezium(t, debezium.Options{Dir: dir, Brokers: o.kafka.Brokers(), Worker: worker, Connector: theirs})
	w := o.write(load{rand: rnd, types: types})
	await(t, patience, "Debezium to deliver", func() error { return waitFor(o.follow.records() > 1000) })
	if flush < time.Minute {
		from := o.confirmed()
		await(t, patience, "Debezium to confirm", func() error { return waitFor(o.confirmed() > from) })
	}
	w.awaitCommits(500 + rnd.Int64N(500))
	if kill {
		must(t, first.Proc.Kill())
	} else {
		must(t, first.Stop(testContext(t), debezium.Name))
	}
	o.awaitSlotFree()

	// A copy of the situation.
	copied := o.name + "_again"
	o.exec(`SELECT pg_copy_logical_replication_slot($1, $2)`, o.name, copied)
	t.Cleanup(func() { o.dropSlot(copied) })
	again := t.TempDir()
	unconfirmed := 0
	if offsets, err := os.ReadFile(filepath.Join(dir, "offsets")); err == nil {
		must(t, os.WriteFile(filepath.Join(again, "offsets"), offsets, 0o644))
		unconfirmed = o.storedAndNotConfirmed(copied, offsets)
	}
	delivered := countIDs(o.readAll())
	w.awaitCommits(200)

	r, _ := o.startConverted(theirs)
	r.awaitState("streaming", patience)
	w.awaitCommits(200)
	w.stop()
	o.awaitArrived(patience)
	o.awaitConfirmed(o.walFlushed(), patience)
	r.term()
	truth := o.truth()
	report := o.judgeTakeOver(truth)

	itself, missing := o.restartDebezium(t, theirs, worker, again, copied, truth, delivered)
	more := o.countTransactions(repeatedIDs(o.readAll()), itself)
	t.Logf("TAKEOVER %s: %d rows, %d delivered before; outboxcdc: 0 missing, %d repeats; Debezium itself: %d missing, %d repeats; repeats of outboxcdc alone: of %d transactions, %d stored and not confirmed",
		t.Name(), len(truth), len(delivered), report.Repeats, missing, len(itself), more, unconfirmed)
	if more > 1 && !kill { // after a kill Debezium 3.7.0 repeated up to 160 transactions less than its slot; the cause is not known
		t.Errorf("events of %d transactions are repeated that Debezium itself would not repeat, more than the one that its slot lags", more)
	}
}

// storedAndNotConfirmed counts the transactions up to Debezium's stored offset that the slot has not confirmed.
func (o *outbox) storedAndNotConfirmed(slot string, offsets []byte) (n int) {
	o.t.Helper()
	stored := uint64(0)
	for _, m := range regexp.MustCompile(`"lsn(?:_proc|_commit)?":(\d+)`).FindAllSubmatch(offsets, -1) {
		lsn, err := strconv.ParseUint(string(m[1]), 10, 64)
		must(o.t, err)
		stored = max(stored, lsn)
	}
	if stored == 0 {
		return 0
	}
	must(o.t, o.admin.scan(fmt.Sprintf(`SELECT count(DISTINCT xid::text) FROM pg_logical_slot_peek_binary_changes('%s', '%s', NULL, 'proto_version', '1', 'publication_names', 'outboxcdc')
		WHERE get_byte(data, 0) = ascii('I') AND lsn <= '%[2]s'`, slot, pglogrepl.LSN(stored)), &n))
	return n
}

// There and back: outboxcdc, Debezium without offsets, outboxcdc, Debezium with its old offsets, which are far before
// the slot, each on the same slot and after a stop in order, with a writer all the time. Nothing is missing at the end.
// Only the daemon that takes over from Debezium repeats anything: the one transaction that Debezium's slot lags.
func TestThereAndBack(t *testing.T) {
	skipUnlessGolden(t)
	types := []string{"order", "payment"}
	o := newOutbox(t, options{types: types})
	o.exec(addTx)
	connector := o.debezium()
	dir := t.TempDir()
	w := o.write(load{rand: newRand(t), types: types})
	had := map[string]int{}
	for turn, who := range []string{"outboxcdc", "Debezium without offsets", "outboxcdc", "Debezium with its old offsets"} {
		delivered := o.follow.records()
		more := func() error { return waitFor(o.follow.records() > delivered+500) }
		if turn%2 == 0 {
			r, _ := o.startConverted(connector)
			await(t, patience, who, more)
			r.term()
		} else {
			c := startDebezium(t, debezium.Options{
				Dir: dir, Brokers: o.kafka.Brokers(), Connector: connector, Worker: map[string]string{"offset.flush.interval.ms": "1000"},
			})
			await(t, patience, who, more)
			if turn == 3 { // the last one has to deliver everything
				w.stop()
				o.awaitArrived(patience)
			}
			must(t, c.Stop(testContext(t), debezium.Name))
			o.awaitSlotFree()
		}
		now := repeatedIDs(o.readAll())
		again := o.countTransactions(now, had)
		t.Logf("TURN %d, %s: %d records, %d repeats more, of %d transactions", turn+1, who, o.follow.records()-delivered, len(now)-len(had), again)
		if most := map[int]int{2: 1}[turn]; again > most {
			t.Errorf("turn %d, %s: repeats of %d transactions, want at most %d", turn+1, who, again, most)
		}
		had = now
	}
	o.judgeTakeOver(o.truth())
}

// addTx gives every row the transaction that has written it, also in a subtransaction.
const addTx = `ALTER TABLE outbox ADD COLUMN tx bigint DEFAULT pg_current_xact_id()::text::bigint`

// repeatedIDs returns the ids with more than one record.
func repeatedIDs(records []kafkatest.Record) map[string]int {
	all := countIDs(records)
	maps.DeleteFunc(all, func(_ string, n int) bool { return n < 2 })
	return all
}

// countTransactions counts the transactions of which ours has an id that theirs does not have.
func (o *outbox) countTransactions(ours, theirs map[string]int) (n int) {
	o.t.Helper()
	ids := []string{}
	for id := range ours {
		if theirs[id] == 0 {
			ids = append(ids, id)
		}
	}
	must(o.t, o.admin.do(func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT count(DISTINCT tx) FROM outbox WHERE id::text = ANY ($1)", ids).Scan(&n)
	}))
	return n
}

// debezium returns the configuration of a connector for this outbox.
func (o *outbox) debezium() map[string]string {
	o.t.Helper()
	all, err := debezium.Postgres(o.admin.url)
	must(o.t, err)
	maps.Copy(all, map[string]string{
		"topic.prefix": o.name, "table.include.list": "public.outbox", "slot.name": o.name, "publication.name": "outboxcdc",
		"publication.autocreate.mode": "disabled", "snapshot.mode": "no_data", "extended.headers.enabled": "false",
		"transforms": "outbox", "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
		"transforms.outbox.table.field.event.key": "aggregate_id", "transforms.outbox.route.by.field": "aggregate_type",
		"transforms.outbox.route.topic.replacement":           o.name + ".${routedByValue}",
		"transforms.outbox.table.fields.additional.placement": "event_type:header:type",
	})
	return all
}

func startDebezium(t *testing.T, opt debezium.Options) *debezium.Connect {
	t.Helper()
	opt.QuickStart = true
	c, err := debezium.Start(testContext(t), opt)
	must(t, err)
	t.Cleanup(func() {
		_ = c.Proc.Kill()
		if t.Failed() {
			t.Logf("Debezium's log:\n%s", tail(c.Log, 40))
		}
	})
	must(t, c.Await(testContext(t), debezium.Name))
	return c
}

// judgeTakeOver: nothing is missing, nothing is a phantom, the order holds, and repeats are identical, from either
// sender.
func (o *outbox) judgeTakeOver(truth []row) check.Report {
	o.t.Helper()
	var rows []check.Row
	for _, r := range truth {
		rows = append(rows, r.Row)
	}
	var records []check.Record
	for _, r := range o.readAll() {
		records = append(records, r.Check())
	}
	report := check.Check(rows, records)
	if !report.OK() {
		o.t.Error(report.String())
	}
	return report
}

// restartDebezium starts Debezium on the copies and counts the events that it repeats, and those that it misses.
func (o *outbox) restartDebezium(t *testing.T, connector, worker map[string]string, dir, slot string, truth []row, delivered map[string]int) (repeats map[string]int, missing int) {
	t.Helper()
	connector = maps.Clone(connector)
	connector["slot.name"] = slot
	connector["transforms.outbox.route.topic.replacement"] = "again." + o.name + ".${routedByValue}"
	var topics []string
	for _, topic := range o.follow.topics {
		topics = append(topics, "again."+topic)
		must(t, kafkatest.CreateTopic(testContext(t), o.kafka.Brokers(), "again."+topic, 3, nil))
		t.Cleanup(func() { _ = kafkatest.DeleteTopic(testContext(t), o.kafka.Brokers(), "again."+topic) })
	}
	c := startDebezium(t, debezium.Options{Dir: dir, Brokers: o.kafka.Brokers(), Worker: worker, Connector: connector})
	defer func() { _ = c.Proc.Kill() }()
	// It may lose rows (dbz#1554): it is done when no record has arrived for a while.
	var came map[string]int
	quiet := time.Now()
	for all := -1; time.Since(quiet) < 10*time.Second; time.Sleep(200 * time.Millisecond) {
		records, err := kafkatest.ReadAll(testContext(t), o.kafka.Brokers(), topics...)
		must(t, err)
		if len(records) != all {
			all, quiet = len(records), time.Now()
		}
		came = countIDs(records)
	}
	repeats = map[string]int{}
	for id, n := range came {
		if delivered[id] > 0 {
			repeats[id] = n
		}
	}
	for _, r := range truth {
		if delivered[r.ID] == 0 && came[r.ID] == 0 {
			missing++
		}
	}
	return repeats, missing
}

// dropSlot drops another slot than the outbox's own.
func (o *outbox) dropSlot(name string) {
	err := poll(patience, func() error {
		return o.pg.Exec(context.Background(), "postgres", "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '"+name+"'")
	})
	if err != nil {
		o.t.Error(errors.Join(errors.New("drop the slot "+name), err))
	}
}

func countIDs(records []kafkatest.Record) map[string]int {
	seen := map[string]int{}
	for _, r := range records {
		id, _ := headerOf(r, "id")
		seen[strings.TrimSpace(id)]++
	}
	return seen
}
