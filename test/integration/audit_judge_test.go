package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// missingKeys audits, and returns the keys of the missing rows, and the summary.
func (o *outbox) missingKeys(env []string) (keys []string, sum auditLine) {
	o.t.Helper()
	findings, sum := o.audit(env, 1)
	for _, f := range findings {
		if f.Kind == "missing" {
			keys = append(keys, f.Key)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys), sum
}

// A topic was quiet for longer than its retention, so that it is empty. The rows of the last week are judged, and
// only older ones are not.
func TestAuditIdleTopic(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{types: []string{"order", "payment"}, partitions: 1})
	env := o.deduplicating(fence)
	r := o.startStreaming(env...)
	o.insert("payment", "old", 1, 3)
	o.insert("order", "k", 1, 3)
	o.awaitArrived(patience)
	r.term()
	o.deleteRecords(o.topic("payment"), 1) // as the retention does
	o.exec(`UPDATE outbox SET created_at = now() - interval '9 days' WHERE aggregate_type = 'payment'`)
	if _, sum := o.audit(env, 0); !sum.Summary.Clean || sum.Summary.Unjudged != 3 {
		t.Errorf("rows older than the retention: %+v", sum.Summary)
	}
	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
	o.insert("payment", "new", 4, 5)
	o.insert("payment", "two-days", 9, 1)
	o.exec(`UPDATE outbox SET created_at = now() - interval '2 days' WHERE n = 9`)
	keys, sum := o.missingKeys(env)
	if s := sum.Summary; !slices.Equal(keys, []string{"new", "two-days"}) || s.Findings["missing"] != 6 || s.Unjudged != 3 || s.Young != 0 {
		t.Errorf("missing %v: %+v", keys, s)
	}
	says(t, strings.Join(sum.Summary.Notes, "\n"), "keeps those of 6 rows by its retention")
}

// A row that Kafka should have, by the retention of its topic, and that cannot be judged, is never nothing.
func TestAuditIsNotCleanWithUnjudgedRows(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{partitions: 1, configs: map[string]string{"retention.bytes": "1000000"}})
	env := o.deduplicating(fence)
	o.startStreaming(env...)
	o.insert("order", "a", 1, 3)
	o.awaitArrived(patience)
	o.deleteRecords(o.topic("order"), 1)
	o.insert("order", "b", 4, 3)
	o.awaitRecords(3)
	o.awaitConfirmed(o.walFlushed(), patience)
	_, sum := o.audit(env, 1)
	if s := sum.Summary; s.Clean || s.Unjudged != 3 || s.Young != 3 || s.Delivered != 3 || len(s.Undecided) != 1 ||
		s.Undecided[0].Rows != 3 || s.Undecided[0].Topic != o.topic("order") || s.Undecided[0].First == nil {
		t.Errorf("%+v", s)
	}
	out, notes, code := o.runBinary(env, "audit")
	if code != 1 || !strings.Contains(out, "not judged: 3 rows of public.outbox, topic "+o.topic("order")+", created from 2") ||
		!strings.Contains(out, "NOT JUDGED: Kafka should have records of 3 rows") {
		t.Errorf("exit code %d:\n%s%s", code, out, notes)
	}
}

// Nothing was compacted yet, or no record has the key: the row is missing.
func TestAuditCompactedTopic(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{partitions: 1, configs: map[string]string{"cleanup.policy": "compact"}})
	env := o.deduplicating(fence)
	o.deliver(env, "order", "a", 1, 3)
	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
	o.insert("order", "new-key", 1, 5)
	o.insert("order", "a", 4, 1)
	keys, sum := o.missingKeys(env)
	if s := sum.Summary; !slices.Equal(keys, []string{"a", "new-key"}) || s.Findings["missing"] != 6 || s.Unjudged != 0 {
		t.Errorf("missing %v: %+v", keys, s)
	}
}

