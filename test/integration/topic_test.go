package integration

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// A topic is missing: the daemon logs that and waits, with everything older delivered and nothing later confirmed. When
// the topic is created, delivery continues.
func TestTopicMissingThenMade(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{types: []string{"order", "late"}, missing: []string{"late"}})
	o.proves("F67", "a topic is missing when its first event arrives, and created later")
	o.sample()
	r := o.startStreaming()
	o.insert("order", "a", 1, 5)
	o.awaitArrived(patience)
	late := o.insert("late", "a", 1, 5)
	o.insert("order", "a", 6, 5)
	r.awaitReason("waiting_for_topic", o.topic("late"))
	code, body, err := r.get("/readyz")
	if err != nil || code != 503 {
		t.Errorf("/readyz: %d %s %v; want 503", code, body, err)
	}
	awaitStatusUpdates(t, r, 1)
	// How much earlier other transactions have written is unknown; the sampler is exact.
	if now := o.confirmed(); now >= late {
		t.Errorf("the slot confirms %s; the transaction that waits ends at %s", now, late)
	}
	o.makeTopic("late", 3, nil)
	o.awaitHealed()
	o.repeatsAtMost(o.verify(patience), 0, "nothing failed")
	if len(r.logged("state")) > 20 {
		t.Errorf("%d changes of state in the log", len(r.logged("state")))
	}
}

// A topic is missing for several times park_after: events delivered before are not delivered again.
func TestTopicMissingForLong(t *testing.T) {
	t.Parallel()
	const parkAfter = 3 * time.Second
	rnd := newRand(t)
	o := newOutbox(t, options{types: []string{"order", "late"}, missing: []string{"late"}})
	o.proves("F67", "a topic is missing for three times park_after, under load")
	o.sample()
	r := o.startStreaming("OUTBOXCDC_TUNING_PARK_AFTER="+parkAfter.String(), "OUTBOXCDC_TUNING_MAX_IN_FLIGHT_RECORDS=1000")
	w := o.write(load{rand: rnd})
	w.awaitCommits(100)
	o.insert("late", "a", 1, 5)
	w.awaitCommits(100)
	r.awaitReason("parked", o.topic("late")) // not because Kafka was slow
	had := r.reconnects("stalled")
	o.awaitSlotFree() // Postgres can be stopped without delay
	o.holdFault(2 * parkAfter)
	ended := r.reconnects("stalled")
	t.Logf("%v sessions ended because of the topic; states: %s", ended, states(r))
	if had == 0 || ended > had {
		t.Errorf("%v sessions ended until it was parked, and %v later, but a parked daemon waits", had, ended-had)
	}
	o.makeTopic("late", 3, nil)
	made := time.Now()
	r.awaitState("streaming", patience)
	t.Logf("streaming again %v after the topic was created", time.Since(made).Round(time.Millisecond))
	o.awaitHealed()
	w.stop()
	o.repeatsAtMost(o.verify(patience), 0, "no fault, and the process remembers the acknowledged events")
}

// states returns the states that the daemon went through.
func states(r *relay) string {
	var names []string
	for _, e := range r.logged("state") {
		names = append(names, fmt.Sprint(e["state"]))
	}
	return strings.Join(slices.Compact(names), " → ")
}

// A topic stays missing, and its events are poison after a while: later events arrive.
func TestTopicMissingIsPoison(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{types: []string{"order", "late"}, missing: []string{"late"}})
	r := o.startStreaming("OUTBOXCDC_POISON_POLICY=skip", "OUTBOXCDC_ROUTE_MISSING_TOPIC=3s")
	o.insert("order", "a", 1, 5)
	began := time.Now()
	o.insert("late", "a", 1, 4)
	o.exec(`DELETE FROM outbox WHERE aggregate_type = 'late'`) // what is left in the table has to arrive
	o.insert("order", "a", 6, 5)
	await(t, patience, "the daemon to wait for the topic", func() error { // it waits for 3 s only
		return errors.Join(waitFor(r.hasBeenIn("waiting_for_topic")), o.checkRelays())
	})
	r.awaitState("streaming", patience)
	if took := time.Since(began); took < 3*time.Second {
		t.Errorf("the wait was over after %s", took)
	}
	o.makeTopic("late", 3, nil) // it stays empty, which the test checks
	o.repeatsAtMost(o.verify(patience), 0, "nothing failed")
	m, err := r.metrics()
	must(t, err)
	if n := m[`outboxcdc_events_skipped_total{reason="poison"}`]; n != 4 {
		t.Errorf("%v events skipped, want 4", n)
	}
	if lines := r.logged("poison skipped"); len(lines) != 4 {
		t.Errorf("%d log lines about it, want 4", len(lines))
	}
}
