package kafka

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// startSlowly answers the next look-ups of a topic with errors.
func (f *fake) startSlowly(topic string, codes ...*kerr.Error) {
	f.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		req := r.(*kmsg.MetadataRequest)
		if len(codes) == 0 || len(req.Topics) != 1 || *req.Topics[0].Topic != topic {
			return nil, nil, false
		}
		res := f.metadata(req, []int32{0}, 0, -1<<31)
		res.Topics[0].ErrorCode, res.Topics[0].Partitions = codes[0].Code, nil
		codes = codes[1:]
		return res, nil, true
	})
}

// TestEndsOfABrokerThatStarts: an answer that lacks a topic counts by itself. What has failed before is no sign that
// the topic is gone.
func TestEndsOfABrokerThatStarts(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "t", 1, nil)
	cfg := testConfig(f.ListenAddrs()...)
	id := earlierSession(t, cfg, event("t", "k", at(10)))
	f.startSlowly("t", kerr.LeaderNotAvailable, kerr.LeaderNotAvailable, kerr.LeaderNotAvailable, kerr.UnknownTopicOrPartition)
	searchIn(t, cfg, 10, []string{"t"}, id).read(t).want(t, at(10))
}

// TestBrokerKnowsNoBrokers: the look-up of the topic is repeated while the metadata of the broker has no brokers.
func TestBrokerKnowsNoBrokers(t *testing.T) {
	f := newFake(t)
	c := newPositionCluster(t, f)
	var times atomic.Int32
	f.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		return r.ResponseKind(), nil, times.Add(-1) >= 0
	})
	check := func(n int32) error {
		times.Store(n)
		return c.CheckPositionTopic(t.Context(), positions)
	}
	if err := check(missingTries - 1); err != nil {
		t.Error(err)
	}
	f.startSlowly(positions, kerr.UnknownTopicOrPartition) // the controls of kfake take turns, the newest first
	if err := check(missingTries - 1); err != nil {
		t.Error(err)
	}
	if err := check(missingTries); err == nil || !strings.Contains(err.Error(), "names no brokers") {
		t.Error(err)
	}
}

// TestMissingInARow: some answers in a row must lack a topic before it is missing, and so many again after Kafka was
// away: a broker that has just started has incomplete metadata.
func TestMissingInARow(t *testing.T) {
	f := newFake(t)
	cfg := testConfig(f.ListenAddrs()...)
	cfg.LookUpMin, cfg.LookUpMax, cfg.Refresh = time.Hour, time.Hour, time.Hour // the test looks up
	p, _ := openSession(t, newTestCluster(t, cfg))
	orders := p.topic("orders")
	eventually(t, "the first look-up", func() bool { return orders.absent.Load() == 1 })
	missingAfter := func(more int) bool {
		for range more {
			p.lookUpDue(false)
		}
		return p.Missing("orders")
	}
	if missingAfter(missingTries - 2) {
		t.Error("missing after too few answers")
	}
	f.loseAnswers.Store(1 << 20)
	if p.lookUpDue(false) {
		t.Error("an answer was not lost")
	}
	f.loseAnswers.Store(0)
	if missingAfter(missingTries - 1) {
		t.Error("missing after too few answers since Kafka was away")
	}
	if !missingAfter(1) {
		t.Error("not missing after enough answers")
	}
}

// While Kafka does not answer, Missing returns false.
func TestMissingNeedsAnAnswer(t *testing.T) {
	f := newFake(t)
	p, _ := openSession(t, newTestCluster(t, testConfig(f.ListenAddrs()...)))
	_, _ = p.Ready("nowhere")
	eventually(t, "the answer", func() bool { return p.Missing("nowhere") })
	f.Close()
	eventually(t, "doubt", func() bool { return !p.Missing("nowhere") })
	_ = p.Close(endedContext())
}
