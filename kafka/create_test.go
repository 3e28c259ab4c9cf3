package kafka

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A missing topic is made with the settings, by a session and by a probe; a refusal is waited out with its reason, and
// asked for again.
func TestCreate(t *testing.T) {
	f := newFake(t, kfake.NumBrokers(3))
	var mu sync.Mutex
	var asked []string
	var config []kmsg.CreateTopicsRequestTopicConfig
	refuse := true
	f.ControlKey(int16(kmsg.CreateTopics), func(r kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		mu.Lock()
		defer mu.Unlock()
		req := r.(*kmsg.CreateTopicsRequest)
		res := req.ResponseKind().(*kmsg.CreateTopicsResponse)
		for _, rt := range req.Topics {
			asked, config = append(asked, rt.Topic), rt.Configs
			if refuse {
				rr := kmsg.NewCreateTopicsResponseTopic()
				rr.Topic, rr.ErrorCode = rt.Topic, kerr.TopicAuthorizationFailed.Code
				res.Topics = append(res.Topics, rr)
			}
		}
		return res, nil, refuse
	})
	cfg := testConfig(f.ListenAddrs()...)
	cfg.Create = &Create{Partitions: 4, ReplicationFactor: 2, Config: map[string]string{"max.message.bytes": "2000000"}}
	cfg.Partitions = map[string]int32{"counted": 5}
	cfg.Refresh = 300 * time.Millisecond
	c := newTestCluster(t, cfg)
	p, _ := openSession(t, c)
	if _, err := p.Ready("orders"); err != nil {
		t.Fatal(err)
	}
	why := func() string {
		if v := p.topic("orders").verdict.Load(); v != nil {
			return v.why
		}
		return ""
	}
	eventually(t, "the refusal", func() bool {
		return strings.Contains(why(), "could not be made") && strings.Contains(why(), "grant the daemon's user Create")
	})
	if !p.Missing("orders") {
		t.Error("a topic that may not be made is not missing")
	}
	time.Sleep(200 * time.Millisecond) // look-ups go on meanwhile
	mu.Lock()
	if n := len(asked); n > 3 {
		t.Errorf("asked %d times within Refresh", n)
	}
	refuse = false
	mu.Unlock()
	waitReady(t, p, "orders", "counted")
	for topic, want := range map[string]int{"orders": 4, "counted": 5} {
		if n := len(p.byName[topic].parts); n != want {
			t.Errorf("%s has %d partitions, want %d", topic, n, want)
		}
	}
	if p.byName["orders"].limit != 2_000_000 || len(config) != 1 {
		t.Errorf("limit %d, config %v", p.byName["orders"].limit, config)
	}
	// Deleted and missing again, it comes back with the partitions that its keys are hashed over, also from a probe.
	if err := finish(within(time.Second), p); err != nil {
		t.Fatal(err)
	}
	f.deleteTopic(t, "orders")
	c.cfg.Create.Partitions = 2
	c.waiting = map[string]struct{}{"orders": {}, "probed": {}}
	eventually(t, "the probe", func() bool { return c.Probe(context.Background()) == nil })
	mu.Lock()
	defer mu.Unlock()
	if !slices.Contains(asked, "probed") {
		t.Errorf("asked for %v", asked)
	}
	if n := c.pins["orders"].found; n != 4 || c.pins["probed"].count != 2 {
		t.Errorf("%d partitions, %v", n, c.pins["probed"])
	}
}

// Without the setting nothing is made.
func TestCreateIsOffByDefault(t *testing.T) {
	f := newFake(t, kfake.NumBrokers(1))
	f.ControlKey(int16(kmsg.CreateTopics), func(kmsg.Request) (kmsg.Response, error, bool) {
		t.Error("asked for a topic to be made")
		return nil, nil, false
	})
	p, _ := openSession(t, newTestCluster(t, testConfig(f.ListenAddrs()...)))
	_, _ = p.Ready("orders")
	eventually(t, "the look-up", func() bool { return p.Missing("orders") })
}
