package integration

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// Possible states of Kafka when a deduplicating daemon starts after an unclean end.

// F64: the brokers are killed together with the daemon, and restarted with their data.
func TestDeduplicatedBrokersKilled(t *testing.T) {
	t.Parallel()
	k := breakableKafka(t)
	rnd := newRand(t)
	o := newOutbox(t, options{kafka: k, partitions: 6})
	rounds := fullOrShort(10, 1)
	o.proves("F64", "the broker and a deduplicating daemon killed (-9) under load, either first, the broker restarted with its data, %d times", rounds)
	o.sample()
	env := o.deduplicating(fence)
	w := o.write(load{rand: rnd})
	for range rounds {
		r := o.startStreaming(env...)
		w.awaitCommits(100 + rnd.Int64N(100))
		before := rnd.IntN(2) == 0
		if before {
			r.kill9()
		}
		must(t, k.Kill())
		if !before {
			w.awaitCommits(20)
			r.kill9()
		}
		must(t, k.StartAgain(testContext(t)))
	}
	last := o.start(env...)
	o.awaitHealed()
	w.stop()
	o.repeatsAtMost(o.verify(patience), 0, "a broker that is killed keeps what it has acknowledged")
	o.outcome("the last start skipped %d events that Kafka had", last.skippedInKafka())
}

// F66, F82: the topic is deleted and recreated, and later all of its records are deleted, as retention does. The events
// acknowledged by then, according to the position record, stay lost; everything else is delivered.
func TestDeduplicatedTopicLostItsRecords(t *testing.T) {
	t.Parallel()
	rnd := newRand(t)
	o := newOutbox(t, options{partitions: 6})
	o.proves("F66 F82", "after kill -9 of a deduplicating daemon: the topic deleted and recreated; all records of it deleted")
	o.sample().testJudges = true // it would not find deleted records
	env := o.deduplicating(fence)
	w := o.write(load{rand: rnd})
	r := o.startStreaming(env...)
	had := map[string]bool{}
	for _, lose := range []func(){
		func() {
			must(t, kafkatest.DeleteTopic(testContext(t), o.kafka.Brokers(), o.topic("order")))
			o.makeTopic("order", 6, nil)
		},
		func() { o.deleteRecords(o.topic("order"), 6) },
	} {
		w.awaitCommits(300)
		r.kill9()
		for id := range countIDs(o.readAll()) {
			had[id] = true
		}
		lose()
		r = o.startStreaming(env...)
	}
	w.awaitCommits(100)
	w.stop()
	o.awaitHealed()
	o.awaitSettled()
	v := o.judgeWithout(slices.Collect(maps.Keys(had)))
	o.repeatsAtMost(v, 0, "deleted records cannot be repeated")
	if v.Rows == 0 {
		t.Error("the topic was empty")
	}
}

// deleteRecords deletes all records of a topic.
func (o *outbox) deleteRecords(topic string, partitions int) {
	o.t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(o.kafka.Brokers()...))
	must(o.t, err)
	defer c.Close()
	req := kmsg.NewPtrDeleteRecordsRequest()
	req.TimeoutMillis = 10_000
	one := kmsg.NewDeleteRecordsRequestTopic()
	one.Topic = topic
	for i := range partitions {
		p := kmsg.NewDeleteRecordsRequestTopicPartition()
		p.Partition, p.Offset = int32(i), -1 // its end
		one.Partitions = append(one.Partitions, p)
	}
	req.Topics = append(req.Topics, one)
	resp, err := req.RequestWith(testContext(o.t), c)
	must(o.t, err)
	for _, p := range resp.Topics[0].Partitions {
		if p.ErrorCode != 0 {
			o.t.Fatalf("delete records of partition %d: error %d", p.Partition, p.ErrorCode)
		}
	}
}

// F68: the topic gains partitions between two runs, after an unclean end, so that keys move. The daemon reads all
// partitions before it sends anything, so it finds an event in its key's old partition: nothing is missing or repeated,
// and each key keeps its order.
func TestDeduplicatedPartitionsAdded(t *testing.T) {
	t.Parallel()
	rnd := newRand(t)
	o := newOutbox(t, options{partitions: 6})
	o.proves("F68", "6 partitions become 12 after kill -9 of a deduplicating daemon, before the next start")
	o.sample()
	env := o.deduplicating(fence)
	w := o.write(load{rand: rnd, keys: 60})
	unnoted := o.killWithUnrecorded(w, env...)
	must(t, kafkatest.AddPartitions(testContext(t), o.kafka.Brokers(), o.topic("order"), 12))
	o.startStreaming(env...)
	w.awaitCommits(100)
	w.stop()
	o.awaitHealed()
	o.awaitArrived(patience)
	o.awaitSettled()
	// A key's new partition has a higher number than its old one, and the reader reads it later.
	v := o.history().judge()
	moved := len(v.Misplaced)
	v.Misplaced = nil
	must(t, v.err())
	o.proof.setVerdict(v)
	o.repeatsAtMost(v, 0, "all partitions of a topic are read")
	if moved == 0 {
		t.Error("no key has moved: this run proved nothing")
	}
	o.outcome("%d records of keys that moved; %d events were delivered after the last position record", moved, unnoted)
}

