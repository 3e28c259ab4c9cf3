package kafka

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

func TestProbe(t *testing.T) {
	ctx := context.Background()
	f := newFake(t, kfake.NumBrokers(3), kfake.SeedTopics(2, "orders", "idle"))
	c := newTestCluster(t, testConfig(f.ListenAddrs()...))
	if err := c.Probe(ctx); err != nil {
		t.Fatalf("nothing is waited for: %v", err)
	}
	p, _ := openSession(t, c)
	waitReady(t, p, "orders", "idle")
	fault := f.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotEnoughReplicas, Count: -1})
	sendMany(t, p, "orders", 1, 11)
	_, _ = p.Ready("later")
	eventually(t, "the look-up", func() bool { return len(p.Waiting()) == 1 })
	if err := finish(within(50*time.Millisecond), p); err == nil {
		t.Fatal("nothing left")
	}
	fault.Remove()
	if topics, _ := c.lastWaits(); len(topics) != 2 || topics[0] != "later" || topics[1] != "orders" {
		t.Fatalf("waited for %v", topics)
	}
	if err := c.Probe(ctx); err == nil || !strings.Contains(err.Error(), "later") {
		t.Errorf("missing topic: %v", err)
	}
	f.createTopic(t, "later", 1, nil)
	if err := c.Probe(ctx); err != nil {
		t.Errorf("all there: %v", err)
	}
}

// While a position record cannot be stored, a probe fails with the reason. It neither creates nor pins the position
// topic.
func TestProbePositionTopic(t *testing.T) {
	f := newFake(t)
	cfg := withPositions(testConfig(f.ListenAddrs()...))
	cfg.Create = &Create{Partitions: 3, ReplicationFactor: 1}
	c := newTestCluster(t, cfg)
	if _, err := c.CreateTopic(t.Context(), positions, PositionTopic(1)); err != nil {
		t.Fatal(err)
	}
	p, _ := openSession(t, c)
	fault := f.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotEnoughReplicas, Count: -1})
	if err := p.Healthy(); err != nil {
		t.Error(err)
	}
	p.SavePosition(checkpoint.PositionRecord{Slot: "s"}, func(error) {})
	eventually(t, "the reason", func() bool {
		err := p.Healthy()
		return err != nil && strings.Contains(err.Error(), "write the position record to topic "+positions) && errors.Is(err, sarama.ErrNotEnoughReplicas)
	})
	must(t, finish(within(50*time.Millisecond), p))
	fault.Remove()
	if err := c.Probe(t.Context()); err != nil {
		t.Error(err)
	}
	if len(c.pins) > 0 {
		t.Errorf("pinned %v", c.pins)
	}
	f.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		res := f.metadata(r.(*kmsg.MetadataRequest), []int32{0}, -1, 1<<3|1<<4)
		for i := range res.Topics {
			res.Topics[i].Partitions = res.Topics[i].Partitions[:1]
		}
		return res, nil, true
	})
	if err := c.Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "probe position topic "+positions) || !strings.Contains(err.Error(), "no leader") {
		t.Errorf("without a leader: %v", err)
	}
}

// A probe names a position topic that cannot be used, with the remedy, and does not create it.
func TestProbeWithoutPositionTopic(t *testing.T) {
	f := newFake(t)
	cfg := withPositions(testConfig(f.ListenAddrs()...))
	cfg.Create = &Create{Partitions: 3, ReplicationFactor: 1}
	c := newTestCluster(t, cfg)
	var u *checkpoint.Unusable
	if err := c.Probe(t.Context()); !errors.As(err, &u) || !strings.Contains(err.Error(), "setup apply") {
		t.Error(err)
	}
	if err := c.CheckPositionTopic(t.Context(), positions); err == nil {
		t.Error("it was made by asking")
	}
}

// Fake metadata with each problem of a topic.
func TestProbeMetadata(t *testing.T) {
	ctx := context.Background()
	f := newFake(t, kfake.NumBrokers(3), kfake.SeedTopics(2, "orders"))
	f.setConfig(t, "orders", "min.insync.replicas", "2")
	c := newTestCluster(t, testConfig(f.ListenAddrs()...))
	c.waiting = map[string]struct{}{"orders": {}}
	var isr []int32
	var leader, ops int32
	f.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		return f.metadata(r.(*kmsg.MetadataRequest), isr, leader, ops), nil, true
	})
	for _, row := range []struct {
		name   string
		isr    []int32
		leader int32
		ops    int32
		want   string
	}{
		{"fine", []int32{0, 1}, 0, 1 << 4, ""},
		{"replicas", []int32{0}, 0, 1 << 4, "replicas in sync"},
		{"leader", []int32{0, 1}, -1, 1 << 4, "no leader"},
		{"right", []int32{0, 1}, 0, 1 << 8, "not allowed"},
	} {
		isr, leader, ops = row.isr, row.leader, row.ops
		err := c.Probe(ctx)
		if row.want == "" && err != nil || row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)) {
			t.Errorf("%s: %v", row.name, err)
		}
	}
}

// A probe fails if a leader in metadata cannot be reached.
func TestProbeReachesLeaders(t *testing.T) {
	f := newFake(t, kfake.NumBrokers(2), kfake.SeedTopics(2, "orders"))
	f.addrs[1] = hostPort{"127.0.0.1", 1}
	c := newTestCluster(t, testConfig(f.ListenAddrs()[0]))
	c.waiting = map[string]struct{}{"orders": {}}
	f.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		return f.metadata(r.(*kmsg.MetadataRequest), []int32{0, 1}, 1, 1<<4), nil, true
	})
	if err := c.Probe(context.Background()); err == nil || !strings.Contains(err.Error(), "reach broker 1 at 127.0.0.1:1") {
		t.Errorf("probe: %v", err)
	}
}
