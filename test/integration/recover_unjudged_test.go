package integration

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// A topic was quiet for longer than its retention, so that it is empty. The rows since are missing and are sent. Only
// the older ones are not judged, and an operator decides about them.
func TestRecoverQuietTopic(t *testing.T) {
	for _, mode := range []string{"deduplicated", "at_least_once"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t, options{types: []string{"order", "payment"}, partitions: 1})
			env := o.modes()[mode]
			r := o.startStreaming(env...)
			o.insert("payment", "p", 1, 3)
			o.insert("order", "k", 1, 3)
			o.awaitArrived(patience)
			o.awaitConfirmed(o.walFlushed(), patience)
			r.term()
			o.deleteRecords(o.topic("payment"), 1) // as the retention does
			o.exec(`UPDATE outbox SET created_at = now() - interval '9 days' WHERE aggregate_type = 'payment'`)
			o.insert("payment", "p", 4, 5)
			o.insert("order", "k", 4, 5)
			o.exec(`UPDATE outbox SET created_at = now() - interval '2 days' WHERE aggregate_type = 'payment' AND n = 4`)
			o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
			out := o.recover(env, 1)
			says(t, out, ": 10 rows are missing", "3 rows are not judged", o.topic("payment")+": 3 rows, first ", "nothing was sent", "--unjudged=leave")
			o.start(env...).awaitStop(patience, 79, "outboxcdc recover")
			says(t, o.recover(env, 0, "--unjudged=leave"), "\n10 records sent", ": 0 rows are missing")
			o.startStreaming(env...)
			o.insert("payment", "p", 9, 1)
			o.insert("order", "k", 9, 1)
			o.awaitRecords(6 + 12)
			o.awaitConfirmed(o.walFlushed(), patience)
			if got := o.numbersOf("payment"); !slices.Equal(got, []int{4, 5, 6, 7, 8, 9}) {
				t.Errorf("payments %v, want 4 to 9", got)
			}
			if got := o.numbersOf("order"); !slices.Equal(got, []int{1, 2, 3, 4, 5, 6, 7, 8, 9}) {
				t.Errorf("orders %v, want 1 to 9", got)
			}
			if _, sum := o.audit(env, 0, "--since", "26h"); !sum.Summary.Clean {
				t.Errorf("audit: %+v", sum.Summary)
			}
		})
	}
}

// A compacted topic: a row without a record is missing as long as nothing says that compaction can have deleted it.
func TestRecoverCompactedTopic(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{partitions: 1, configs: map[string]string{"cleanup.policy": "compact"}})
	env := o.deduplicating(fence)
	o.deliver(env, "order", "a", 1, 3)
	o.insert("order", "new-key", 1, 5)
	o.insert("order", "a", 4, 2)
	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
	out := o.recover(env, 0)
	if !strings.Contains(out, "\n7 records sent") || strings.Contains(out, "not judged: it is not known") {
		t.Errorf("recover prints:\n%s", out)
	}
	o.startStreaming(env...)
	o.insert("order", "a", 6, 1)
	o.verify(patience)
}

// A poller that used Kafka transactions was killed. What an aborted or an open transaction has sent, not all
// consumers get: it is asked about (F121).
func TestBackfillAfterTransactions(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{partitions: 1})
	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
	o.insert("order", "k", 1, 6)
	env := append(o.deduplicating(fence), "OUTBOXCDC_OUTBOX_ORDER=n")
	rows := o.truth()
	slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(a.N, b.N) })
	transaction := func(some []row) *kgo.Client {
		c, err := kgo.NewClient(kgo.SeedBrokers(o.kafka.Brokers()...), kgo.TransactionalID(fmt.Sprint(o.name, some[0].N)))
		must(t, err)
		t.Cleanup(c.Close)
		must(t, c.BeginTransaction())
		for _, r := range some {
			must(t, c.ProduceSync(testContext(t), &kgo.Record{Topic: r.Topic, Key: r.Key, Value: r.Value, Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(r.ID)}}}).FirstErr())
		}
		return c
	}
	must(t, transaction(rows[:2]).EndTransaction(testContext(t), kgo.TryCommit))
	must(t, transaction(rows[2:4]).EndTransaction(testContext(t), kgo.TryAbort))
	open := transaction(rows[4:])
	out, notes, code := o.runBinary(env, "backfill", "--yes")
	if code != 1 || !strings.Contains(out, ": 0 rows are missing") || !strings.Contains(out, "4 rows are not judged") || !strings.Contains(out, "a Kafka transaction that was aborted or is open") {
		t.Errorf("backfill: exit code %d:\n%s%s", code, out, notes)
	}
	if _, sum := o.audit(env, 1); sum.Summary.Clean || sum.Summary.Unjudged != 4 || sum.Summary.Delivered != 2 {
		t.Errorf("audit: %+v", sum.Summary)
	}
	must(t, open.EndTransaction(testContext(t), kgo.TryCommit))
	out, notes, code = o.runBinary(env, "backfill", "--yes", "--unjudged=send")
	if code != 0 || !strings.Contains(out, "\n2 records sent") {
		t.Errorf("backfill --unjudged=send: exit code %d:\n%s%s", code, out, notes)
	}
}