// killWithUnrecorded kills a daemon under load, and again if Kafka has no events beyond the newest position record.
// It returns how many events Kafka has beyond it. The record names all topics that were used.
func (o *outbox) killWithUnrecorded(w *writer, env ...string) (unnoted int) {
	o.t.Helper()
	for unnoted == 0 {
		r := o.startStreaming(env...)
		w.awaitDelivered(1)
		o.awaitConfirmed(o.walFlushed(), patience) // allows the daemon to write a position record
		w.awaitDelivered(300)
		r.kill9()
		unnoted = o.countUnrecorded()
	}
	return unnoted
}

// countUnrecorded counts the events in Kafka that the newest position record does not cover.
func (o *outbox) countUnrecorded() (n int) {
	o.t.Helper()
	all := o.positions()
	acked, _ := parsePosition(all[len(all)-1].Acked) // zero if it is empty
	for _, rec := range o.readAll() {
		text, _ := headerOf(rec, "outboxcdc-position")
		if at, err := parsePosition(text); err == nil && acked.before(at) {
			n++
		}
	}
	return n
}

// F82: other producers write to the topic too, also in aborted transactions, and their records have position headers of
// ours, as in a copied topic. As long as everything beyond the position record is within the look-back, nothing is
// repeated; otherwise the rest is. Most partitions are empty.
func TestDeduplicatedForeignRecords(t *testing.T) {
	t.Parallel()
	const partitions, lookBack = 12, 10_000 // of internal/wire
	rnd := newRand(t)
	o := newOutbox(t, options{partitions: partitions})
	o.proves("F82", "after kill -9 of a deduplicating daemon: %d partitions, most of them empty; records of other producers at their ends, fewer and more than %d, some aborted", partitions, lookBack)
	env := o.deduplicating(fence)
	w := o.write(load{rand: rnd, keys: 4})
	r := o.startStreaming(env...)
	w.awaitCommits(200)
	r.kill9()
	o.produceForeign(partitions, 10, false)
	o.produceForeign(partitions, 10, true)
	r = o.startStreaming(env...)
	w.awaitCommits(50)
	w.stop()
	o.awaitHealed()
	o.verifyOwn(0, "all events in doubt are within look_back")
	w = o.write(load{rand: rnd, keys: 4})
	w.awaitCommits(200)
	none, beyond := r.tailReads("none"), r.tailReads("look_back")
	r.kill9()
	unnoted := o.countUnrecorded()
	o.produceForeign(partitions, lookBack+10, false)
	r = o.startStreaming(env...)
	w.awaitCommits(100)
	w.stop()
	o.awaitHealed()
	o.verifyOwn(unnoted, "the events delivered after the last position record")
	if none == 0 || beyond != 0 || r.tailReads("look_back") == 0 {
		t.Errorf("first %v empty ends and %v beyond look_back; then %v beyond it", none, beyond, r.tailReads("look_back"))
	}
}

func (r *relay) tailReads(result string) float64 {
	r.t.Helper()
	m, err := r.metrics()
	must(r.t, err)
	return m[`outboxcdc_kafka_tail_reads_total{result="`+result+`"}`]
}

// produceForeign writes records of another producer to each partition, with the position of an event that has not
// been written yet.
func (o *outbox) produceForeign(partitions, each int, abort bool) {
	o.t.Helper()
	opts := []kgo.Opt{kgo.SeedBrokers(o.kafka.Brokers()...), kgo.RecordPartitioner(kgo.ManualPartitioner())}
	if abort {
		opts = append(opts, kgo.TransactionalID(o.name))
	}
	c, err := kgo.NewClient(opts...)
	must(o.t, err)
	defer c.Close()
	var system string
	must(o.t, o.admin.scan("SELECT system_identifier::text FROM pg_control_system()", &system))
	position := fmt.Sprintf("1:%s:1:%016X:0", system, uint64(o.walFlushed())+1<<30)
	var records []*kgo.Record
	for i := range partitions * each {
		records = append(records, &kgo.Record{Topic: o.topic("order"), Partition: int32(i % partitions), Key: []byte("foreign"), Headers: []kgo.RecordHeader{
			{Key: "id", Value: []byte("foreign")}, {Key: "outboxcdc-position", Value: []byte(position)},
		}})
	}
	ctx := testContext(o.t)
	if abort {
		must(o.t, c.BeginTransaction())
	}
	must(o.t, c.ProduceSync(ctx, records...).FirstErr())
	if abort {
		must(o.t, c.EndTransaction(ctx, kgo.TryAbort))
	}
}

