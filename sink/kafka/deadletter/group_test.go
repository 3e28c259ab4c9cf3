package deadletter

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

	"github.com/outboxcdc/outboxcdc/sink/kafka"
)

// A group that a consumer uses or another process holds cannot be held. While it is held, no other member is admitted.
func TestHold(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(1, "dead"))
	c := newCluster(t, testConfig(f))
	f.produce(t, &kgo.Record{Topic: "dead", Value: []byte("a")}, &kgo.Record{Topic: "dead", Value: []byte("b")})
	consume := func() *kgo.Client {
		return f.client(t, kgo.ClientID("somebody"), kgo.ConsumerGroup("care"), kgo.ConsumeTopics("dead"), kgo.DisableAutoCommit())
	}
	refused := func(l *Topic, by string) {
		t.Helper()
		if err := l.Hold(t.Context()); err == nil || !strings.Contains(err.Error(), "in use by "+by+" at 127.0.0.1") {
			t.Errorf("%v, want one that %s has the group", err, by)
		}
	}
	cl := consume()
	defer cl.Close()
	cl.PollFetches(within(t, 10*time.Second))
	l := openLetters(t, c)
	refused(l, "somebody")
	if err := l.Commit(); err == nil {
		t.Error("committed without a hold")
	}
	cl.Close()

	first, second := openLetters(t, c), openLetters(t, c)
	mustHold(t, first)
	refused(second, clientID)
	cl = consume()
	defer cl.Close()
	if err := cl.PollFetches(within(t, time.Second)).Err(); err == nil {
		t.Error("a consumer was admitted to a group that is held")
	}
	cl.Close()
	f.produce(t, &kgo.Record{Topic: "dead", Value: []byte("c")})
	markHandled(t, openAfter(t, c, first), "0:0", "0:2")
	mustHold(t, second) // offsets that were committed after it was opened are kept
	wantPlaces(t, second, false, "0:1", "0:2!")
	if err := second.Commit(); err != nil {
		t.Error(err)
	}
	wantPlaces(t, openLetters(t, c), false, "0:1", "0:2!")
}

// openAfter opens the topic after another process has left the group.
func openAfter(t testing.TB, c *kafka.Cluster, other *Topic) *Topic {
	t.Helper()
	other.Close()
	return openLetters(t, c)
}

// After the coordinator has removed us, or did not answer for so long that it may have, Held returns an error and
// Commit fails.
func TestHoldLost(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(1, "dead"))
	c := newCluster(t, testConfig(f))
	l := openLetters(t, c)
	if err := l.Held(); err == nil {
		t.Error("held without Hold")
	}
	mustHold(t, l)
	asked := l.hold.lastAgreed.Load()
	if l.heartbeat(); l.Held() != nil || l.hold.lastAgreed.Load() <= asked {
		t.Errorf("%v %v", l.Held(), l.hold.lastAgreed.Load())
	}
	fault := f.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Err: kerr.CoordinatorNotAvailable, Count: -1})
	if l.heartbeat(); l.Held() != nil {
		t.Error(l.Held())
	}
	fault.Remove()
	f.hangUp()
	asked = l.hold.lastAgreed.Load()
	l.heartbeat()
	if l.heartbeat(); l.hold.lastAgreed.Load() <= asked {
		t.Error("a connection that was lost is not opened again")
	}
	l.hold.lastAgreed.Add(-int64(holdFor))
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

// What is under way ends when another process may have the group, with the reason, and not before.
func TestWhileHeld(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(1, "dead"))
	l := openLetters(t, newCluster(t, testConfig(f)))
	ended := func(what string, ctx context.Context, want error) {
		t.Helper()
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: it goes on", what)
		}
		if err := context.Cause(ctx); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	ctx, done := l.WhileHeld(t.Context())
	defer done()
	ended("without a hold", ctx, errHoldLost)
	mustHold(t, l)
	for what, end := range map[string]func(){
		"the coordinator refuses": func() { l.hold.lastAgreed.Store(0) },
		"no answer for long":      func() { l.hold.lastAgreed.Add(-int64(holdFor - holdMargin)) },
	} {
		l.heartbeat()
		ctx, done := l.WhileHeld(t.Context())
		defer done()
		select {
		case <-ctx.Done():
			t.Errorf("%s: ended while the group is held: %v", what, context.Cause(ctx))
		case <-time.After(3 * heldEvery):
		}
		end()
		ended(what, ctx, errHoldLost)
	}
	l.heartbeat()
	parent, cancel := context.WithCancel(t.Context())
	ctx, done = l.WhileHeld(parent)
	defer done()
	cancel()
	ended("the caller ends", ctx, context.Canceled)
	ctx, done = l.WhileHeld(t.Context())
	done()
	ended("done", ctx, context.Canceled)
}

// A request is repeated while the coordinator loads the group's offsets, and after it has moved to another broker.
func TestCoordinator(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(1, "dead"))
	c := newCluster(t, testConfig(f))
	f.produce(t, &kgo.Record{Topic: "dead", Value: []byte("v")})
	markHandled(t, openLetters(t, c), "0:0")
	for _, key := range []kmsg.Key{kmsg.OffsetFetch, kmsg.OffsetCommit, kmsg.DescribeGroups, kmsg.JoinGroup, kmsg.SyncGroup} {
		for _, err := range []*kerr.Error{kerr.CoordinatorLoadInProgress, kerr.NotCoordinator} {
			fault := f.Fault(kfake.Fault{Keys: []kmsg.Key{key}, Err: err, Count: 1})
			l := openLetters(t, c)
			wantPlaces(t, l, false)
			mustHold(t, l)
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

// The error of a missing permission says so.
func TestMissingPermission(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(1, "dead"))
	c := newCluster(t, testConfig(f))
	l := openLetters(t, c)
	mustHold(t, l)
	f.ControlKey(int16(kmsg.OffsetCommit), func(r kmsg.Request) (kmsg.Response, error, bool) {
		res := r.ResponseKind().(*kmsg.OffsetCommitResponse)
		rt := kmsg.NewOffsetCommitResponseTopic()
		rp := kmsg.NewOffsetCommitResponseTopicPartition()
		rp.ErrorCode = int16(sarama.ErrGroupAuthorizationFailed)
		rt.Topic, rt.Partitions = "dead", append(rt.Partitions, rp)
		res.Topics = append(res.Topics, rt)
		return res, nil, true
	})
	var missing interface{ PermissionDenied() bool }
	if err := l.Commit(); !errors.As(err, &missing) || !missing.PermissionDenied() {
		t.Errorf("%v", err)
	}
}
