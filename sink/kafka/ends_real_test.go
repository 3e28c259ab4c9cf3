package kafka

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
	"github.com/outboxcdc/outboxcdc/test/testcert"
)

// TestRealEnds tests the reading of ends and position records with Apache Kafka. All subtests use one broker.
func TestRealEnds(t *testing.T) {
	authority, err := testcert.New("test")
	must(t, err)
	k := kafkatest.RealForTest(t, kafkatest.RealOptions{
		QuickStart: true,
		Guarded:    &kafkatest.Guarded{Authority: authority, Plain: map[string]string{"writer": "secret"}},
		Settings:   map[string]string{"log.cleaner.backoff.ms": "200", "log.retention.check.interval.ms": "500"},
	})
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	r := &realEnds{k: k, cfg: realConfig(k)}
	t.Run("many partitions", func(t *testing.T) { r.manyPartitions(ctx, t) })
	t.Run("transactions", func(t *testing.T) { r.transactions(ctx, t) })
	t.Run("deleted", func(t *testing.T) { r.deletedRecords(ctx, t) })
	t.Run("compacted", func(t *testing.T) { r.compactedLog(ctx, t) })
	t.Run("large batches", func(t *testing.T) { r.largeBatches(ctx, t) })
	t.Run("permissions", func(t *testing.T) { r.missingPermissions(ctx, t, authority) })
	t.Run("positions", func(t *testing.T) { r.positions(ctx, t) })
	t.Run("spans", func(t *testing.T) { r.spans(ctx, t, authority) })
}

type realEnds struct {
	k   *kafkatest.Real
	cfg Config
}

func (r *realEnds) create(ctx context.Context, t *testing.T, topic string, partitions int, configs map[string]string) {
	t.Helper()
	must(t, kafkatest.CreateTopic(ctx, r.k.Brokers(), topic, partitions, configs))
}

// reader returns a session that has read the ends of a topic.
func (r *realEnds) reader(t *testing.T, topic string, lookBack int, ids ...int64) *search {
	t.Helper()
	return searchIn(t, r.cfg, lookBack, []string{topic}, ids...).read(t)
}

// manyPartitions: reading twelve partitions is fast, and a thousand take not much longer.
func (r *realEnds) manyPartitions(ctx context.Context, t *testing.T) {
	sizes := []int{12}
	if os.Getenv("OUTBOXCDC_PROVE") != "" {
		sizes = append(sizes, 900)
	}
	for _, n := range sizes {
		topic := fmt.Sprint("many-", n)
		r.create(ctx, t, topic, n, nil)
		id := sendToEach(t, r.cfg, topic, n)
		for range 2 { // the broker's first requests are slow
			began := time.Now()
			s := searchIn(t, r.cfg, 100, []string{topic}, id)
			s.wantEach(t, n)
			t.Logf("%d partitions: after %v", n, time.Since(began))
			if found := endReads(s.cluster, endFound); found != float64(n) {
				t.Errorf("%v found", found)
			}
			_ = s.Close(endedContext())
		}
	}
}

