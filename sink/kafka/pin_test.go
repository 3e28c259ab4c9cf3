package kafka

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/outboxcdc/outboxcdc/internal/brokerauth"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

func createTopic(t *testing.T, brokers []string, topic string, partitions int) {
	t.Helper()
	// For a moment a broker may still have the deleted topic.
	eventually(t, "topic "+topic+" to be created", func() bool {
		return kafkatest.CreateTopic(within(30*time.Second), brokers, topic, partitions, nil) == nil
	})
}

func deleteTopic(t *testing.T, brokers []string, topic string) {
	t.Helper()
	must(t, kafkatest.DeleteTopic(within(30*time.Second), brokers, topic))
}

// produceForeign stores a record of another producer in partition 0.
func produceForeign(t *testing.T, brokers []string, topic string) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	must(t, err)
	defer cl.Close()
	must(t, cl.ProduceSync(within(30*time.Second), &kgo.Record{Topic: topic, Value: []byte("000000"), Key: []byte("foreign")}).FirstErr())
}

// deleteForeign deletes the records of partition 0.
func deleteForeign(t *testing.T, brokers []string, topic string) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	must(t, err)
	defer cl.Close()
	req := kmsg.NewPtrDeleteRecordsRequest()
	rt := kmsg.NewDeleteRecordsRequestTopic()
	rp := kmsg.NewDeleteRecordsRequestTopicPartition()
	rp.Offset = -1 // all records
	rt.Topic, rt.Partitions = topic, append(rt.Partitions, rp)
	req.Topics, req.TimeoutMillis = append(req.Topics, rt), 10_000
	res, err := req.RequestWith(within(30*time.Second), cl)
	if err != nil || res.Topics[0].Partitions[0].ErrorCode != 0 {
		t.Fatal(err, res)
	}
}

// recreateTopics deletes topics while a carrier runs, and creates them again with another partition count.
func recreateTopics(t *testing.T, cfg Config) {
	for _, row := range []struct {
		from, to int
		foreign  bool // the new topic has a foreign record before the carrier sees the topic
		want     int32
	}{
		{3, 1, false, 1},
		{6, 4, false, 4},
		{4, 6, false, 6},
		{3, 3, false, 3},
		{6, 3, true, 3}, // no key moves
		{3, 6, true, 3}, // as after adding partitions
		{6, 4, true, 0}, // neither count is possible
	} {
		t.Run(fmt.Sprintf("%d to %d, records %v", row.from, row.to, row.foreign), func(t *testing.T) {
			topic, brokers := strings.NewReplacer("/", "-", " ", "-", ",", "").Replace(t.Name()), cfg.Brokers
			createTopic(t, brokers, topic, row.from)
			c := newTestCluster(t, cfg)
			k := startCarrier(t, c, topic)
			k.addEvents(300)
			k.delivered()
			if k.sessions() > 0 {
				t.Fatalf("%d sessions ended", k.sessions())
			}
			if row.foreign {
				k.halt() // so that the carrier does not see the new topic without the record
				deleteTopic(t, brokers, topic)
				createTopic(t, brokers, topic, row.to)
				produceForeign(t, brokers, topic)
				k.start()
				k.addEvents(300)
			} else {
				deleteTopic(t, brokers, topic)
				k.addEvents(300) // while the topic is missing
				eventually(t, "the topic to be missed", k.knowsTopicMissing)
				createTopic(t, brokers, topic, row.to)
			}
			if row.want == 0 {
				eventually(t, "the reason", func() bool {
					why := k.probeError()
					return errors.Is(why, errFewerPartitions) && strings.Contains(why.Error(), "probe topic "+topic) && strings.Contains(why.Error(), "4 partitions, 6 wanted")
				})
				deleteForeign(t, brokers, topic)
				row.want = 4
			}
			k.delivered()
			k.addEvents(300)
			k.delivered()
			k.halt()
			if got := c.pinnedCount(topic); got != row.want {
				t.Errorf("hashed over %d partitions, want %d", got, row.want)
			}
			if n := testutil.ToFloat64(c.metrics.changed.WithLabelValues(topic)); int(n) != row.to-int(row.want) {
				t.Errorf("%v partitions more than are used, want %d", n, row.to-int(row.want))
			}
			k.check(brokers, row.want, 600)
		})
	}
}

