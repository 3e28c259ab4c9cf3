package integration

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// Faults in single answers of Kafka. A real broker cannot be made to give them, so each of these tests uses a kfake of
// its own with three brokers.

// answerWindow is tuning.max_in_flight.records in these tests: the end of a session may repeat that many.
const answerWindow = 200

var smallWindow = fmt.Sprintf("OUTBOXCDC_TUNING_MAX_IN_FLIGHT_RECORDS=%d", answerWindow)

func faultyKafka(t *testing.T) *kafkatest.Fake {
	t.Helper()
	return kafkatest.FakeForTest(t, kafkatest.FakeOptions{Brokers: 3})
}

// inject starts faults, until heal.
func inject(t *testing.T, k *kafkatest.Fake, faults ...kafkatest.Fault) {
	t.Helper()
	must(t, k.Inject(testContext(t), faults...))
}

// heal ends the faults and returns how often they happened.
func heal(t *testing.T, k *kafkatest.Fake) (hits int) {
	t.Helper()
	must(t, k.Heal(testContext(t)))
	return hitsOf(t, k)
}

func hitsOf(t *testing.T, k *kafkatest.Fake) int {
	t.Helper()
	n, err := k.Hits(testContext(t))
	must(t, err)
	return n
}

// holdFault keeps a fault for d and checks that the daemon stays alive.
func (o *outbox) holdFault(d time.Duration) {
	o.t.Helper()
	end := time.Now().Add(d)
	await(o.t, d+patience, "the fault to have lasted", func() error {
		if left := time.Until(end); left > 0 {
			return errors.Join(o.checkRelays(), errors.New("not yet"))
		}
		return nil
	})
}

// sessionsEnded counts the sessions of the daemon that failed.
func (r *relay) sessionsEnded() (n int) {
	r.t.Helper()
	m, err := r.metrics()
	must(r.t, err)
	for name, v := range m {
		if strings.HasPrefix(name, "outboxcdc_replication_reconnects_total{") {
			n += int(v)
		}
	}
	return n
}

// One batch fails repeatedly with an error that no retry inside the session fixes: each time the session ends, with
// later batches in flight, and the next one delivers everything. There is no gap, and at most one window of repeats
// each time.
func TestOneBatchFails(t *testing.T) {
	t.Parallel()
	rounds := fullOrShort(15, 4)
	codes := []*kerr.Error{
		kerr.UnknownServerError, kerr.PolicyViolation, kerr.OutOfOrderSequenceNumber, kerr.InvalidProducerEpoch,
		kerr.UnknownProducerID, kerr.InvalidRequiredAcks, kerr.InvalidRecord, kerr.MessageTooLarge, kerr.InvalidTimestamp,
	}
	const blamed = 6 // the later codes blame the records
	rnd := newRand(t)
	k := faultyKafka(t)
	o := newOutbox(t, options{kafka: k})
	o.proves("F59", "one batch refused for good, %d times, by a random one of %d errors", rounds, len(codes))
	o.sample()
	r := o.startStreaming(smallWindow)
	w := o.write(load{rand: rnd})
	for i := range rounds {
		w.awaitCommits(20 + rnd.Int64N(100))
		which := rnd.IntN(len(codes))
		code := codes[which]
		had := r.sessionsEnded()                                                            // on a slow machine a lease can end sessions, too
		inject(t, k, kafkatest.Fault{Answer: code.Code, Count: 1, Topic: o.topic("order")}) // not a position record, whose failure does not end a session
		await(t, patience, "the session to end because of "+code.Message, func() error {
			if hits, ended := hitsOf(t, k), r.sessionsEnded(); hits != i+1 || ended <= had {
				return errors.Join(o.checkRelays(), fmt.Errorf("%d batches failed, %d sessions ended, %d before", hits, ended, had))
			}
			return nil
		})
		if which >= blamed {
			o.awaitHealed() // the daemon sends records singly now; a record refused by itself would stop it, rightly
		}
	}
	o.awaitHealed()
	w.stop()
	ended := r.sessionsEnded()
	v := o.verify(patience)
	o.repeatsAtMost(v, ended*answerWindow, "a window of %d for each of %d sessions that ended", answerWindow, ended)
}