// transactions: another producer's transactions at the end are committed, aborted and open.
func (r *realEnds) transactions(ctx context.Context, t *testing.T) {
	const topic = "transactions"
	r.create(ctx, t, topic, 3, nil)
	id := earlierSession(t, r.cfg, toPartition(0, event(topic, "k", at(10))), toPartition(1, event(topic, "k", at(11))), toPartition(2, event(topic, "k", at(12))))
	for part, end := range []func(*kgo.Client) error{
		func(cl *kgo.Client) error { return cl.EndTransaction(ctx, kgo.TryCommit) },
		func(cl *kgo.Client) error { return cl.EndTransaction(ctx, kgo.TryAbort) },
		func(*kgo.Client) error { return nil },
	} {
		cl, err := kgo.NewClient(kgo.SeedBrokers(r.k.Brokers()...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.TransactionalID(fmt.Sprint("other-", part)))
		must(t, err)
		defer cl.Close()
		for range 3 { // markers have offsets, too
			must(t, cl.BeginTransaction())
			rec := &kgo.Record{Topic: topic, Partition: int32(part), Value: []byte("v"), Headers: []kgo.RecordHeader{{Key: router.HeaderPosition, Value: []byte(at(900_000).String())}}}
			must(t, cl.ProduceSync(ctx, rec).FirstErr())
			must(t, end(cl))
			if part == 2 {
				break
			}
		}
	}
	r.reader(t, topic, 100, id).want(t, at(10), at(11), at(12))
	s := r.reader(t, topic, 1, id)
	s.want(t) // the last offset is a marker or belongs to the open transaction
	if endReads(s.cluster, endLookBack) < 2 {
		t.Error("the metric does not count a read ended by the look-back")
	}
}

// deletedRecords: the beginning of a log is deleted, or all records, or nearly all.
func (r *realEnds) deletedRecords(ctx context.Context, t *testing.T) {
	const topic = "deleted"
	r.create(ctx, t, topic, 3, nil)
	var recs []*router.Record
	for i := range 10 {
		for part := range int32(3) {
			recs = append(recs, toPartition(part, event(topic, "k", at(10+i))))
		}
	}
	id := earlierSession(t, r.cfg, recs...)
	writeForeign(t, r.k.Brokers(), topic, 1, 5)
	r.deleteRecords(ctx, t, topic, map[int32]int64{0: 7, 1: 12, 2: 10})
	s := r.reader(t, topic, 1000, id)
	s.want(t, at(17), at(18), at(19))
	if n := endReads(s.cluster, endNone); n != 3 {
		t.Errorf("%v partitions were read to the beginning of the log", n)
	}
}

func (r *realEnds) deleteRecords(ctx context.Context, t *testing.T, topic string, before map[int32]int64) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.k.Brokers()...))
	must(t, err)
	defer cl.Close()
	req := kmsg.NewPtrDeleteRecordsRequest()
	rt := kmsg.NewDeleteRecordsRequestTopic()
	rt.Topic = topic
	for part, offset := range before {
		rp := kmsg.NewDeleteRecordsRequestTopicPartition()
		rp.Partition, rp.Offset = part, offset
		rt.Partitions = append(rt.Partitions, rp)
	}
	req.Topics = append(req.Topics, rt)
	for _, shard := range cl.RequestSharded(ctx, req) {
		if shard.Err != nil {
			t.Fatal(shard.Err)
		}
		for _, rt := range shard.Resp.(*kmsg.DeleteRecordsResponse).Topics {
			for _, rp := range rt.Partitions {
				if rp.ErrorCode != 0 {
					t.Fatalf("partition %d: error %d", rp.Partition, rp.ErrorCode)
				}
			}
		}
	}
}

// compactedLog: our last record is far before the end, and all later records were compacted.
func (r *realEnds) compactedLog(ctx context.Context, t *testing.T) {
	const topic = "compacted"
	r.create(ctx, t, topic, 1, map[string]string{
		"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "100",
	})
	id := earlierSession(t, r.cfg, event(topic, "ours", at(10)))
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.k.Brokers()...), kgo.DefaultProduceTopic(topic))
	must(t, err)
	defer cl.Close()
	put := func() {
		must(t, cl.ProduceSync(ctx, &kgo.Record{Key: []byte("theirs"), Value: []byte("v")}).FirstErr())
	}
	for range 200 {
		put()
	}
	eventually(t, "the log to be compacted", func() bool {
		time.Sleep(200 * time.Millisecond)
		put() // ends the segment, so that Kafka compacts it
		recs, err := kafkatest.ReadAll(ctx, r.k.Brokers(), topic)
		must(t, err)
		return len(recs) < 20
	})
	r.reader(t, topic, 10_000, id).want(t, at(10))
	s := r.reader(t, topic, 150, id)
	s.want(t)
	if endReads(s.cluster, endLookBack) != 1 {
		t.Error("look-back counts what was compacted away as nothing")
	}
}

// largeBatches: batches larger than the limit of a fetch are returned whole, one at a time, also from a topic with
// another compression.
func (r *realEnds) largeBatches(ctx context.Context, t *testing.T) {
	const topic, n = "large", 8
	r.create(ctx, t, topic, n, map[string]string{"max.message.bytes": itoa(4 << 20), "compression.type": "gzip"})
	cfg := r.cfg
	cfg.Compression = "zstd"
	var recs []*router.Record
	noise := make([]byte, 2<<20)
	for i := range noise {
		noise[i] = byte(rand.IntN(256))
	}
	for i := range int32(n) {
		rec := toPartition(i, event(topic, "k", at(10+int(i))))
		rec.Value = noise
		recs = append(recs, rec)
	}
	id := earlierSession(t, cfg, recs...)
	for i := range int32(n) {
		writeForeign(t, r.k.Brokers(), topic, i, 1)
	}
	var want []checkpoint.Position
	for i := range n {
		want = append(want, at(10+i))
	}
	r.reader(t, topic, 100, id).want(t, want...)
}