func TestTopicCreatedAgain(t *testing.T) {
	recreateTopics(t, testConfig(newFake(t).ListenAddrs()...))
}

// A topic is recreated while events are in flight, each time with a count that divides the previous one. Delivery
// continues, and no key has records in two partitions, even if records were stored in the new topic before the
// session noticed.
func TestCreatedAgainUnderLoad(t *testing.T) {
	f := newFake(t)
	recreateUnderLoad(t, testConfig(f.ListenAddrs()...))
}

func recreateUnderLoad(t *testing.T, cfg Config) {
	const topic = "under-load"
	createTopic(t, cfg.Brokers, topic, 12)
	k := startCarrier(t, newTestCluster(t, cfg), topic)
	stop := make(chan struct{})
	var load sync.WaitGroup
	load.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				k.addEvents(20)
			}
		}
	})
	for _, count := range []int{6, 3, 1} {
		before := k.count()
		eventually(t, "records in flight", func() bool { return k.count() > before+200 })
		deleteTopic(t, cfg.Brokers, topic)
		createTopic(t, cfg.Brokers, topic, count)
		eventually(t, "the count of the new topic", func() bool { return k.c.pinnedCount(topic) == int32(count) })
		before = k.count()
		eventually(t, "delivery to go on", func() bool { return k.count() > before+200 })
		k.checkKeys(cfg.Brokers)
	}
	close(stop)
	load.Wait()
	k.delivered()
	k.halt()
	k.checkKeys(cfg.Brokers)
}

// After a look-up has found that the topic is missing, nothing is sent until a look-up finds a topic, which may be
// another one.
func TestNothingIsSentToMissingTopic(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(6, "orders"))
	p, l := openSession(t, newTestCluster(t, testConfig(f.ListenAddrs()...)))
	waitReady(t, p, "orders")
	sendMany(t, p, "orders", 1, 101)
	l.waitAcks(t, 100)
	var produced, looked atomic.Int32
	f.produces(func(*kmsg.ProduceRequest) (kmsg.Response, error, bool) { produced.Add(1); return nil, nil, false })
	f.deleteTopic(t, "orders")
	sendMany(t, p, "orders", 101, 201)
	eventually(t, "the topic to be missed", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.Missing("orders") && p.open == 0
	})
	f.ControlKey(int16(kmsg.Metadata), func(kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		looked.Add(1)
		return nil, nil, false
	})
	before := produced.Load()
	eventually(t, "further look-ups", func() bool { return looked.Load() > 5 })
	if n := produced.Load() - before; n > 0 {
		t.Errorf("%d requests were made", n)
	}
	f.createTopic(t, "orders", 6, nil)
	if err := l.failure(t); !errors.Is(err, errRecreated) || kindOf(err).reason != reasonPartitions {
		t.Errorf("the session ends with %v", err)
	}
	if n := f.PartitionInfo("orders", 0).HighWatermark; n != 0 {
		t.Errorf("%d records are in the new topic", n)
	}
}

// Without topic ids a recreated topic is not recognized, and fewer partitions are refused.
func TestFewerPartitionsWithoutIDs(t *testing.T) {
	versions := kversion.V3_7_0()
	versions.SetMaxKeyVersion(int16(kmsg.Metadata), 9)
	f := newFake(t, kfake.MaxVersions(versions), kfake.SeedTopics(3, "orders"))
	c := newTestCluster(t, testConfig(f.ListenAddrs()...))
	k := startCarrier(t, c, "orders")
	k.addEvents(100)
	k.delivered()
	f.deleteTopic(t, "orders")
	k.addEvents(100)
	eventually(t, "the topic to be missed", k.knowsTopicMissing)
	f.createTopic(t, "orders", 1, nil)
	eventually(t, "the reason", func() bool {
		why := k.probeError()
		return errors.Is(why, errFewerPartitions) && strings.Contains(why.Error(), "1 partitions, 3 wanted") && strings.Contains(why.Error(), "add partitions, or restart")
	})
	must(t, kafkatest.AddPartitions(t.Context(), f.ListenAddrs(), "orders", 3))
	k.delivered()
	k.halt()
	k.check(f.ListenAddrs(), 3, 100)
}