// Kafka has too few replicas for a long time. Nothing is stored and nothing lost, memory is flat, and events delivered
// before are not delivered again, although each session that tries ends.
func TestNotEnoughReplicas(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		partitions []int32
		park       time.Duration
		env        []string
	}{
		{"waits", nil, fullOrShort(120*time.Second, 30*time.Second), []string{steady}}, // exceeds the fault: the session lasts as long as sarama retries
		{"parks", nil, fullOrShort(5*time.Second, 2*time.Second), nil},                 // shorter than it; kfake's metadata shows no missing replicas, so the daemon retries
		{"one partition", []int32{0}, fullOrShort(5*time.Second, 2*time.Second), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			lasts := fullOrShort(90*time.Second, 8*time.Second)
			rnd := newRand(t)
			k := faultyKafka(t)
			o := newOutbox(t, options{kafka: k})
			o.proves("F60", "%s answers NOT_ENOUGH_REPLICAS for %v (10 min scaled, factor %.1f), park_after %v",
				map[bool]string{true: "every partition", false: "one of 3 partitions"}[c.partitions == nil], lasts, 600/lasts.Seconds(), c.park)
			o.sample()
			r := o.startStreaming(append(c.env, smallWindow, "OUTBOXCDC_TUNING_PARK_AFTER="+c.park.String())...)
			w := o.write(load{rand: rnd, pause: 30 * time.Millisecond})
			w.awaitCommits(50)
			before, began := o.follow.records(), time.Now()
			inject(t, k, kafkatest.Fault{Answer: kerr.NotEnoughReplicas.Code, Partitions: c.partitions})
			o.holdFault(lasts)
			if hits := heal(t, k); hits == 0 {
				t.Error("the fault has never happened")
			}
			o.awaitHealed()
			took := time.Since(began)
			w.stop()
			ended := r.sessionsEnded()
			o.outcome("%d sessions ended", ended)
			t.Logf("%d records before the fault; %d sessions ended; states: %s", before, ended, states(r))
			// One that reads its position record ends after half of wal_sender_timeout, because Kafka takes no mark.
			if most := int(took/min(c.park, 15*time.Second/2)) + 2; ended > most {
				t.Errorf("%d sessions ended in %v with park_after %v, more than %d", ended, took, c.park, most)
			}
			v := o.verify(patience)
			switch {
			case ended == 0:
				o.repeatsAtMost(v, 0, "no session ended")
			case c.partitions == nil:
				o.repeatsAtMost(v, answerWindow, "one window: no partition accepts records meanwhile")
			default:
				o.repeatsAtMost(v, ended*answerWindow, "a window for each session: the probe cannot see why (docs/adr/0005)")
			}
		})
	}
}

// Batches are appended, but Kafka answers with a time-out, or too few replicas after the append, or the answer is lost
// with its connection. All of that is retried inside the session, which causes no repeats.
func TestStoredButNotAcknowledged(t *testing.T) {
	t.Parallel()
	lasts := fullOrShort(30*time.Second, 4*time.Second)
	rnd := newRand(t)
	k := faultyKafka(t)
	o := newOutbox(t, options{kafka: k})
	o.proves("F61", "35 %% of the batches are appended and answered NOT_ENOUGH_REPLICAS_AFTER_APPEND, REQUEST_TIMED_OUT or not at all, for %v", lasts)
	o.sample()
	r := o.startStreaming(smallWindow, steady)
	w := o.write(load{rand: rnd})
	w.awaitCommits(20)
	inject(
		t, k,
		kafkatest.Fault{Answer: kerr.NotEnoughReplicasAfterAppend.Code, Share: 0.15, Seed: rnd.Uint64()},
		kafkatest.Fault{Answer: kerr.RequestTimedOut.Code, Share: 0.15, Seed: rnd.Uint64()},
		kafkatest.Fault{LoseAnswers: true, Share: 0.1, Seed: rnd.Uint64()},
	)
	o.holdFault(lasts)
	await(t, patience, "20 batches to be affected", func() error {
		if n := hitsOf(t, k); n < 20 {
			return fmt.Errorf("%d are", n)
		}
		return o.checkRelays()
	})
	r.awaitRetry()
	hits := heal(t, k)
	o.outcome("%d batches", hits)
	o.awaitHealed()
	w.stop()
	v := o.verify(patience)
	o.repeatsAtMost(v, 0, "a retry inside a session causes no repeats")
	r.noErrorSurfaced()
}

