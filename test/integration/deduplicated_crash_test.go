package integration

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// Ends of a deduplicating daemon, alone or together with its servers. A new process remembers nothing: it skips only
// events that it found in Kafka.

// noneInFlight is the reason why no row of this file may repeat anything.
const noneInFlight = "all requests under way had arrived when fence_wait was over"

// fence is long enough for requests of a killed process, buffered by the kernel, to arrive.
const fence = 500 * time.Millisecond

// skippedInKafka counts the events that a daemon found in Kafka and did not send.
func (r *relay) skippedInKafka() int {
	r.t.Helper()
	m, err := r.metrics()
	must(r.t, err)
	return int(m[`outboxcdc_events_skipped_total{reason="in_kafka"}`])
}

// kill is kill9 without reading the slot, for when the server is away.
func (r *relay) kill() {
	r.t.Helper()
	r.endExpected = true
	must(r.t, r.proc.Kill())
}

// F21, F23: Postgres goes down, and the daemon with it, shortly before or during the outage. The slot falls back to its
// last saved position, far before what was delivered.
func TestDeduplicatedPostgresDown(t *testing.T) {
	t.Parallel()
	rounds := fullOrShort(30, 3)
	rnd := newRand(t)
	o := newOutbox(t, options{pg: ownPostgres(t, defaultMajor, nil)})
	o.proves("F21 F23", "Postgres stopped (immediate, or fast) under load and a deduplicating daemon killed (-9) before or after it, %d times", rounds)
	o.sample()
	env := o.deduplicating(fence)
	w := o.write(load{rand: rnd})
	for round := range rounds {
		r := o.startStreaming(env...)
		w.awaitCommits(80 + rnd.Int64N(150))
		mode := pgtest.Immediate
		if round%3 == 2 {
			mode = pgtest.Fast
		}
		if before := round%2 == 0; before {
			r.kill()
		}
		ctx := testContext(t)
		_, err := o.pg.Stop(ctx, mode)
		must(t, err)
		r.kill()
		must(t, o.pg.StartAgain(ctx))
	}
	last := o.start(env...)
	o.awaitHealed()
	w.stop()
	v := o.verify(patience)
	o.repeatsAtMost(v, 0, noneInFlight)
	if last.skippedInKafka() == 0 {
		t.Error("the server sent again no event that Kafka has: this run proved nothing")
	}
	o.outcome("the last start skipped %d events that Kafka had", last.skippedInKafka())
}

// F03: SIGTERM under load. Nothing is repeated, and no start waits for records that might be under way.
func TestDeduplicatedTermUnderLoad(t *testing.T) {
	t.Parallel()
	rnd := newRand(t)
	o := newOutbox(t, options{})
	stops := fullOrShort(20, 3)
	o.proves("F03", "SIGTERM of a deduplicating daemon under load, %d times", stops)
	o.sample()
	env := append(o.deduplicating(2*patience), "OUTBOXCDC_TUNING_PARK_AFTER=5m") // must exceed fence_wait
	w := o.write(load{rand: rnd})
	for range stops {
		r := o.startStreaming(env...)
		w.awaitCommits(20 + rnd.Int64N(80))
		r.term()
	}
	last := o.start(env...)
	o.awaitHealed() // long before fence_wait
	w.stop()
	o.repeatsAtMost(o.verify(patience), 0, "a clean stop leaves no records in flight")
	if n := len(last.logged(msgUncleanEnd)); n > 0 {
		t.Error("a clean end was not recognised")
	}
}

// msgUncleanEnd is logged at the start if records may still be under way.
const msgUncleanEnd = "the previous session did not end cleanly: reading the ends of partitions after fence_wait, because its records may still arrive"

// F04: SIGTERM while Kafka is frozen with 50 records in flight, so that the drain is incomplete. Kafka stores them once
// it is thawed, and the next start finds them.
func TestDeduplicatedTermWhileKafkaIsFrozen(t *testing.T) {
	t.Parallel()
	k := ownKafka(t)
	o := newOutbox(t, options{kafka: k})
	o.proves("F04", "Kafka frozen with 50 records of a deduplicating daemon in flight, SIGTERM, shutdown_timeout 3s")
	o.sample()
	env := o.deduplicating(steadyFence)
	r := o.startStreaming(append(env, "OUTBOXCDC_SHUTDOWN_TIMEOUT=3s")...)
	o.insert("order", "a", 1, 1)
	o.awaitArrived(patience)
	must(t, k.Freeze(testContext(t)))
	o.insert("order", "a", 2, 50)
	await(t, patience, "50 events to be in flight", func() error {
		st, err := r.status()
		if err == nil && st.InFlight != 50 {
			err = fmt.Errorf("%d are", st.InFlight)
		}
		return err
	})
	r.signal(syscall.SIGTERM)
	is(t, "exit code", r.awaitExit(patience), 1)
	o.awaitSlotFree()
	must(t, k.Thaw())
	last := o.start(env...)
	o.awaitHealed()
	if n := len(last.logged(msgUncleanEnd)); n != 1 {
		t.Errorf("logged %d times that the end was not clean", n)
	}
	o.repeatsAtMost(o.verify(patience), 0, noneInFlight)
	o.outcome("exit 1; Kafka stored the records in flight when it was thawed, %d events were skipped", last.skippedInKafka())
	if last.skippedInKafka() == 0 {
		t.Error("Kafka had no record that was in flight: this run proved nothing")
	}
}

