package relay

import (
	"errors"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/router"
)

// patient is a configuration in which events for a missing topic are poison after a while, and become dead letters in u.
func patient(after time.Duration) Config {
	cfg := dead(nil)
	cfg.MissingAfter = after
	return cfg
}

// TestMissingTopicIsPoison: once Kafka has had no such topic for so long, what is for it is poison, whether or not the
// server was left alone meanwhile; what comes later at once. Before that nothing is.
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
				if n := b.metric("events_dead_lettered_total", "topic=u", "reason=missing_topic"); n != 2 {
					b.Errorf("%v dead letters are counted", n)
				}
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

// TestDeniedTopicIsPoison: what Kafka says of a topic that is not there may be that the right is missing. It is waited for as long as
// one that is missing, also by a process that has delivered nothing yet; granted before, nothing is poison.
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

// TestMissingTopicsTogether: one patience for all. Whoever may insert could stop delivery for a day with a row for each of 300 topics that
// there are not. After a time without any, there is patience again.
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

// TestMissingTopicComes before the time is over: nothing is poison, also when it goes and comes once more.
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

// TestNobodyKnowsWhetherTopicIsMissing: while Kafka does not answer no event is poison for it.
func TestNobodyKnowsWhetherTopicIsMissing(t *testing.T) {
	bubble(t, patient(10*time.Second), func(b *bench) {
		b.start()
		b.pg.commit("a")
		b.sleep(3 * time.Second)
		b.kafka.edit(func() { b.kafka.probeErr, b.kafka.sick = errKafka, errors.New("no broker answers") })
		b.pg.commit("b@new")
		b.sleep(10 * time.Minute)
		b.kafka.edit(func() { b.kafka.probeErr, b.kafka.sick = nil, nil })
		b.kafka.create("new")
		b.sleep(time.Minute)
		b.wantStored("a@t", "b@new")
	})
}

// TestMissingTopicLongAgo: that a topic was missing long ago says nothing about the time since.
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

// TestMissingTopicStops: with the policy stop it is the end, and says which topic.
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