// Compaction has deleted older records of a key, and what is left of the key is newer. A row whose record may be
// among them is not judged: to send it would make an old event the state of its key. It is refused without
// --compacted, and is left with --unjudged=leave.
func TestRecoverCompactedAway(t *testing.T) {
	t.Parallel()
	needRealKafka(t)
	k := kafkatest.RealForTest(t, kafkatest.RealOptions{QuickStart: true, Settings: map[string]string{"log.cleaner.enable": "true", "log.cleaner.backoff.ms": "300", "log.cleaner.threads": "1"}})
	o := newOutbox(t, options{kafka: k, partitions: 1, configs: compactsSoon})
	env := o.deduplicating(fence)
	r := o.startStreaming(env...)
	for n := range 5 {
		o.insert("order", "k", n+1, 1)
	}
	o.awaitCompacted("k")
	o.awaitConfirmed(o.walFlushed(), patience)
	r.term()
	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
	out := o.recover(env, 1)
	says(t, out, ": 0 rows are missing", "4 rows are not judged")
	says(t, o.recover(env, 1, "--unjudged=send"), "topic "+o.topic("order")+" is compacted", "--compacted")
	if n := o.numbersOfKey("k"); !slices.Equal(n, []int{5}) {
		t.Errorf("records of key k: %v, want the last event", n)
	}
	says(t, o.recover(env, 0, "--unjudged=leave"), "position record written")
}

// compactsSoon are the settings of a topic that Kafka compacts within seconds.
var compactsSoon = map[string]string{
	"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "500", "max.compaction.lag.ms": "1000", "min.compaction.lag.ms": "0",
}

// awaitCompacted waits until one record of the key is left.
func (o *outbox) awaitCompacted(key string) {
	o.t.Helper()
	n := 0
	await(o.t, 2*patience, "compaction", func() error {
		n++
		o.insert("order", fmt.Sprint("other", n), n, 1) // rolls the segment
		return waitFor(len(o.numbersOfKey(key)) == 1)
	})
}

// replay of one event to a compacted topic would make it the state of its key, so it needs --compacted, or another
// topic.
func TestReplayCompactedTopic(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{partitions: 1, configs: map[string]string{"cleanup.policy": "compact"}})
	o.makeTopic("replayed", 1, nil)
	env := o.deduplicating(fence)
	o.startStreaming(env...)
	o.insert("order", "k", 1, 2)
	o.awaitArrived(patience)
	id := o.query(`SELECT id::text FROM outbox WHERE n = 1`)
	out, notes, code := o.runBinary(env, "replay", "--id", id)
	if code != 1 || !strings.Contains(notes, "topic "+o.topic("order")+" is compacted") || !strings.Contains(notes, "--compacted") {
		t.Errorf("replay: exit code %d\n%s%s", code, out, notes)
	}
	if got := o.numbersOf("order"); !slices.Equal(got, []int{1, 2}) {
		t.Errorf("events %v after a refused replay", got)
	}
	if out, notes, code := o.runBinary(env, "replay", "--id", id, "--topic", o.topic("replayed")); code != 0 || !strings.Contains(out, "1 record of 1 sent") {
		t.Errorf("replay --topic: exit code %d\n%s%s", code, out, notes)
	}
	if out, notes, code := o.runBinary(env, "replay", "--id", id, "--compacted"); code != 0 || !strings.Contains(out, "1 record of 1 sent") {
		t.Errorf("replay --compacted: exit code %d\n%s%s", code, out, notes)
	}
	if got := o.numbersOf("order"); !slices.Equal(got, []int{1, 2, 1}) {
		t.Errorf("events %v", got)
	}
}

