package integration

import (
	"bytes"
	"slices"
	"testing"
)

// With route.topic {aggregate_type} a writer chooses the topic. An event for the position topic is poison: it would be
// acknowledged without being stored, or be read as a position record, because its key can be the slot's name.
func TestEventForThePositionTopic(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{types: []string{"order", "dead"}})
	o.proves("F71", "events routed to the position topic of a deduplicating daemon, with the key of its records")
	env := append(o.deduplicating(fence), "OUTBOXCDC_ROUTE_TOPIC={aggregate_type}", "OUTBOXCDC_POISON_TOPIC="+o.topic("dead"))
	letters := append(slices.Clone(env), "OUTBOXCDC_POISON_POLICY=dead_letter")
	r := o.startStreaming(letters...)
	end := o.insert(o.positionTopic(), o.name, 1, 3)
	o.awaitConfirmed(end, patience)
	dead := o.readRecords(o.topic("dead"))
	for _, rec := range dead {
		cause, _ := headerOf(rec, "outboxcdc-error")
		topic, _ := headerOf(rec, "outboxcdc-topic")
		if cause != "illegal_topic" || topic != "" {
			t.Errorf("a dead letter because of %s, for topic %s", cause, topic)
		}
	}
	if len(dead) != 3 {
		t.Errorf("%d dead letters, want 3", len(dead))
	}
	r.kill9()
	r = o.startStreaming(letters...)
	end = o.insert(o.topic("order"), "a", 1, 1)
	o.awaitConfirmed(end, patience)
	for _, rec := range o.readRecords(o.positionTopic()) {
		if isMark := string(rec.Key) == o.name+"/reader" && len(rec.Value) == 0; !isMark && !bytes.Contains(rec.Value, []byte(`"generation":`)) {
			t.Errorf("in the position topic: %.100s", rec.Value)
		}
	}
	r.term()

	o.insert(o.positionTopic(), o.name, 4, 1)
	r = o.start(append(env, stopAtPoison)...)
	is(t, "exit code", r.awaitExit(patience), 65)
	says(t, lastLine(r.log), "illegal_topic", "delivery.position_topic")
	r = o.start(append(env, "OUTBOXCDC_ROUTE_TOPIC="+o.positionTopic())...)
	is(t, "exit code", r.awaitExit(patience), 78)
	o.outcome("dead letters, exit 65 with poison.policy stop; exit 78 if a setting names the topic")
}
