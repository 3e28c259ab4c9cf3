package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// positionRecord is a position record, as far as tests read it.
type positionRecord struct {
	Acked     string  `json:"acked"`
	Confirm   string  `json:"confirm"`
	Clean     bool    `json:"clean"`
	Producers []int64 `json:"producers"`
	Topics    []string
	At        time.Time
}

func (o *outbox) readRecords(topics ...string) []kafkatest.Record {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	records, err := kafkatest.ReadAll(ctx, o.kafka.Brokers(), topics...)
	must(o.t, err)
	return records
}

func (o *outbox) positionTopic() string { return o.name + ".positions" }

// positions returns all position records of the outbox's slot.
func (o *outbox) positions() (all []positionRecord) {
	o.t.Helper()
	for _, rec := range o.readRecords(o.positionTopic()) {
		var s positionRecord
		if string(rec.Key) == o.name && json.Unmarshal(rec.Value, &s) == nil {
			all = append(all, s)
		}
	}
	return all
}

// produce writes records as another producer would.
func (o *outbox) produce(records ...*kgo.Record) {
	o.t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(o.kafka.Brokers()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	must(o.t, err)
	defer c.Close()
	must(o.t, c.ProduceSync(testContext(o.t), records...).FirstErr())
}

// forge replaces all position records of the slot with this one; "": with none.
func (o *outbox) forge(value string) {
	o.t.Helper()
	records := []*kgo.Record{{Topic: o.positionTopic(), Key: []byte(o.name)}}
	if value != "" {
		records = append(records, &kgo.Record{Topic: o.positionTopic(), Key: []byte(o.name), Value: []byte(value)})
	}
	o.produce(records...)
}

// newestRecord returns the text of the newest position record.
func (o *outbox) newestRecord() string {
	o.t.Helper()
	records := slices.DeleteFunc(o.readRecords(o.positionTopic()), func(r kafkatest.Record) bool { return string(r.Key) != o.name })
	if len(records) == 0 { // each session has stored a mark, too
		o.t.Fatal("there is no position record")
	}
	return string(records[len(records)-1].Value)
}

// changeField returns a position record with one field changed.
func changeField(t *testing.T, record, field string, change func(was any) any) string {
	t.Helper()
	var m map[string]any
	d := json.NewDecoder(strings.NewReader(record))
	d.UseNumber()
	must(t, d.Decode(&m))
	m[field] = change(m[field])
	b, err := json.Marshal(m)
	must(t, err)
	return string(b)
}

// F34, F33: the position record does not fit the server, or cannot be read. The daemon stops with a message and
// delivers nothing.
func TestDeduplicatedForgedRecord(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	o.proves("F34 F33", "the position record forged: 16 MiB ahead, of another system, of another timeline, before the slot; unreadable, of a newer version, deleted")
	env := o.deduplicating(fence)
	o.deliver(env, "order", "k", 1, 20)
	good := o.newestRecord()
	ahead := o.walFlushed() + 16<<20
	o.insert("order", "k", 21, 5)
	to := func(v any) func(any) any { return func(any) any { return v } }
	for _, c := range []struct {
		field  string
		change func(any) any
		words  string
	}{
		{"acked", func(was any) any {
			part := strings.Split(was.(string), ":")
			part[3] = strings.ToUpper(pad16(uint64(ahead)))
			return strings.Join(part, ":")
		}, "it is an older copy"},
		{"system_id", to("7000000000000000001"), "give each a topic of its own in delivery.position_topic"},
		{"timeline", to(9), "does not descend from it"},
		{"confirm", to(pglogrepl.LSN(0x100).String()), "it was recreated, advanced, or read by another client"},
	} {
		o.forge(changeField(t, good, c.field, c.change))
		for range 2 { // a supervisor may restart it after 79
			r := o.start(env...)
			r.awaitStop(patience, 79, c.words, "slot "+o.name, "remedy: ", "outboxcdc slot adopt")
		}
	}
	for _, c := range []struct{ record, words string }{
		{"garbage", "cannot be read"},
		{changeField(t, good, "version", to(2)), "if a newer outboxcdc has written it, run that one"},
	} {
		o.forge(c.record)
		o.start(env...).awaitStop(patience, 79, c.words, "remedy: ", "outboxcdc recover")
	}
	is(t, "records", o.follow.records(), 20)
	if got := o.newestRecord(); got != changeField(t, good, "version", to(2)) {
		t.Errorf("an unreadable record was overwritten: %s", got)
	}
	o.forge("")
	r := o.startStreaming(env...)
	o.insert("order", "k", 26, 5)
	o.repeatsAtMost(o.verify(patience), 0, "all delivered events were confirmed")
	if len(r.logged(noRecord)) != 1 {
		t.Error("the log does not say that there is no position record")
	}
	o.outcome("exit 79 at each start, nothing delivered; deleted: logged, and started without a record")
}

// noRecord is logged when a slot has none.
const noRecord = "the slot has no position record, as at its first start; at a later one, events that an earlier session delivered and did not confirm are repeated"

func pad16(n uint64) string {
	text := strconv.FormatUint(n, 16)
	return strings.Repeat("0", 16-len(text)) + text
}

// F35, F40: between two runs the server is replaced: by another cluster with the same host name, and by an older copy
// of its data directory.
func TestDeduplicatedOtherServer(t *testing.T) {
	t.Parallel()
	pg := ownPostgres(t, defaultMajor, nil)
	o := newOutbox(t, options{pg: pg})
	o.proves("F35 F40", "between two runs of a deduplicating daemon: another cluster with the same host name; the data directory replaced by an older copy")
	env := o.deduplicating(fence)
	deliver := func(from, count int) {
		t.Helper()
		o.deliver(env, "order", "k", from, count)
	}
	deliver(1, 20)

	other := sharedPostgres(t, defaultMajor)
	ctx := testContext(t)
	must(t, other.Exec(ctx, "postgres", "CREATE DATABASE "+o.name))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
		defer cancel()
		if err := poll(patience, func() error {
			return other.Exec(ctx, o.name, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '"+o.name+"'")
		}); err != nil {
			t.Error(err)
		}
		if err := other.Exec(ctx, "postgres", "DROP DATABASE "+o.name+" WITH (FORCE)"); err != nil {
			t.Error(err)
		}
	})
	there := "OUTBOXCDC_POSTGRES_URL=" + other.URL(o.name, role, password)
	if out, err := o.command([]string{"OUTBOXCDC_SETUP_URL=" + other.SuperURL(o.name), there}, "setup", "apply"); err != nil {
		t.Fatalf("setup apply: %v\n%s", err, out)
	}
	must(t, other.Exec(ctx, o.name, `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'another', 'added', '{}')`))
	o.start(append(env, there)...).awaitStop(patience, 79, "it was written for system", "remedy: ")

	// The same system, older.
	stop := func() {
		t.Helper()
		_, err := pg.Stop(ctx, "fast")
		must(t, err)
	}
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
	}
	stop()
	run("cp", "-a", pg.DataDir, pg.DataDir+".old")
	must(t, pg.StartAgain(ctx))
	deliver(21, 20)
	o.repeatsAtMost(o.check(), 0, "no fault yet")
	stop()
	run("rm", "-r", pg.DataDir)
	run("mv", pg.DataDir+".old", pg.DataDir)
	must(t, pg.StartAgain(ctx))
	for range 2 {
		o.start(env...).awaitStop(patience, 79, "it is an older copy", "remedy: ", "outboxcdc slot adopt")
	}
	is(t, "records", o.follow.records(), 40)
	// And when the copy's WAL has grown beyond what Kafka has: its new rows must not be confused with the old ones.
	for i := range 60 {
		o.insert("order", fmt.Sprint("new", i%5), i, 1)
	}
	o.exec("SELECT pg_switch_wal()")
	o.exec("CREATE TABLE beyond ()")
	o.start(env...).awaitStop(patience, 79, "was delivered", "remedy: ")
	o.outcome("exit 79 each time, nothing confirmed")
}

// F33, F30: between two runs the slot is advanced, or dropped and recreated. Transactions committed in between will not
// be sent: the next start refuses to continue, however often it is tried.
func TestDeduplicatedSlotMoved(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		fault, what string
		move        []string
	}{
		{"F33", "advanced", []string{`SELECT pg_replication_slot_advance($1, pg_current_wal_flush_lsn())`}},
		{"F30", "dropped and made again", []string{`SELECT pg_drop_replication_slot($1)`, `SELECT pg_create_logical_replication_slot($1, 'pgoutput')`}},
	} {
		t.Run(c.fault, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t, options{})
			o.proves(c.fault, "slot %s while a deduplicating daemon is down, 2 events committed before", c.what)
			env := o.deduplicating(fence)
			o.deliver(env, "order", "k", 1, 20)
			o.insert("order", "k", 21, 2)
			for _, sql := range c.move {
				o.exec(sql, o.name)
			}
			o.insert("order", "k", 23, 5)
			for range 2 {
				o.start(env...).awaitStop(patience, 79, "the slot is at", "advanced", "may be missing in Kafka", "outboxcdc slot adopt")
			}
			is(t, "records", o.follow.records(), 20)
			o.outcome("exit 79 at each start, nothing delivered")
		})
	}
}