// TestPin tests pinCount without a network.
func TestPin(t *testing.T) {
	none, a, b, d := sarama.Uuid{}, sarama.Uuid{1}, sarama.Uuid{2}, sarama.Uuid{3}
	type look struct {
		found int32
		id    sarama.Uuid
		empty bool
		want  int32 // 0: refused
	}
	for name, row := range map[string]struct {
		configured int32
		looks      []look
	}{
		"it grows":                            {0, []look{{3, a, false, 3}, {5, a, true, 3}}},
		"it was created again":                {0, []look{{6, a, false, 6}, {4, b, false, 0}, {4, b, true, 4}, {4, b, false, 4}}},
		"and again as it was":                 {0, []look{{6, a, false, 6}, {4, b, false, 0}, {6, d, false, 6}}},
		"its count divides the old one":       {0, []look{{6, a, false, 6}, {2, b, false, 2}, {6, d, false, 2}, {6, d, true, 2}}},
		"ids are known later":                 {0, []look{{3, none, false, 3}, {3, a, false, 3}, {2, b, true, 2}}},
		"some brokers give no ids":            {0, []look{{3, a, false, 3}, {3, none, true, 3}, {2, none, true, 0}, {2, a, true, 0}}},
		"the count is configured":             {4, []look{{6, a, false, 4}, {2, b, true, 0}, {8, b, true, 4}, {4, d, true, 4}}},
		"it shrinks, which no topic does":     {0, []look{{3, a, false, 3}, {1, a, true, 0}}},
		"created again, empty, and then more": {0, []look{{1, a, false, 1}, {3, b, true, 3}, {3, b, false, 3}}},
	} {
		cfg := testConfig("localhost:1")
		if row.configured > 0 {
			cfg.Partitions = map[string]int32{"t": row.configured}
		}
		c := newTestCluster(t, cfg)
		for i, l := range row.looks {
			got, err := c.pinCount("t", l.found, l.id, l.empty)
			if got != l.want || errors.Is(err, errFewerPartitions) != (l.want == 0) {
				t.Errorf("%s: look %d: %d %v, want %d", name, i, got, err, l.want)
			}
		}
	}

	// A broker with old metadata returns the deleted topic, which is not a third topic.
	c := newTestCluster(t, testConfig("localhost:1"))
	old := &sarama.TopicMetadata{Name: "t", Uuid: a, Partitions: make([]*sarama.PartitionMetadata, 1)}
	if _, err := c.pinCount("t", 1, a, false); err != nil || c.isDeletedTopic(old) {
		t.Error(err, c.isDeletedTopic(old))
	}
	if _, err := c.pinCount("t", 3, b, false); err != nil || !c.isDeletedTopic(old) {
		t.Error(err, c.isDeletedTopic(old))
	}
	p := newProducer(c, Callbacks{}, brokerauth.Config{})
	p.control.brokers = nil
	if v := p.judge(t.Context(), &topic{name: "t"}, &sarama.TopicMetadata{Name: "t", Uuid: a, Partitions: []*sarama.PartitionMetadata{{}}}); v.ready || v.err != nil {
		t.Errorf("metadata of a topic that was deleted: %+v", v)
	}
}

// TestChangedTopicsShareASeries: a topic that has gained partitions is in the metric, also if the topics that share its
// label have gained none.
func TestChangedTopicsShareASeries(t *testing.T) {
	c := newTestCluster(t, testConfig("localhost:1"))
	for i := range maxTopicLabels {
		c.metrics.label(fmt.Sprint("t", i))
	}
	for _, l := range []struct {
		topic       string
		found, want int32
	}{{"a", 3, 0}, {"a", 5, 2}, {"b", 1, 2}, {"b", 2, 3}, {"a", 5, 3}, {"a", 3, 1}, {"c", 9, 1}} {
		if _, err := c.pinCount(l.topic, l.found, sarama.Uuid{}, false); err != nil {
			t.Error(err)
		}
		if got := testutil.ToFloat64(c.metrics.changed.WithLabelValues("other")); got != float64(l.want) {
			t.Errorf("%s has %d: %v, want %d", l.topic, l.found, got, l.want)
		}
	}
}

// pinnedCount returns the pinned partition count of a topic, or 0.
func (c *Cluster) pinnedCount(topic string) int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pins[topic]; p != nil {
		return p.count
	}
	return 0
}