// Kafka has compacted a topic whose settings may not be read: what it has overwritten is not missing, and what it
// cannot have is.
func TestAuditCompactedUnknown(t *testing.T) {
	t.Parallel()
	needRealKafka(t)
	a := newAuthority(t)
	k := kafkatest.RealForTest(t, kafkatest.RealOptions{
		QuickStart: true, Guarded: &kafkatest.Guarded{Authority: a, Plain: map[string]string{"relay": kafkaPassword}, Reauthenticate: 60000},
		Settings: map[string]string{"log.cleaner.enable": "true", "log.cleaner.backoff.ms": "300", "log.cleaner.threads": "1"},
	})
	g := newGuarded(t, k, a, "relay")
	g.file("password", []byte(kafkaPassword))
	must(t, kafkatest.DeleteTopic(testContext(t), k.Brokers(), g.topic("order")))
	g.makeTopic("order", 1, map[string]string{
		"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "500", "max.compaction.lag.ms": "1000", "min.compaction.lag.ms": "0",
	})
	must(t, kafkatest.Allow(testContext(t), k.Brokers(), "relay", g.topic("order"), kmsg.ACLOperationWrite, kmsg.ACLOperationRead, kmsg.ACLOperationDescribe))
	must(t, kafkatest.Allow(testContext(t), k.Brokers(), "relay", "outbox.dead_letter", kmsg.ACLOperationWrite, kmsg.ACLOperationRead, kmsg.ACLOperationDescribe))
	env := g.withPassword("PLAIN", atLeastOnce, stopAtPoison)
	r := g.startStreaming(env...)
	for i := range 5 {
		g.insert("order", "k", i+1, 1)
	}
	n := 0
	await(t, 2*patience, "compaction", func() error {
		n++
		g.insert("order", fmt.Sprint("other", n), 1, 1) // rolls the segment
		kept := 0
		for _, rec := range g.readAll() {
			if string(rec.Key) == "k" {
				kept++
			}
		}
		return waitFor(kept == 1)
	})
	g.awaitConfirmed(g.walFlushed(), patience)
	r.term()
	_, sum := g.audit(env, 1)
	if s := sum.Summary; s.Unjudged != 4 || s.Findings["missing"] != 0 || s.Clean {
		t.Errorf("%+v", s)
	}
}

// The ids of another service that polls, from a sequence of its own: each row is missing, whatever has its id.
func TestAuditForeignIDs(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	o.numbered()
	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
	o.insert("order", "ours", 1, 20)
	var records []*kgo.Record
	for i := range 20 {
		records = append(records, &kgo.Record{
			Topic: o.topic("order"), Key: []byte("theirs"), Value: []byte(`{}`), Headers: []kgo.RecordHeader{{Key: "id", Value: fmt.Append(nil, i+1)}},
		})
	}
	o.produce(records...)
	if _, sum := o.missingKeys(o.deduplicating(fence)); sum.Summary.Findings["missing"] != 20 || sum.Summary.Delivered != 0 {
		t.Errorf("%+v", sum.Summary)
	}
}

// numbered gives events ids from a sequence.
func (o *outbox) numbered() {
	o.exec(`ALTER TABLE outbox DROP COLUMN id`)
	o.exec(`ALTER TABLE outbox ADD COLUMN id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY`)
}

// Ids are used again after TRUNCATE … RESTART IDENTITY, and the slot is lost: events of other keys are missing, and
// those of the same key are not judged, because the rows may have been updated.
func TestAuditIDsUsedAgain(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	o.numbered()
	env := o.deduplicating(fence)
	o.deliver(env, "order", "k", 1, 6)
	o.exec(`TRUNCATE outbox RESTART IDENTITY`)
	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
	o.insert("order", "k", 101, 3)
	o.insert("order", "x", 201, 3)
	keys, sum := o.missingKeys(env)
	if s := sum.Summary; !slices.Equal(keys, []string{"x"}) || s.Findings["missing"] != 3 || s.Findings["phantom"] != 3 || s.Unjudged != 3 || s.Young != 3 {
		t.Errorf("missing %v: %+v", keys, s)
	}
}

