package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// deduplicating creates the position topic of an outbox and returns the settings of a daemon that uses it.
func (o *outbox) deduplicating(fence time.Duration) []string {
	o.t.Helper()
	o.deduplicated = true
	topic := o.name + ".positions"
	must(o.t, kafkatest.CreateTopic(testContext(o.t), o.kafka.Brokers(), topic, 1, map[string]string{"cleanup.policy": "compact"}))
	return []string{"OUTBOXCDC_DELIVERY_MODE=deduplicated", "OUTBOXCDC_DELIVERY_POSITION_TOPIC=" + topic, "OUTBOXCDC_TUNING_FENCE_WAIT=" + fence.String()}
}

// F01, I12: a daemon is killed at random moments of a drain at full speed. Each start finds the records of the previous
// one in Kafka, and sends none of them again.
func TestDeduplicatedKill9(t *testing.T) {
	t.Parallel()
	kills := fullOrShort(1000, 12)
	rnd := newRand(t)
	o := newOutbox(t, options{pg: heavyPostgres(t), types: []string{"order", "payment"}, partitions: 6})
	o.proves("F01", "kill -9 of a deduplicating daemon at %d random moments of a drain", kills)
	o.sample()
	const fence = 500 * time.Millisecond
	env := o.deduplicating(fence)
	w := o.write(load{rand: rnd, types: []string{"order", "payment"}})
	for range kills {
		r := o.startStreaming(env...)
		time.Sleep(time.Duration(rnd.Int64N(int64(fence + 700*time.Millisecond)))) // the moment is random
		r.kill9()
	}
	last := o.start(env...)
	o.awaitHealed()
	w.stop()
	v := o.verify(patience)
	m, err := last.metrics()
	must(t, err)
	if v.Repeats > 0 {
		t.Errorf("%d repeats after %d kills: %s", v.Repeats, kills, v.repeatList())
	}
	o.outcome("repeats allowed: none")
	t.Logf("%d rows, %d repeats after %d kills; the last start skipped %.0f", w.rows.Load(), v.Repeats, kills, m[`outboxcdc_events_skipped_total{reason="in_kafka"}`])
}

// A clean end leaves nothing to wait for and nothing to skip: the next start delivers at once.
func TestDeduplicatedCleanEnd(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{types: []string{"order"}, partitions: 12})
	env := append(o.deduplicating(2*patience), "OUTBOXCDC_TUNING_PARK_AFTER=5m") // must exceed fence_wait
	r := o.startStreaming(env...)
	for i := range 50 {
		o.insert("order", fmt.Sprint("k", i), 1, 2)
	}
	o.awaitArrived(patience)
	r.term()
	for i := range 50 {
		o.insert("order", fmt.Sprint("k", i), 3, 2)
	}
	began := time.Now()
	r = o.startStreaming(env...)
	o.awaitArrived(patience) // long before fence_wait
	t.Logf("everything had arrived %s after the start", time.Since(began))
	if got := r.logged("the previous session did not end cleanly: reading the ends of partitions after fence_wait, because its records may still arrive"); len(got) > 0 {
		t.Error("a clean end was not recognised")
	}
	if v := o.verify(patience); v.Repeats != 0 {
		t.Errorf("%d repeats", v.Repeats)
	}
	st, body, err := r.get("/status")
	if err != nil || st != 200 || !strings.Contains(string(body), `"delivery": "deduplicated"`) {
		t.Errorf("status: %v %s", err, body)
	}
}

// F34: before the first event a missing position topic stops the daemon with the remedy. If the topic is deleted
// later, the daemon waits until it is created again, and repeats nothing.
func TestDeduplicatedWithoutTopic(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	o.proves("F34", "no position topic: at the start, and while the daemon runs")
	topic := o.positionTopic()
	env := []string{"OUTBOXCDC_DELIVERY_POSITION_TOPIC=" + topic}
	o.insert("order", "k", 1, 5)
	o.start(env...).awaitStop(patience, 78, "position topic "+topic+": it does not exist", "remedy: ", "outboxcdc setup apply")
	is(t, "records", o.follow.records(), 0)
	create := func() {
		if out, err := o.command(env, "setup", "apply"); err != nil {
			t.Fatalf("setup apply: %v\n%s", err, out)
		}
	}
	create()
	r := o.startStreaming(env...)
	o.awaitArrived(patience)
	must(t, kafkatest.DeleteTopic(testContext(t), o.kafka.Brokers(), topic))
	o.insert("order", "k", 6, 5)
	await(t, patience, "the daemon to wait for the topic", func() error {
		if _, body, err := r.get("/status"); err != nil || !strings.Contains(string(body), `"state": "waiting_for_position_topic"`) || !strings.Contains(string(body), "outboxcdc setup apply") {
			return fmt.Errorf("status: %w %s", err, body)
		}
		return nil
	})
	create()
	o.insert("order", "k", 11, 5)
	o.repeatsAtMost(o.verify(patience), 0, "a process repeats nothing that it has delivered")
	o.outcome("exit 78; later waiting_for_position_topic, and delivery resumes without a restart")
}
