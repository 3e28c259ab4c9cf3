package integration

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// A topic is deleted under load and recreated, first with one partition instead of three and later as before. Each time
// the daemon names the missing topic and then continues by itself. Delivered records are lost with the topic;
// everything else arrives, in order and without a gap, each key in one partition.
func TestTopicDeletedUnderLoad(t *testing.T) {
	t.Parallel()
	rnd := newRand(t)
	o := newOutbox(t, options{types: []string{"order", "gone"}})
	o.proves("F67", "a topic deleted under load and recreated with one partition instead of three; then deleted, and recreated as before")
	s := o.sample()
	s.testJudges = true // it would not find deleted records
	r := o.startStreaming(smallWindow, "OUTBOXCDC_TUNING_PARK_AFTER=3s")
	w := o.write(load{rand: rnd, types: []string{"order", "gone"}})
	var deleted []string // ids of its rows at the latest deletion
	for _, partitions := range []int{1, 3} {
		w.awaitCommits(200)
		must(t, kafkatest.DeleteTopic(testContext(t), o.kafka.Brokers(), o.topic("gone")))
		deleted = nil
		for _, row := range o.truth() {
			if row.Topic == o.topic("gone") {
				deleted = append(deleted, row.ID)
			}
		}
		await(t, patience, "the daemon to wait for the topic", func() error {
			if st, err := r.status(); err != nil || st.State != "parked" || !strings.Contains(st.Reason, o.topic("gone")) {
				return fmt.Errorf("%+v, %w", st, err)
			}
			return o.checkRelays()
		})
		o.makeTopic("gone", partitions, nil)
		o.awaitHealed()
		w.awaitCommits(50)
		o.awaitHealed()
		await(t, patience, fmt.Sprintf("records in %d partitions", partitions), func() error {
			there, err := kafkatest.ReadAll(testContext(t), o.kafka.Brokers(), o.topic("gone"))
			used := map[int32]bool{}
			for _, rec := range there {
				used[rec.Partition] = true
			}
			if err != nil || len(used) != partitions {
				return fmt.Errorf("%d records in %d partitions, %w", len(there), len(used), err)
			}
			return o.checkRelays()
		})
	}
	w.stop()
	o.awaitSettled()
	is(t, "log lines", len(r.logged("topic was recreated")), 2)
	if len(o.relays) != 1 {
		t.Error("not the same process")
	}
	o.outcome("%d sessions ended", r.sessionsEnded())
	v := o.judgeWithout(deleted)
	o.repeatsAtMost(v, r.sessionsEnded()*answerWindow, "a window of %d for each session that ended", answerWindow)
}

// judgeWithout judges the topics as [outbox.check] does, except that the given rows may be missing if they are the
// oldest of their key.
func (o *outbox) judgeWithout(deleted []string) *verdict {
	o.t.Helper()
	h := o.history()
	there := map[string]bool{}
	for _, r := range h.Records {
		id, _ := headerOf(r, "id")
		there[id] = true
	}
	gone := map[string]bool{}
	for _, id := range deleted {
		gone[id] = !there[id]
	}
	rows, oldest := h.Truth[:0], map[string]int{} // number of missing rows by key
	for _, r := range h.Truth {
		key := r.Topic + "/" + string(r.Key)
		if gone[r.ID] {
			oldest[key] = max(oldest[key], r.Seq)
			continue
		}
		rows = append(rows, r)
	}
	for i, r := range rows {
		rows[i].Seq -= oldest[r.Topic+"/"+string(r.Key)] // a row before a missing one gets a number below 1
	}
	lost := len(h.Truth) - len(rows)
	h.Truth = rows
	h.Acks = excludeIDs(h.Acks, gone)
	for i := range h.Commits {
		h.Commits[i].IDs = excludeIDs(h.Commits[i].IDs, gone)
	}
	o.outcome("%d events were delivered to the topic before it was deleted, and are lost with it", lost)
	v := h.judge()
	o.proof.setVerdict(v)
	if err := v.err(); err != nil {
		o.t.Fatalf("%v\n  OUTBOXCDC_TEST_HISTORY=%s judges it again", err, h.keep(o))
	}
	o.t.Logf("%s; %d events lost with the topic", v.String(), lost)
	return v
}

func excludeIDs(ids []string, gone map[string]bool) (left []string) {
	for _, id := range ids {
		if !gone[id] {
			left = append(left, id)
		}
	}
	return left
}

// A topic gains partitions under load: keys stay in their partitions, with a warning and a metric, until the daemon is
// restarted.
func TestPartitionsAdded(t *testing.T) {
	t.Parallel()
	rnd := newRand(t)
	o := newOutbox(t, options{partitions: 6})
	o.proves("F68", "6 partitions become 12 under load, pg_terminate_backend for a new session; the daemon is restarted later")
	o.sample()
	r := o.startStreaming(smallWindow)
	w := o.write(load{rand: rnd, keys: 60})
	w.awaitCommits(100)
	must(t, kafkatest.AddPartitions(testContext(t), o.kafka.Brokers(), o.topic("order"), 12))
	await(t, patience, "the warning", func() error {
		if len(r.logged("partitions were added to the topic; keys keep their partitions until the next restart")) != 1 {
			return errors.Join(errors.New("not logged, or more than once"), o.checkRelays())
		}
		return nil
	})
	m, err := r.metrics()
	must(t, err)
	if n := m[fmt.Sprintf(`outboxcdc_kafka_topic_partitions_changed{topic="%s"}`, o.topic("order"))]; n != 6 {
		t.Errorf("outboxcdc_kafka_topic_partitions_changed is %v, want 6", n)
	}
	w.awaitCommits(100)
	// A new session looks up the topic again.
	o.exec("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1", o.name)
	await(t, patience, "the session to end", func() error {
		if r.sessionsEnded() == 0 {
			return errors.New("not yet")
		}
		return o.checkRelays()
	})
	w.awaitCommits(100)
	w.stop()
	o.awaitHealed()
	o.verify(patience) // which checks that no key is in two partitions
	beyond := func() (n int) {
		for _, rec := range o.readAll() {
			if rec.Partition >= 6 {
				n++
			}
		}
		return n
	}
	if n := beyond(); n > 0 {
		t.Errorf("%d records in the new partitions before the restart", n)
	}
	r.term()
	o.startStreaming(smallWindow)
	for i := range 50 { // new keys: the old ones may move now
		o.insert("order", fmt.Sprintf("new-%d", i), 1, 2)
	}
	v := o.verify(patience)
	if n := beyond(); n == 0 {
		t.Error("no record in the new partitions after the restart")
	}
	o.repeatsAtMost(v, 0, "nothing failed")
}