// Two databases of one server share a topic, and have the same ids from sequences.
func TestAuditTwoDatabases(t *testing.T) {
	t.Parallel()
	a := newOutbox(t, options{})
	b := newOutbox(t, options{pg: a.pg})
	for _, o := range []*outbox{a, b} {
		o.numbered()
	}
	ra := a.startStreaming(a.deduplicating(fence)...)
	a.insert("order", "a-key", 1, 20)
	a.awaitArrived(patience)
	ra.term()
	b.exec(`SELECT pg_drop_replication_slot($1)`, b.name)
	b.insert("order", "b-key", 1, 20)
	env := append(b.deduplicating(fence), "OUTBOXCDC_ROUTE_TOPIC="+a.name+".{aggregate_type}")
	keys, sum := b.missingKeys(env)
	if s := sum.Summary; !slices.Equal(keys, []string{"b-key"}) || s.Findings["missing"] != 20 {
		t.Errorf("missing %v: %+v", keys, s)
	}
}

// A record that the broker refuses as too large, and that the policy skips, is not missing for ever.
func TestAuditSkippedByBroker(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{configs: map[string]string{"max.message.bytes": "3000"}})
	env := append(o.deduplicating(fence), "OUTBOXCDC_POISON_POLICY=skip", "OUTBOXCDC_KAFKA_COMPRESSION=none")
	o.startStreaming(env...)
	o.insert("order", "k", 1, 1)
	o.awaitArrived(patience)
	o.exec(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, n)
		SELECT 'order', 'k', 'e', jsonb_build_object('n', 2, 'x', (SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 300))), 2`)
	o.insert("order", "k", 3, 1)
	o.awaitRecords(2)
	o.awaitConfirmed(o.walFlushed(), patience)
	if _, sum := o.audit(env, 0); sum.Summary.Skipped != 1 || sum.Summary.Delivered != 2 {
		t.Errorf("%+v", sum.Summary)
	}
	env[len(env)-2] = "OUTBOXCDC_POISON_POLICY=stop"
	if _, sum := o.audit(env, 1); sum.Summary.Findings["missing"] != 1 {
		t.Errorf("with the policy stop: %+v", sum.Summary)
	}
}

// The dead letter of a poison row was deleted by the retention of the dead-letter topic: the row is not judged.
func TestAuditOldDeadLetter(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	o.makeTopic("dead", 1, nil)
	env := append(o.deduplicating(fence), "OUTBOXCDC_POISON_POLICY=dead_letter", "OUTBOXCDC_POISON_TOPIC="+o.topic("dead"))
	o.startStreaming(env...)
	o.insert("order", "k", 1, 1)
	o.exec(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, n) VALUES ('bad topic!', 'k', 'e', '{"n": 2}', 2)`)
	o.awaitRecords(1)
	o.awaitConfirmed(o.walFlushed(), patience)
	if _, sum := o.audit(env, 0); sum.Summary.DeadLettered != 1 {
		t.Errorf("%+v", sum.Summary)
	}
	o.deleteRecords(o.topic("dead"), 1)
	o.exec(`UPDATE outbox SET created_at = now() - interval '30 days'`)
	_, sum := o.audit(env, 0)
	if s := sum.Summary; s.Unjudged != 1 || s.Findings["missing"] != 0 || !strings.Contains(s.Undecided[0].Why, "may have deleted its dead letter") {
		t.Errorf("%+v", s)
	}
}

// The envelope has the time of the commit, which a row does not have.
func TestAuditEnvelope(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	env := append(o.deduplicating(fence), "OUTBOXCDC_ROUTE_FORMAT=envelope")
	o.startStreaming(env...)
	o.insert("order", "k", 1, 1)
	o.awaitRecords(1)
	o.awaitConfirmed(o.walFlushed(), patience)
	o.exec(`UPDATE outbox SET created_at = created_at - interval '1 minute'`)
	if _, sum := o.audit(env, 0, "--deep"); sum.Summary.Delivered != 1 {
		t.Errorf("%+v", sum.Summary)
	}
}
