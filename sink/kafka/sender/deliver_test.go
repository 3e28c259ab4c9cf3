package sender

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// An error of one record is a DeliveryError, and the sender delivers the next. An error of the cluster is none.
func TestDeliver(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(6, "orders"))
	f.createTopic(t, "narrow", 1, map[string]string{"max.message.bytes": "1000"})
	cfg := testConfig(f.ListenAddrs())
	cfg.Partitions = map[string]int32{"orders": 4}
	k := New(newCluster(t, cfg), Options{})
	defer k.Close()
	deliver := func(rec *router.Record, alone string) {
		t.Helper()
		err := k.Deliver(t.Context(), rec)
		var one *DeliveryError
		switch {
		case alone == "" && err != nil, alone != "" && !errors.As(err, &one), alone != "" && !strings.Contains(err.Error(), alone):
			t.Errorf("%s: %v, want %q", rec.Topic, err, alone)
		}
	}
	deliver(record("orders", "a", "1"), "")
	deliver(record("missing", "a", "x"), "does not exist")
	deliver(record("narrow", "a", big(5000)), "max.message.bytes")
	refusals := 1
	f.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		if refusals--; refusals < 0 {
			return nil, nil, false
		}
		r := req.(*kmsg.ProduceRequest)
		res := r.ResponseKind().(*kmsg.ProduceResponse)
		rt := kmsg.NewProduceResponseTopic()
		rp := kmsg.NewProduceResponseTopicPartition()
		rp.Partition, rp.ErrorCode = r.Topics[0].Partitions[0].Partition, int16(sarama.ErrInvalidTimestamp)
		rt.Topic, rt.TopicID, rt.Partitions = r.Topics[0].Topic, r.Topics[0].TopicID, append(rt.Partitions, rp)
		res.Topics = append(res.Topics, rt)
		return res, nil, true
	})
	deliver(record("orders", "a", "y"), "timestamp")
	deliver(record("orders", "a", "2"), "")
	deliver(record("orders", "b", "3"), "")
	got, err := kafkatest.ReadAll(t.Context(), f.ListenAddrs(), "orders")
	must(t, err)
	java := kgo.StickyKeyPartitioner(nil).ForTopic("orders") // as Java's default partitioner
	var values []string
	for _, r := range got {
		values = append(values, string(r.Value))
		if p := java.Partition(&kgo.Record{Key: r.Key}, 4); int32(p) != r.Partition {
			t.Errorf("key %s is on partition %d, want %d", r.Key, r.Partition, p)
		}
	}
	if slices.Sort(values); !slices.Equal(values, []string{"1", "2", "3"}) {
		t.Errorf("delivered are %v", values)
	}
	f.Close()
	var one *DeliveryError
	if err := k.Deliver(within(t, time.Second), record("orders", "a", "4")); err == nil || errors.As(err, &one) {
		t.Errorf("no broker: %v", err)
	}
}

// TestDeliverPositionTopic: the position topic takes no dead letters. See TestNoEventInPositionTopic in package kafka.
func TestDeliverPositionTopic(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "positions", 1, map[string]string{"cleanup.policy": "compact"})
	cfg := testConfig(f.ListenAddrs())
	cfg.PositionTopic, cfg.Slot = "positions", "s"
	k := New(newCluster(t, cfg), Options{})
	defer k.Close()
	err := k.Deliver(t.Context(), record("positions", "k", "a dead letter"))
	if !errors.As(err, new(*DeliveryError)) || !strings.Contains(err.Error(), "it holds position records") {
		t.Errorf("a dead letter was sent to the position topic: %v", err)
	}
	if got, err := kafkatest.ReadAll(t.Context(), f.ListenAddrs(), "positions"); err != nil || len(got) != 0 {
		t.Errorf("the topic has %d records: %v", len(got), err)
	}
}
