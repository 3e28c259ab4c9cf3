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
	"github.com/outboxcdc/outboxcdc/internal/kafkatest"
	"github.com/outboxcdc/outboxcdc/internal/testcert"
	"github.com/outboxcdc/outboxcdc/router"
)

// TestRealTails holds against Apache Kafka what tails and position records rely on; one broker serves all of it.
func TestRealTails(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it starts a broker")
	}
	authority, err := testcert.New("test")
	if err != nil {
		t.Fatal(err)
	}
	k := kafkatest.RealForTest(t, kafkatest.RealOptions{
		QuickStart: true,
		Guarded:    &kafkatest.Guarded{Authority: authority, Plain: map[string]string{"writer": "secret"}},
		Settings:   map[string]string{"log.cleaner.backoff.ms": "200", "log.retention.check.interval.ms": "500"},
	})
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	r := &realTails{k: k, cfg: realConfig(k)}
	t.Run("many partitions", func(t *testing.T) { r.many(ctx, t) })
	t.Run("transactions", func(t *testing.T) { r.transactions(ctx, t) })
	t.Run("deleted", func(t *testing.T) { r.deleted(ctx, t) })
	t.Run("compacted", func(t *testing.T) { r.compacted(ctx, t) })
	t.Run("large batches", func(t *testing.T) { r.large(ctx, t) })
	t.Run("rights", func(t *testing.T) { r.rights(ctx, t, authority) })
	t.Run("positions", func(t *testing.T) { r.positions(ctx, t) })
}

type realTails struct {
	k   *kafkatest.Real
	cfg Config
}

func (r *realTails) create(ctx context.Context, t *testing.T, topic string, partitions int, configs map[string]string) {
	t.Helper()
	if err := kafkatest.CreateTopic(ctx, r.k.Brokers(), topic, partitions, configs); err != nil {
		t.Fatal(err)
	}
}

// reader is a session that reads tails.
func (r *realTails) reader(t *testing.T, topic string, lookBack int, ids ...int64) (*Cluster, *Producer) {
	t.Helper()
	c := newTestCluster(t, r.cfg)
	p, _ := openSession(t, c)
	p.ReadTails(history{}, ids, lookBack, time.Time{})
	waitReady(t, p, topic)
	return c, p
}

// many: twelve partitions cost next to nothing; of a thousand (which take the broker long to create), the first record waits for
// its own only.
func (r *realTails) many(ctx context.Context, t *testing.T) {
	sizes := []int{12}
	if os.Getenv("OUTBOXCDC_PROVE") != "" {
		sizes = append(sizes, 1000)
	}
	for _, n := range sizes {
		topic := fmt.Sprint("many-", n)
		r.create(ctx, t, topic, n, nil)
		p, _ := openSession(t, newTestCluster(t, r.cfg))
		waitReady(t, p, topic)
		for i := range n {
			if err := p.Send(to(int32(i), event(topic, "k", at(10+i))), uint64(i)); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Close(within(time.Minute)); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the broker's first requests are slow
			c, next := r.reader(t, topic, 100, p.ProducerID())
			began := time.Now()
			first := int32(rand.IntN(n))
			awaitTail(t, next, to(first, record(topic, "k", "")))
			one := time.Since(began)
			for i := range n {
				if tail := awaitTail(t, next, to(int32(i), record(topic, "k", ""))); tail.Last != at(10+i) {
					t.Fatalf("partition %d: %v", i, tail.Last)
				}
			}
			all := time.Since(began)
			t.Logf("%d partitions: the first one after %v, all after %v", n, one, all)
			if one > time.Second || all > 3*time.Second || n == 12 && all > time.Second {
				t.Error("too slow")
			}
			if found := tailReads(c, tailFound); found != float64(n) {
				t.Errorf("%v found", found)
			}
			_ = next.Close(done())
		}
	}
}