// Leaders move all the time, and brokers answer that they do not lead and do not know the leader: sarama finds it, and
// no error reaches us.
func TestLeadersMove(t *testing.T) {
	t.Parallel()
	lasts := fullOrShort(60*time.Second, 5*time.Second)
	rnd := newRand(t)
	k := faultyKafka(t)
	o := newOutbox(t, options{kafka: k, partitions: 6})
	o.proves("F62", "leaders of 6 partitions moved every 50 ms, NOT_LEADER_OR_FOLLOWER and LEADER_NOT_AVAILABLE at random, for %v", lasts)
	o.sample()
	r := o.startStreaming(smallWindow, steady)
	w := o.write(load{rand: rnd})
	w.awaitCommits(20)
	inject(
		t, k,
		kafkatest.Fault{MoveLeaders: 50 * time.Millisecond, Topic: o.topic("order"), Seed: rnd.Uint64()},
		kafkatest.Fault{Answer: kerr.NotLeaderForPartition.Code, Share: 0.05, Seed: rnd.Uint64()},
		kafkatest.Fault{Answer: kerr.LeaderNotAvailable.Code, Share: 0.05, Seed: rnd.Uint64(), Requests: []kmsg.Key{kmsg.Metadata}},
	)
	o.holdFault(lasts)
	r.awaitRetry()
	hits := heal(t, k)
	o.outcome("%d moves and answers", hits)
	o.awaitHealed()
	w.stop()
	v := o.verify(patience)
	o.repeatsAtMost(v, 0, "a retry inside a session causes no repeats")
	r.noErrorSurfaced()
}

// noErrorSurfaced checks that the daemon had one session, in which Kafka refused nothing permanently.
func (r *relay) noErrorSurfaced() {
	r.t.Helper()
	is(r.t, "sessions that ended", r.sessionsEnded(), 0)
	m, err := r.metrics()
	must(r.t, err)
	for name, v := range m {
		if strings.HasPrefix(name, "outboxcdc_kafka_produce_errors_total{") && v > 0 {
			r.t.Errorf("%s is %v", name, v)
		}
	}
}

// awaitRetry waits until a batch has been sent again: the test proves nothing before.
func (r *relay) awaitRetry() {
	r.t.Helper()
	await(r.t, patience, "a batch to be sent again", func() error {
		m, err := r.metrics()
		return errors.Join(err, waitFor(m["outboxcdc_kafka_produce_retries_total"] > 0), r.o.checkRelays())
	})
}

// All of these faults at random, with connections cut before and after a batch is stored, and late answers.
func TestRandomKafkaFaults(t *testing.T) {
	t.Parallel()
	lasts := fullOrShort(90*time.Second, 8*time.Second)
	rnd := newRand(t)
	k := faultyKafka(t)
	o := newOutbox(t, options{kafka: k})
	o.proves("F63", "a random mix of all that F59 to F62 do, and of cut connections, for %v (10 min scaled, factor %.1f)", lasts, 600/lasts.Seconds())
	o.sample()
	r := o.startStreaming(smallWindow)
	w := o.write(load{rand: rnd})
	w.awaitCommits(20)
	faults := []kafkatest.Fault{
		{Answer: kerr.NotEnoughReplicasAfterAppend.Code, Share: 0.05},
		{Answer: kerr.RequestTimedOut.Code, Share: 0.05},
		{Answer: kerr.NotEnoughReplicas.Code, Share: 0.05},
		{Answer: kerr.NotLeaderForPartition.Code, Share: 0.05},
		{Answer: kerr.UnknownServerError.Code, Share: 0.002},
		{Answer: kerr.LeaderNotAvailable.Code, Share: 0.05, Requests: []kmsg.Key{kmsg.Metadata}},
		{MoveLeaders: 200 * time.Millisecond, Topic: o.topic("order")},
		{LoseRequests: true, Share: 0.02},
		{LoseAnswers: true, Share: 0.02},
		{LoseAnswers: true, Share: 0.02, Requests: []kmsg.Key{kmsg.Metadata, kmsg.InitProducerID, kmsg.ApiVersions}},
		{Delay: 200 * time.Millisecond, Share: 0.02},
	}
	for i := range faults {
		faults[i].Seed = rnd.Uint64()
	}
	inject(t, k, faults...)
	o.holdFault(lasts)
	hits := heal(t, k)
	o.awaitHealed()
	w.stop()
	ended := r.sessionsEnded()
	o.outcome("%d faults, %d sessions ended", hits, ended)
	v := o.verify(patience)
	o.repeatsAtMost(v, ended*answerWindow, "a window of %d for each session that ended", answerWindow)
}