// F06, F05: the active instance is frozen for longer than wal_sender_timeout and another takes over. Once thawed, it
// sends nothing more under its old producer id: no record of that id comes after one of the other instance.
func TestDeduplicatedFrozenInstance(t *testing.T) {
	t.Parallel()
	timeout := fullOrShort(15*time.Second, 3*time.Second)
	rnd := newRand(t)
	o := newOutbox(t, options{})
	rounds := fullOrShort(3, 1)
	o.proves("F05 F06", "SIGSTOP of the active deduplicating instance, for less than wal_sender_timeout (%v) and until the standby delivers, SIGCONT, %d times", timeout, rounds)
	o.sample()
	env := append(o.deduplicating(fence), senderTimeout(timeout))
	// Behind a proxy, the end of the connection does not remove data that the server has sent: the thawed instance
	// finds events to send.
	_, proxied := o.proxied()
	first, second := o.startStreaming(append(env, proxied)...), o.start(append(env, proxied)...)
	w := o.write(load{rand: rnd, pause: 4 * time.Millisecond})
	for range rounds {
		first, second = freezeActive(t, first, second)
		time.Sleep(timeout / 4) // the duration is the fault
		must(t, first.proc.Thaw())
		w.awaitCommits(50)
		first, second = freezeActive(t, first, second) // the short freeze may have ended the session, if requests were open
		ended := first.sessionsEndedLogged()
		second.awaitState("streaming", patience)
		w.awaitCommits(100)
		must(t, first.proc.Thaw())
		await(t, patience, "the thawed instance to log the end of its session", func() error { return waitFor(first.sessionsEndedLogged() > ended) })
		w.awaitCommits(50)
	}
	o.awaitHealed()
	w.stop()
	o.repeatsAtMost(o.verify(patience), 0, "the records of the frozen instance had arrived before the other read the partitions, and it sent nothing later")
	o.checkSessionOrder()
}

// checkSessionOrder fails unless the sessions follow one another in every partition: no record of an earlier session
// comes after one of a later session. A process has one producer id, and each of its sessions an epoch; the order is
// that of their position records.
func (o *outbox) checkSessionOrder() {
	o.t.Helper()
	type session struct {
		producer int64
		epoch    int16
	}
	sessions := map[session]int{}
	for _, rec := range o.readRaw(o.positionTopic()) {
		s := session{rec.ProducerID, rec.ProducerEpoch}
		if _, known := sessions[s]; !known {
			sessions[s] = len(sessions)
		}
	}
	newest, wrong := map[string]int{}, 0
	for _, rec := range o.readRaw(o.follow.topics...) {
		s := session{rec.ProducerID, rec.ProducerEpoch}
		n, known := sessions[s]
		partition := fmt.Sprint(rec.Topic, rec.Partition)
		if !known {
			o.t.Fatalf("partition %s, offset %d: no position record was written as %+v", partition, rec.Offset, s)
		}
		if n < newest[partition] {
			wrong++
		}
		newest[partition] = max(newest[partition], n)
	}
	if wrong > 0 {
		o.t.Errorf("%d records of an earlier session come after one of a later", wrong)
	}
	o.outcome("%d sessions, told apart by producer id and epoch; none sent after the next had begun", len(sessions))
}

// readRaw reads all records of the topics, with all fields of a Kafka record, in the order of each partition.
func (o *outbox) readRaw(topics ...string) (all []*kgo.Record) {
	o.t.Helper()
	want := len(o.readRecords(topics...))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := kgo.NewClient(kgo.SeedBrokers(o.kafka.Brokers()...), kgo.ConsumeTopics(topics...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	must(o.t, err)
	defer c.Close()
	for len(all) < want {
		fetched := c.PollFetches(ctx)
		must(o.t, fetched.Err0())
		all = append(all, fetched.Records()...)
	}
	slices.SortStableFunc(all, func(a, b *kgo.Record) int { return int(a.Offset - b.Offset) })
	return all
}