// verifyOwn judges all records except those of other producers.
func (o *outbox) verifyOwn(repeats int, why string) {
	o.t.Helper()
	o.awaitArrived(patience)
	o.awaitSettled()
	h := o.history()
	h.Records = slices.DeleteFunc(h.Records, func(rec kafkatest.Record) bool { return string(rec.Key) == "foreign" })
	v := h.judge()
	must(o.t, v.err())
	o.proof.setVerdict(v)
	o.repeatsAtMost(v, repeats, why)
	o.t.Log(v.String())
}

// Settings that decide where an event goes change after an unclean end. The position record names the topic used
// before, so the daemon reads it: nothing is missing or repeated.
func TestDeduplicatedRoutingChanged(t *testing.T) {
	t.Parallel()
	rnd := newRand(t)
	o := newOutbox(t, options{types: []string{"order", "elsewhere"}, partitions: 3})
	o.sample().testJudges = true // a row may be in either topic
	env := o.deduplicating(fence)
	w := o.write(load{rand: rnd})
	unnoted := o.killWithUnrecorded(w, append(env, "OUTBOXCDC_ROUTE_TOPIC="+o.topic("elsewhere"))...)
	a := changeLog{Growth: map[string][2]int{o.topic("order"): {3, 3}, o.topic("elsewhere"): {3, 3}}}
	a.note(o, rerouted)
	r := o.startStreaming(env...)
	w.awaitCommits(100)
	w.stop()
	o.awaitHealed()
	o.awaitArrived(patience)
	o.awaitSettled()
	v := a.history(o).judge()
	must(t, v.err())
	if v.Repeats > 0 {
		t.Errorf("%d repeats: of transactions %s", v.Repeats, v.repeatList())
	}
	t.Logf("%s; %d events were delivered after the last position record, %d were skipped", v, unnoted, r.skippedInKafka())
}

// Dead letters are not repeated either.
func TestDeduplicatedDeadLetters(t *testing.T) {
	t.Parallel()
	kills := fullOrShort(50, 4)
	rnd := newRand(t)
	o := newPoisonOutbox(t, options{})
	env := append(o.deduplicating(fence), o.policy("dead_letter")...)
	for range kills {
		r := o.startStreaming(env...)
		began := time.Now()
		for until := fence + time.Duration(rnd.Int64N(int64(time.Second))); time.Since(began) < until; {
			o.insertMixed(3, badTime, nullKey, 3)
		}
		r.kill9()
	}
	r := o.startStreaming(env...)
	if v := o.awaitGood(); v.Repeats > 0 {
		t.Errorf("%d repeats", v.Repeats)
	}
	o.verifyDeadLetters(0)
	t.Logf("%d dead letters; the last start skipped %d events", len(o.written), r.skippedInKafka())
}

// Deduplication costs at most about one small record a second, and almost no time at the start: the ends of the
// partitions are read in parallel, and of many partitions the needed ones first.
func TestDeduplicatedCost(t *testing.T) {
	t.Parallel()
	for _, partitions := range fullOrShort([]int{12, 1000}, []int{12}) {
		t.Run(fmt.Sprint(partitions), func(t *testing.T) {
			rnd := newRand(t)
			o := newOutbox(t, options{partitions: partitions})
			env := o.deduplicating(fence)
			r := o.startStreaming(append(env, "OUTBOXCDC_TUNING_STATUS_INTERVAL=100ms")...)
			w := o.write(load{rand: rnd, keys: 100})
			w.awaitCommits(100)
			began, had := time.Now(), len(o.readRecords(o.positionTopic()))
			time.Sleep(fullOrShort(20*time.Second, 4*time.Second)) // the period of the measurement
			wrote, lasted := len(o.readRecords(o.positionTopic()))-had, time.Since(began)
			w.stop()
			t.Logf("%d position records in %v", wrote, lasted)
			if wrote < 1 || float64(wrote) > 1.06*lasted.Seconds()+1 { // a round is 950 ms
				t.Error("want about one a second")
			}
			r.kill9()
			r = o.startStreaming(env...)
			n := o.follow.records()
			o.insert("order", "first", 1, 1)
			began = time.Now()
			await(t, patience, "the first record", func() error { return waitFor(o.follow.records() > n) })
			first := time.Since(began)
			o.verify(patience)
			m, err := r.metrics()
			must(t, err)
			reads := m["outboxcdc_kafka_tail_read_seconds_count"]
			mean := time.Duration(m["outboxcdc_kafka_tail_read_seconds_sum"] / reads * float64(time.Second))
			t.Logf("%v ends of partitions read, %v each; the first record was there after %v, of which fence_wait is %v", reads, mean, first, fence)
			if first > fence+5*time.Second+busyAllowance || mean > time.Second+busyAllowance {
				t.Error("too slow")
			}
		})
	}
}
