package kafka

import (
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// TestNoEventInPositionTopic: events and position records have the same producer id and separate sequence numbers. If
// they were in one partition, the broker would acknowledge an event as a duplicate of a position record, and not
// store it.
func TestNoEventInPositionTopic(t *testing.T) {
	f := newFake(t)
	p, l := openSession(t, newPositionCluster(t, f))
	must(t, save(t, p, checkpoint.PositionRecord{Slot: "s"}))
	if ready, err := p.Ready(positions); ready || !errors.Is(err, errPositionsOnly) {
		t.Errorf("ready %v, error %v", ready, err)
	}
	if err := p.Send(record(positions, "k", "an event"), 1); err == nil {
		t.Error("sent")
	}
	must(t, save(t, p, checkpoint.PositionRecord{Slot: "s"}))
	if got := values(f.read(t, positions, 2)); len(got) != 2 || len(l.acks()) != 0 {
		t.Errorf("%d acks, the topic has %q", len(l.acks()), got)
	}
}

// TestCheckPositionTopicJustMade: the leader of a new topic may not know the topic yet. It is asked a limited number
// of times.
func TestCheckPositionTopicJustMade(t *testing.T) {
	for count, want := range map[int]bool{1: true, missingTries - 1: true, -1: false} {
		f := newFake(t)
		c := newPositionCluster(t, f)
		f.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Err: kerr.NotLeaderForPartition, Count: count})
		if err := c.CheckPositionTopic(within(30*time.Second), c.cfg.PositionTopic); (err == nil) != want {
			t.Errorf("%d times: %v", count, err)
		}
	}
}
