package relay

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/router"
)

// patient returns a configuration in which events for a missing topic become dead letters in u after a while.
func patient(after time.Duration) Config {
	cfg := dead(nil)
	cfg.MissingAfter = after
	return cfg
}

// TestMissingTopicIsPoison: events for a topic become poison when the topic has been missing for the configured time,
// parked or not. Later events for it are poison at once.
func TestMissingTopicIsPoison(t *testing.T) {
	for _, after := range []time.Duration{10 * time.Second, 5 * time.Minute} {
		t.Run(after.String(), func(t *testing.T) {
			bubble(t, patient(after), func(b *bench) {
				b.kafka.edit(func() { b.kafka.probeErr = errors.New("UNKNOWN_TOPIC_OR_PARTITION") })
				b.start()
				b.pg.commit("a", "b@new", "c")
				b.sleep(after - 2*time.Second)
				b.wantStored("a@t")
				b.sleep(min(time.Minute, after)) // probes of a parked relay are up to half a minute apart
				b.wantStored("a@t", "b@u", "c@t")
				x := b.pg.commit("d@new", "e")
				b.sleep(3 * time.Second)
				b.wantStored("a@t", "b@u", "c@t", "d@u", "e@t")
				b.counts(2, "events_dead_lettered_total", "topic=u", "reason=missing_topic")
				if got := b.pg.slotAt(); got < x.End {
					b.Errorf("the slot is at %s, before %s", got, x.End)
				}
				b.kafka.create("new")
				b.pg.commit("f@new")
				b.sleep(3 * time.Second)
				b.wantStored("a@t", "b@u", "c@t", "d@u", "e@t", "f@new")
			})
		})
	}
}

// TestDeniedTopicIsPoison: Kafka may deny access to a topic that is missing. The relay waits for such a topic as long
// as for a missing one, also if it has delivered nothing yet. If access is granted in time, nothing is poison.
func TestDeniedTopicIsPoison(t *testing.T) {
	for _, exists := range []bool{false, true} {
		bubble(t, patient(10*time.Second), func(b *bench) {
			b.kafka.edit(func() { b.kafka.denied = map[string]bool{"new": true}; b.kafka.topics["new"] = exists })
			b.start()
			b.pg.commit("a@new", "b")
			b.sleep(8 * time.Second)
			b.wantStored()
			b.sleep(4 * time.Second)
			b.wantStored("a@u", "b@t")
			b.pg.commit("c@new")
			b.sleep(2 * time.Second)
			b.wantStored("a@u", "b@t", "c@u")
			b.kafka.edit(func() { delete(b.kafka.denied, "new"); b.kafka.topics["new"] = true })
			b.pg.commit("d@new")
			b.sleep(2 * time.Second)
			b.wantStored("a@u", "b@t", "c@u", "d@new")
		})
	}
	bubble(t, patient(10*time.Second), func(b *bench) {
		b.kafka.edit(func() { b.kafka.denied = map[string]bool{"new": true} })
		b.start()
		b.pg.commit("a@new", "b")
		b.sleep(8 * time.Second)
		b.kafka.edit(func() { delete(b.kafka.denied, "new"); b.kafka.topics["new"] = true })
		b.sleep(20 * time.Second)
		b.wantStored("a@new", "b@t")
	})
}

// TestMissingTopicsTogether: the relay waits once for all missing topics. Otherwise rows for 300 missing topics could
// stop delivery for a day. After a time without missing topics, it waits again.
func TestMissingTopicsTogether(t *testing.T) {
	bubble(t, patient(5*time.Minute), func(b *bench) {
		b.start()
		b.pg.commit("a@new1", "b@new2", "c@new3", "d@new1", "e")
		b.sleep(5*time.Minute - time.Second)
		b.wantStored()
		b.sleep(30 * time.Second)
		b.wantStored("a@u", "b@u", "c@u", "d@u", "e@t")
		b.sleep(11 * time.Minute)
		b.pg.commit("f@new4")
		b.sleep(5*time.Minute - time.Second)
		b.wantStored("a@u", "b@u", "c@u", "d@u", "e@t")
		b.sleep(10 * time.Second)
		b.wantStored("a@u", "b@u", "c@u", "d@u", "e@t", "f@u")
	})
}

// TestMissingTopicComes: nothing is poison if the topic is created in time, also if it is deleted and created again.
func TestMissingTopicComes(t *testing.T) {
	bubble(t, patient(10*time.Second), func(b *bench) {
		b.start()
		for _, id := range []string{"a", "b"} {
			b.pg.commit(id + "@new")
			b.sleep(8 * time.Second)
			b.kafka.create("new")
			b.sleep(time.Second)
			b.kafka.edit(func() { delete(b.kafka.topics, "new") })
		}
		b.wantStored("a@new", "b@new")
	})
}

// TestNobodyKnowsWhetherTopicIsMissing: while Kafka does not answer, no topic counts as missing.
func TestNobodyKnowsWhetherTopicIsMissing(t *testing.T) {
	bubble(t, patient(10*time.Second), func(b *bench) {
		b.start()
		b.pg.commit("a")
		b.sleep(3 * time.Second)
		b.kafka.edit(func() { b.kafka.probeErr, b.kafka.healthErr = errKafka, errors.New("no broker answers") })
		b.pg.commit("b@new")
		b.sleep(10 * time.Minute)
		b.kafka.edit(func() { b.kafka.probeErr, b.kafka.healthErr = nil, nil })
		b.kafka.create("new")
		b.sleep(time.Minute)
		b.wantStored("a@t", "b@new")
	})
}

// TestMissingTopicLongAgo: a topic that was missing long ago may have existed since.
func TestMissingTopicLongAgo(t *testing.T) {
	bubble(t, patient(10*time.Second), func(b *bench) {
		b.start()
		b.pg.commit("a@new")
		b.sleep(15 * time.Second)
		b.wantStored("a@u")
		b.sleep(time.Hour)
		b.pg.commit("b@new")
		b.sleep(8 * time.Second)
		b.wantStored("a@u")
		b.sleep(5 * time.Second)
		b.wantStored("a@u", "b@u")
	})
}

// TestMissingTopicStops: with the policy stop the relay ends, and names the topic.
func TestMissingTopicStops(t *testing.T) {
	cfg := testConfig()
	cfg.MissingAfter = 10 * time.Second
	bubble(t, cfg, func(b *bench) {
		b.start()
		b.pg.commit("a", "b@new")
		b.sleep(15 * time.Second)
		if p := asPoison(b.ends(Poison, time.Second).Err); p == nil || p.Cause != router.MissingTopic || p.Topic != "new" {
			b.Errorf("ended with %v", p)
		}
		b.wantStored("a@t")
	})
}

// TestReasonOfAMissingTopic: what Kafka answers when the topic is to be created is the reason of the state, and in
// the dead letter's message.
func TestReasonOfAMissingTopic(t *testing.T) {
	bubble(t, patient(10*time.Second), func(b *bench) {
		b.start()
		b.pg.commit("a", "b@new.topic")
		b.sleep(6 * time.Second)
		b.want(WaitingForTopic)
		if st := b.relay.Status(); st.Reason != "looking for topic new.topic: topic new.topic collides" {
			b.Errorf("the reason is %q", st.Reason)
		}
		b.sleep(10 * time.Second)
		if line := b.log.line("missing_topic"); !strings.Contains(line, "topic new.topic collides") {
			b.Errorf("the poison event does not say why: %s", line)
		}
		if st := b.relay.Status(); strings.Contains(st.Reason, "collides") {
			b.Errorf("the reason stays: %q", st.Reason)
		}
	})
}