// transactions of another producer at the end: committed, aborted and open.
func (r *realTails) transactions(ctx context.Context, t *testing.T) {
	const topic = "transactions"
	r.create(ctx, t, topic, 3, nil)
	id := predecessor(t, r.cfg, to(0, event(topic, "k", at(10))), to(1, event(topic, "k", at(11))), to(2, event(topic, "k", at(12))))
	for part, end := range []func(*kgo.Client) error{
		func(cl *kgo.Client) error { return cl.EndTransaction(ctx, kgo.TryCommit) },
		func(cl *kgo.Client) error { return cl.EndTransaction(ctx, kgo.TryAbort) },
		func(*kgo.Client) error { return nil },
	} {
		cl, err := kgo.NewClient(kgo.SeedBrokers(r.k.Brokers()...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.TransactionalID(fmt.Sprint("other-", part)))
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		for range 3 { // markers take offsets, too
			if err := cl.BeginTransaction(); err != nil {
				t.Fatal(err)
			}
			rec := &kgo.Record{Topic: topic, Partition: int32(part), Value: []byte("v"), Headers: []kgo.RecordHeader{{Key: router.HeaderPosition, Value: []byte(at(900_000).String())}}}
			if err := cl.ProduceSync(ctx, rec).FirstErr(); err != nil {
				t.Fatal(err)
			}
			if err := end(cl); err != nil {
				t.Fatal(err)
			}
			if part == 2 {
				break
			}
		}
	}
	_, p := r.reader(t, topic, 100, id)
	for part := range int32(3) {
		if tail := awaitTail(t, p, to(part, record(topic, "k", ""))); tail.Last != at(int(10+part)) {
			t.Errorf("partition %d: %v", part, tail.Last)
		}
	}
	c, p := r.shut(t, p, topic, 1, id)
	for part := range int32(2) { // the last offset is a marker
		if tail := awaitTail(t, p, to(part, record(topic, "k", ""))); !tail.Last.IsZero() {
			t.Errorf("partition %d: %v", part, tail.Last)
		}
	}
	if tailReads(c, tailLookBack) < 2 {
		t.Error("nobody says that the look-back ended it")
	}
}

// shut ends a session and opens the next.
func (r *realTails) shut(t *testing.T, p *Producer, topic string, lookBack int, id int64) (*Cluster, *Producer) {
	t.Helper()
	_ = p.Close(done())
	return r.reader(t, topic, lookBack, id)
}

// deleted: by retention, the beginning of a log, all of it, or nearly all.
func (r *realTails) deleted(ctx context.Context, t *testing.T) {
	const topic = "deleted"
	r.create(ctx, t, topic, 3, nil)
	var recs []*router.Record
	for i := range 10 {
		for part := range int32(3) {
			recs = append(recs, to(part, event(topic, "k", at(10+i))))
		}
	}
	id := predecessor(t, r.cfg, recs...)
	foreign(t, r.k.Brokers(), topic, 1, 5)
	r.deleteRecords(ctx, t, topic, map[int32]int64{0: 7, 1: 12, 2: 10})
	c, p := r.reader(t, topic, 1000, id)
	for part, want := range []checkpoint.Position{at(19), {}, {}} {
		if tail := awaitTail(t, p, to(int32(part), record(topic, "k", ""))); tail.Last != want {
			t.Errorf("partition %d: %v, want %v", part, tail.Last, want)
		}
	}
	if n := tailReads(c, tailNone); n != 2 {
		t.Errorf("%v partitions without anything of ours", n)
	}
}

func (r *realTails) deleteRecords(ctx context.Context, t *testing.T, topic string, before map[int32]int64) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.k.Brokers()...))
	if err != nil {
		t.Fatal(err)
	}
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

// compacted: our last record is far in front of the end, with nothing but gaps behind it.
func (r *realTails) compacted(ctx context.Context, t *testing.T) {
	const topic = "compacted"
	r.create(ctx, t, topic, 1, map[string]string{
		"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "100",
	})
	id := predecessor(t, r.cfg, event(topic, "ours", at(10)))
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.k.Brokers()...), kgo.DefaultProduceTopic(topic))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	put := func() {
		if err := cl.ProduceSync(ctx, &kgo.Record{Key: []byte("theirs"), Value: []byte("v")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	for range 200 {
		put()
	}
	eventually(t, "the log to be compacted", func() bool {
		time.Sleep(200 * time.Millisecond)
		put() // only a segment with nothing more to come is compacted
		recs, err := kafkatest.ReadAll(ctx, r.k.Brokers(), topic)
		if err != nil {
			t.Fatal(err)
		}
		return len(recs) < 20
	})
	_, p := r.reader(t, topic, 10_000, id)
	if tail := awaitTail(t, p, record(topic, "k", "")); tail.Last != at(10) {
		t.Errorf("%v", tail.Last)
	}
	c, p := r.shut(t, p, topic, 150, id)
	if tail := awaitTail(t, p, record(topic, "k", "")); !tail.Last.IsZero() || tailReads(c, tailLookBack) != 1 {
		t.Errorf("look-back counts what was compacted away as nothing: %v", tail.Last)
	}
}

// large batches come whole, one at a time, whatever the bound of a fetch is; the broker packs anew what the topic wants otherwise.
func (r *realTails) large(ctx context.Context, t *testing.T) {
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
		rec := to(i, event(topic, "k", at(10+int(i))))
		rec.Value = noise
		recs = append(recs, rec)
	}
	id := predecessor(t, cfg, recs...)
	for i := range int32(n) {
		foreign(t, r.k.Brokers(), topic, i, 1)
	}
	_, p := r.reader(t, topic, 100, id)
	for i := range int32(n) {
		if tail := awaitTail(t, p, to(i, record(topic, "k", ""))); tail.Last != at(10+int(i)) {
			t.Errorf("partition %d: %v", i, tail.Last)
		}
	}
}
