package integration

import (
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// The broker is killed under load and restarted with its data: the same process delivers everything.
func TestBrokerKilledUnderLoad(t *testing.T) {
	skipUnlessProving(t) // TestBrokerAwayForLong and TestDeduplicatedBrokersKilled do it once
	t.Parallel()
	const rounds = 4
	rnd := newRand(t)
	k := breakableKafka(t)
	o := newOutbox(t, options{kafka: k})
	o.proves("F64", "the only broker killed -9 %d times under load, restarted with its data a moment later", rounds)
	o.sample()
	w := o.write(load{rand: rnd})
	r := o.startStreaming(smallWindow)
	for range rounds {
		w.awaitCommits(50 + rnd.Int64N(200))
		must(t, k.Kill())
		w.awaitCommits(20 + rnd.Int64N(100))
		must(t, k.StartAgain(testContext(t)))
		o.awaitHealed()
	}
	w.stop()
	ended := r.sessionsEnded()
	v := o.verify(patience)
	o.outcome("%d sessions ended", ended)
	o.repeatsAtMost(v, ended*answerWindow, "a window of %d for each session that ended", answerWindow)
	if len(o.relays) != 1 {
		t.Error("not the same process")
	}
}

// The broker is away for longer than park_after: the daemon disconnects from Postgres, its memory is flat, and delivery
// resumes soon after the broker is back. Waiting causes no repeats.
func TestBrokerAwayForLong(t *testing.T) {
	t.Parallel()
	away, park := fullOrShort(90*time.Second, 8*time.Second), fullOrShort(4500*time.Millisecond, 2*time.Second)
	rnd := newRand(t)
	k := breakableKafka(t)
	o := newOutbox(t, options{kafka: k})
	o.proves("F64", "the only broker killed -9 under load and away for %v (10 min scaled, factor %.1f), park_after %v", away, 600/away.Seconds(), park)
	o.sample()
	w := o.write(load{rand: rnd, pause: 50 * time.Millisecond}) // few enough rows to be delivered in recoverIn on any machine
	r := o.startStreaming(smallWindow, "OUTBOXCDC_TUNING_PARK_AFTER="+park.String())
	w.awaitCommits(100)
	must(t, k.Kill())
	gone := time.Now()
	r.awaitState("parked", patience)
	o.awaitSlotFree()
	peak, had := r.peakMemory(), r.sessionsEnded()
	o.holdFault(away - time.Since(gone))
	ended := r.sessionsEnded()
	must(t, k.StartAgain(testContext(t)))
	o.awaitHealed()
	w.stop()
	v := o.verify(patience)
	grown := r.peakMemory() - peak
	o.outcome("%d sessions ended while it was away, memory grew by %d MiB from parked to the end", ended, grown>>20)
	if ended > had {
		t.Errorf("%d sessions ended after the first %d, but a parked daemon waits; states: %s", ended-had, had, states(r))
	}
	if grown > 32<<20 {
		t.Errorf("memory grew by %d MiB", grown>>20)
	}
	o.repeatsAtMost(v, answerWindow, "one window: the records in flight when the broker was killed")
}

// The broker is frozen, with its connections open, for longer than a request may take: requests in flight are sent
// again by the same session, which causes no repeats.
func TestBrokerFrozen(t *testing.T) {
	t.Parallel()
	frozen := fullOrShort(45*time.Second, 5*time.Second)
	rnd := newRand(t)
	k := breakableKafka(t)
	o := newOutbox(t, options{kafka: k})
	o.proves("F65", "the only broker stopped by SIGSTOP for %v under load, park_after above that", frozen)
	o.sample()
	w := o.write(load{rand: rnd})
	r := o.startStreaming(smallWindow, "OUTBOXCDC_TUNING_PARK_AFTER=2m", steady)
	w.awaitCommits(100)
	must(t, k.Freeze(testContext(t)))
	o.holdFault(frozen)
	must(t, k.Thaw())
	o.awaitHealed()
	w.stop()
	v := o.verify(patience)
	is(t, "sessions that ended", r.sessionsEnded(), 0)
	o.repeatsAtMost(v, 0, "a retry inside a session causes no repeats")
	if len(o.relays) != 1 {
		t.Error("not the same process")
	}
}

// A topic requires more in-sync replicas than it has, for a while. A broker of Kafka 4 caps the number at the
// replication factor, one of Kafka 3 refuses to append; either way nothing is lost or repeated.
func TestMinInsyncReplicasAboveReplicas(t *testing.T) {
	t.Parallel()
	lasts := fullOrShort(30*time.Second, 4*time.Second)
	rnd := newRand(t)
	o := newOutbox(t, options{})
	o.proves("F60", "min.insync.replicas of a topic with one replica set to 2 for %v, and back to 1", lasts)
	o.sample()
	r := o.startStreaming(smallWindow, steady)
	w := o.write(load{rand: rnd})
	w.awaitCommits(50)
	set := func(n string) {
		must(t, kafkatest.SetTopicConfig(testContext(t), o.kafka.Brokers(), o.topic("order"), map[string]string{"min.insync.replicas": n}))
	}
	set("2")
	o.holdFault(lasts / 2)
	before := o.follow.records()
	o.holdFault(lasts / 2)
	o.outcome("%d records accepted in the second half of it", o.follow.records()-before)
	set("1")
	o.awaitHealed()
	w.stop()
	v := o.verify(patience)
	is(t, "sessions that ended", r.sessionsEnded(), 0)
	o.repeatsAtMost(v, 0, "no session ended")
}
