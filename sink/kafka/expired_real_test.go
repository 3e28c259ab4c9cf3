package kafka

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// A broker forgets a producer id when the newest batch with this id is older than producer.id.expiration.ms, and then
// accepts any sequence number. The timestamp of the batch counts, which rows may set: here the id is forgotten at
// once, during traffic. After a refused batch the next one must not be stored.
func TestForgottenProducer(t *testing.T) {
	k := kafkatest.RealForTest(t, kafkatest.RealOptions{QuickStart: true, Settings: map[string]string{
		"producer.id.expiration.ms": "3600000", "producer.id.expiration.check.interval.ms": "100",
	}})
	ctx := within(3 * time.Minute)
	must(t, kafkatest.CreateTopic(ctx, k.Brokers(), "x", 1, nil))
	cfg := realConfig(k)
	cfg.Requests, cfg.BatchLimit, cfg.Compression = 5, 10_000, "none"
	c := newTestCluster(t, cfg)
	p, l := openSession(t, c)
	waitReady(t, p, "x")
	put := func(p *Producer, n uint64, size int) {
		rec := record("x", "k", fmt.Sprintf("%06d", n)+repeatX(size))
		rec.Timestamp = time.Now().Add(-2 * time.Hour).UnixMilli()
		must(t, p.Send(rec, n))
	}
	put(p, 1, 10)
	p.Flush()
	l.waitAcks(t, 1)
	must(t, kafkatest.SetTopicConfig(ctx, k.Brokers(), "x", map[string]string{"max.message.bytes": "20000"}))
	eventually(t, "the broker to forget the producer id", func() bool { return producersKnown(ctx, t, k, "x") == 0 })
	const total = 22
	put(p, 2, 60_000) // a batch of its own, and too large now
	for n := uint64(3); n <= total; n++ {
		put(p, n, 6_000)
	}
	p.Flush()
	if events, ok := refusedEvents(l.failure(t)); !ok || len(events) != 1 || events[0] != 2 {
		t.Fatalf("refused: %v %v", events, ok)
	}
	_ = finish(within(10*time.Second), p)
	recs, err := kafkatest.ReadAll(ctx, k.Brokers(), "x")
	if err != nil || len(recs) != 1 {
		t.Fatalf("%d records are in the topic, want the acknowledged one: the other records come after a refused one (%v)", len(recs), err)
	}
	must(t, kafkatest.SetTopicConfig(ctx, k.Brokers(), "x", map[string]string{"max.message.bytes": "1048588"}))
	p, l = openSession(t, c)
	waitReady(t, p, "x")
	for n := uint64(2); n <= total; n++ {
		put(p, n, 10)
	}
	p.Flush()
	l.waitAcks(t, total-1)
	checkReal(ctx, t, k, "x", 1, total)
}

// producersKnown returns the number of producer ids that the broker knows for partition 0 of a topic.
func producersKnown(ctx context.Context, t *testing.T, k *kafkatest.Real, topic string) int {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(k.Brokers()...))
	must(t, err)
	defer cl.Close()
	req := kmsg.NewPtrDescribeProducersRequest()
	rt := kmsg.NewDescribeProducersRequestTopic()
	rt.Topic, rt.Partitions = topic, []int32{0}
	req.Topics = append(req.Topics, rt)
	res, err := req.RequestWith(ctx, cl)
	must(t, err)
	part := res.Topics[0].Partitions[0]
	if part.ErrorCode != 0 {
		t.Fatalf("describe producers: error %d", part.ErrorCode)
	}
	return len(part.ActiveProducers)
}
