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
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Somebody consumes with the group, or another holds it: it cannot be held; and while it is, nobody else gets in.
func TestDeadLettersHold(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(1, "dead"))
	c := newTestCluster(t, testConfig(f.ListenAddrs()...))
	f.parked(t, &kgo.Record{Topic: "dead", Value: []byte("a")}, &kgo.Record{Topic: "dead", Value: []byte("b")})
	consume := func() *kgo.Client {
		cl, err := kgo.NewClient(kgo.SeedBrokers(f.ListenAddrs()...), kgo.ClientID("somebody"), kgo.ConsumerGroup("care"), kgo.ConsumeTopics("dead"), kgo.DisableAutoCommit())
		if err != nil {
			t.Fatal(err)
		}
		return cl
	}
	refused := func(l *DeadLetters, by string) {
		t.Helper()
		if err := l.Hold(context.Background()); err == nil || !strings.Contains(err.Error(), "in use by "+by+" at 127.0.0.1") {
			t.Errorf("%v, want one that %s has the group", err, by)
		}
	}
	cl := consume()
	defer cl.Close()
	cl.PollFetches(within(10 * time.Second))
	l := openLetters(t, c)
	refused(l, "somebody")
	if err := l.Commit(); err == nil {
		t.Error("noted without a hold")
	}
	cl.Close()

	first, second := openLetters(t, c), openLetters(t, c)
	held(t, first)
	refused(second, c.cfg.ClientID)
	cl = consume()
	defer cl.Close()
	if err := cl.PollFetches(within(time.Second)).Err(); err == nil {
		t.Error("somebody consumes with a group that is held")
	}
	cl.Close()
	f.parked(t, &kgo.Record{Topic: "dead", Value: []byte("c")})
	deal(t, openAfter(t, c, first), "0:0", "0:2")
	held(t, second) // what was noted since it was opened is not forgotten
	wantPlaces(t, second, false, "0:1", "0:2!")
	if err := second.Commit(); err != nil {
		t.Error(err)
	}
	wantPlaces(t, openLetters(t, c), false, "0:1", "0:2!")
}

// openAfter opens the letters when another has given up the group.
func openAfter(t testing.TB, c *Cluster, other *DeadLetters) *DeadLetters {
	t.Helper()
	other.Close()
	return openLetters(t, c)
}

// The coordinator has forgotten us: nothing may be done any more, and nothing can be noted. So it is when it was silent for
// so long that it may have.
func TestDeadLettersHoldLost(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(1, "dead"))
	c := newTestCluster(t, testConfig(f.ListenAddrs()...))
	l := openLetters(t, c)
	if err := l.Held(); err == nil {
		t.Error("held by who has only looked")
	}
	held(t, l)
	asked := l.hold.heard.Load()
	if l.heartbeat(); l.Held() != nil || l.hold.heard.Load() <= asked {
		t.Errorf("%v %v", l.Held(), l.hold.heard.Load())
	}
	fault := f.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Err: kerr.CoordinatorNotAvailable, Count: -1})
	if l.heartbeat(); l.Held() != nil {
		t.Error(l.Held())
	}
	fault.Remove()
	l.dialer.mu.Lock()
	for c := range l.dialer.conns {
		_ = c.Conn.Close() // by somebody else
	}
	l.dialer.mu.Unlock()
	asked = l.hold.heard.Load()
	l.heartbeat()
	if l.heartbeat(); l.hold.heard.Load() <= asked {
		t.Error("a connection that was lost is not opened again")
	}
	l.hold.heard.Add(-int64(holdFor))
	if l.Held() == nil {
		t.Error("held although the coordinator was silent for longer than it waits for us")
	}
	if l.heartbeat(); l.Held() != nil {
		t.Error(l.Held())
	}
	for _, err := range []*kerr.Error{kerr.UnknownMemberID, kerr.IllegalGeneration} {
		fault := f.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat, kmsg.OffsetCommit}, Err: err, Count: -1})
		if l.heartbeat(); !errors.Is(l.Held(), errHoldLost) {
			t.Errorf("%v: %v", err, l.Held())
		}
		if err := l.Commit(); !errors.Is(err, errHoldLost) {
			t.Error(err)
		}
		fault.Remove()
		l.heartbeat()
	}
}

// A coordinator that loads the group's offsets, or is another one by now, is asked again.
func TestDeadLettersCoordinator(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(1, "dead"))
	c := newTestCluster(t, testConfig(f.ListenAddrs()...))
	f.parked(t, &kgo.Record{Topic: "dead", Value: []byte("v")})
	deal(t, openLetters(t, c), "0:0")
	for _, key := range []kmsg.Key{kmsg.OffsetFetch, kmsg.OffsetCommit, kmsg.DescribeGroups, kmsg.JoinGroup, kmsg.SyncGroup} {
		for _, err := range []*kerr.Error{kerr.CoordinatorLoadInProgress, kerr.NotCoordinator} {
			fault := f.Fault(kfake.Fault{Keys: []kmsg.Key{key}, Err: err, Count: 1})
			l := openLetters(t, c)
			wantPlaces(t, l, false)
			held(t, l)
			if err := l.Commit(); err != nil {
				t.Error(err)
			}
			l.Close()
			if n := fault.Hits(); n != 1 {
				t.Errorf("%v was answered %d times to %v", err, n, key)
			}
			fault.Remove()
		}
	}
}

// A right that is missing is said to be one.
func TestDeadLettersRight(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(1, "dead"))
	c := newTestCluster(t, testConfig(f.ListenAddrs()...))
	l := openLetters(t, c)
	held(t, l)
	f.ControlKey(int16(kmsg.OffsetCommit), func(r kmsg.Request) (kmsg.Response, error, bool) {
		res := r.ResponseKind().(*kmsg.OffsetCommitResponse)
		rt := kmsg.NewOffsetCommitResponseTopic()
		rp := kmsg.NewOffsetCommitResponseTopicPartition()
		rp.ErrorCode = int16(sarama.ErrGroupAuthorizationFailed)
		rt.Topic, rt.Partitions = "dead", append(rt.Partitions, rp)
		res.Topics = append(res.Topics, rt)
		return res, nil, true
	})
	var right interface{ MissingRight() bool }
	if err := l.Commit(); !errors.As(err, &right) || !right.MissingRight() {
		t.Errorf("%v", err)
	}
}
