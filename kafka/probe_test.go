package kafka

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
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
	if err := p.Close(within(50 * time.Millisecond)); err == nil {
		t.Fatal("nothing left")
	}
	fault.Remove()
	if topics, _ := c.waitedFor(); len(topics) != 2 || topics[0] != "later" || topics[1] != "orders" {
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

// What metadata can say against a topic; the answers are made by hand.
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

// A leader that metadata names but nobody can reach is not there.
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