// A record that the broker refuses as too large, and that the policy skips, is refused again by each run, which ends
// all the same.
func TestRecoverSkippedByBroker(t *testing.T) {
	for _, slot := range []string{"kept", "dropped"} {
		t.Run(slot, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t, options{configs: map[string]string{"max.message.bytes": "3000"}})
			env := append(o.deduplicating(fence), "OUTBOXCDC_POISON_POLICY=skip", "OUTBOXCDC_KAFKA_COMPRESSION=none")
			r := o.startStreaming(env...)
			o.insert("order", "k", 1, 1)
			o.awaitArrived(patience)
			o.exec(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, n)
				SELECT 'order', 'k', 'added', jsonb_build_object('n', 2, 'x', (SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 300))), 2`)
			o.insert("order", "k", 3, 1)
			o.awaitRecords(2)
			o.awaitConfirmed(o.walFlushed(), patience)
			r.term()
			sent := 2
			for run := range 3 {
				if slot == "dropped" {
					o.insert("order", "k", 4+run, 1)
					sent++
					o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
				}
				o.recover(env, 0)
				if n := len(o.readAll()); n != sent {
					t.Errorf("%d records after run %d, want %d", n, run+1, sent)
				}
			}
			o.startStreaming(env...)
			o.insert("order", "k", 7, 1)
			o.awaitRecords(sent + 1)
		})
	}
}

// The broker refuses records for a reason that nothing tells beforehand, and the policy skips them: each run ends
// with 0, although the rows have no record.
func TestRecoverRefusedByBroker(t *testing.T) {
	t.Parallel()
	k := faultyKafka(t)
	o := newOutbox(t, options{kafka: k, types: []string{"order", "payment"}})
	env := append(o.deduplicating(fence), "OUTBOXCDC_POISON_POLICY=skip")
	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
	o.insert("order", "k", 1, 3)
	o.insert("payment", "p", 1, 2)
	inject(t, k, kafkatest.Fault{Answer: kerr.InvalidRecord.Code, Topic: o.topic("payment")})
	for _, want := range []string{"\n3 records sent, run ", "\n0 records sent, run "} {
		says(t, o.recover(env, 0), want, "; 2 rows were skipped by policy", ": 0 rows are missing")
	}
	env[len(env)-1] = "OUTBOXCDC_POISON_POLICY=stop"
	says(t, o.recover(env, 1), "poison id=", ": 2 rows are missing")
	heal(t, k)
	says(t, o.recover(env, 0), "\n2 records sent, run ")
	o.startStreaming(env...)
	o.insert("payment", "p", 3, 1)
	o.repeatsOf(0)
}

// The dead letter of a poison row was handled, and deleted by the retention of its topic. It is not sent again
// without being asked for.
func TestRecoverOldDeadLetter(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	o.makeTopic("dead", 1, nil)
	env := append(o.deduplicating(fence), "OUTBOXCDC_POISON_POLICY=dead_letter", "OUTBOXCDC_POISON_TOPIC="+o.topic("dead"))
	r := o.startStreaming(env...)
	o.insert("order", "k", 1, 1)
	o.exec(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, n) VALUES ('bad topic!', 'k', 'added', '{"n": 2}', 2)`)
	o.awaitRecords(1)
	o.awaitConfirmed(o.walFlushed(), patience)
	letters := func() int {
		t.Helper()
		all, err := kafkatest.ReadAll(testContext(t), o.kafka.Brokers(), o.topic("dead"))
		must(t, err)
		return len(all)
	}
	if n := letters(); n != 1 {
		t.Fatalf("%d dead letters", n)
	}
	r.term()
	o.deleteRecords(o.topic("dead"), 1)
	o.exec(`UPDATE outbox SET created_at = now() - interval '30 days'`)
	says(t, o.recover(env, 1), ": 0 rows are missing", "1 row is not judged", "may have deleted its dead letter")
	o.recover(env, 0, "--unjudged=leave")
	if n := letters(); n != 0 {
		t.Errorf("%d dead letters were sent again", n)
	}
	o.startStreaming(env...)
	o.insert("order", "k", 3, 1)
	o.awaitRecords(2)
}

// numbersOf returns the n of the records of an aggregate type, in the order of the topic, which has one partition.
func (o *outbox) numbersOf(typ string) []int {
	o.t.Helper()
	return o.numbersWhere(func(r kafkatest.Record) bool { return r.Topic == o.topic(typ) })
}

// numbersOfKey returns the n of the records of a key, in their order.
func (o *outbox) numbersOfKey(key string) []int {
	o.t.Helper()
	return o.numbersWhere(func(r kafkatest.Record) bool { return string(r.Key) == key })
}
