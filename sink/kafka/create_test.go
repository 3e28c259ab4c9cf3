package kafka

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A session and a probe create a missing topic with the settings. A refused creation is repeated later, and its
// reason is reported.
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
			return v.reason
		}
		return ""
	}
	eventually(t, "the refusal", func() bool {
		return strings.Contains(why(), "could not be created") && strings.Contains(why(), "grant the daemon's user Create")
	})
	eventually(t, "enough answers that there is none", func() bool { return p.Missing("orders") })
	time.Sleep(200 * time.Millisecond) // for some look-ups
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
	// A deleted topic is recreated with the pinned partition count, also by a probe.
	must(t, finish(within(time.Second), p))
	f.deleteTopic(t, "orders")
	c.cfg.Create.Partitions = 2
	c.waiting = map[string]struct{}{"orders": {}, "probed": {}}
	eventually(t, "the probe", func() bool { return c.Probe(context.Background()) == nil })
	mu.Lock()
	defer mu.Unlock()
	if !slices.Contains(asked, "probed") {
		t.Errorf("asked for %v", asked)
	}
	if n := c.pins["orders"].lastCount; n != 4 || c.pins["probed"].count != 2 {
		t.Errorf("%d partitions, %v", n, c.pins["probed"])
	}
}

// Without the setting no topic is created.
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

// Topics that are requested while another one is created are created with one request. Each has one log line, and can
// be used without waiting for LookUpMin.
func TestCreatedTopicsCanBeUsedAtOnce(t *testing.T) {
	f := newFake(t, kfake.NumBrokers(1))
	begun, release := make(chan struct{}), make(chan struct{})
	var requests atomic.Int32
	f.ControlKey(int16(kmsg.CreateTopics), func(kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		if requests.Add(1) == 1 {
			close(begun)
			f.SleepControl(func() { <-release })
		}
		return nil, nil, false
	})
	log := &logged{}
	cfg := testConfig(f.ListenAddrs()...)
	cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
	cfg.Create = &Create{Partitions: 1, ReplicationFactor: 1}
	cfg.LookUpMin, cfg.LookUpMax, cfg.Refresh = time.Minute, time.Minute, time.Minute
	p, _ := openSession(t, newTestCluster(t, cfg))
	_, _ = p.Ready("a")
	<-begun
	_, _ = p.Ready("b")
	_, _ = p.Ready("c")
	close(release)
	waitReady(t, p, "a", "b", "c")
	if n := requests.Load(); n != 2 {
		t.Errorf("%d requests, want one for a and one for b and c", n)
	}
	if log.lines("topic created") != 3 || log.lines("waiting for topic") != 0 || log.lines("can be used") != 0 {
		t.Errorf("want a line for each topic:\n%s", &log.buf)
	}
}

// A topic that Kafka has created and does not show in metadata is not created again at each look-up, and the log has
// the reason for waiting.
func TestCreatedTopicIsNotShown(t *testing.T) {
	f := newFake(t, kfake.NumBrokers(1))
	var requests atomic.Int32
	f.ControlKey(int16(kmsg.CreateTopics), func(r kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		n := requests.Add(1)
		if n > 2 {
			return nil, nil, false
		}
		res := r.ResponseKind().(*kmsg.CreateTopicsResponse)
		one := kmsg.NewCreateTopicsResponseTopic()
		one.Topic = "a"
		if n == 2 {
			one.ErrorCode = kerr.TopicAlreadyExists.Code
		}
		res.Topics = append(res.Topics, one)
		return res, nil, true
	})
	log := &logged{}
	cfg := testConfig(f.ListenAddrs()...)
	cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
	cfg.Create = &Create{Partitions: 1, ReplicationFactor: 1}
	p, _ := openSession(t, newTestCluster(t, cfg))
	waitReady(t, p, "a")
	if n := requests.Load(); n != 3 {
		t.Errorf("%d requests to create it, want 3", n)
	}
	if log.lines("waiting for topic", "it exists, but the broker that was asked does not know it yet") != 1 {
		t.Errorf("want one line with the reason:\n%s", &log.buf)
	}
}

// TestLetterTopic: the dead-letter topic is created so that it keeps letters, by CreateTopic and by a session.
func TestLetterTopic(t *testing.T) {
	f := newFake(t, kfake.NumBrokers(1))
	cfg := testConfig(f.ListenAddrs()...)
	cfg.Create = &Create{Partitions: 2, ReplicationFactor: 1, Config: map[string]string{"max.message.bytes": "3000000", "retention.ms": "1000"}}
	cfg.LetterTopic = "session"
	c := newTestCluster(t, cfg)
	for _, want := range []bool{true, false} {
		if exists, err := c.Exists(t.Context(), "command"); err != nil || exists == want {
			t.Errorf("exists: %v, %v", exists, err)
		}
		if created, err := c.CreateTopic(t.Context(), "command", LetterTopic(cfg.Create)); err != nil || created != want {
			t.Errorf("created: %v, %v", created, err)
		}
	}
	p, _ := openSession(t, c)
	waitReady(t, p, "session", "other")
	ctl, done, err := c.temporaryControl(t.Context())
	must(t, err)
	defer done()
	kept := map[string]string{"cleanup.policy": "delete", "retention.ms": "-1", "max.message.bytes": "6000000"}
	names := slices.Sorted(maps.Keys(kept))
	settings, err := ctl.describe(t.Context(), []string{"command", "session", "other"}, names)
	must(t, err)
	for topic, want := range map[string]map[string]string{
		"command": kept, "session": kept, "other": {"cleanup.policy": "delete", "retention.ms": "1000", "max.message.bytes": "3000000"},
	} {
		if !maps.Equal(settings[topic], want) {
			t.Errorf("%s has %v, want %v", topic, settings[topic], want)
		}
	}
	if got := strings.Join(LetterTopic(&Create{}).Pairs(), " "); got != "cleanup.policy=delete max.message.bytes=2097176 retention.ms=-1" {
		t.Error(got)
	}
}
