package integration

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// Changes between an unclean end and the next start: topics, and settings that decide where an event goes.

// F01, F68, I12: a daemon is killed at random moments under load. Between some of the starts a topic gains a partition,
// or the routing, the topics' largest record or the poison policy changes. Nothing is missing and every partition keeps
// the order of its keys from one change to the next. An event is in Kafka twice only if a change of settings sent it
// elsewhere before any position record named its first topic.
func TestDeduplicatedKill9WhileSettingsChange(t *testing.T) {
	t.Parallel()
	kills := fullOrShort(1000, 10)
	rnd := newRand(t)
	c := newChangingOutbox(t, rnd)
	c.limit(true)
	c.proves("F01 F68", "kill -9 of a deduplicating daemon at %d random moments; between the starts topics grow, routing, record size limits and poison policy change", kills)
	c.sample().testJudges = true // judged at the end, when the first record of each event is known
	w := c.write(load{rand: rnd, types: []string{"order", "payment"}, large: 5000, pause: fullOrShort(20*time.Millisecond, 8*time.Millisecond)})
	for range kills {
		r := c.startStreaming(c.settings()...)
		lives := fence + 700*time.Millisecond
		if rnd.IntN(5) == 0 {
			lives += 2 * time.Second // position records then name the topics used
		}
		time.Sleep(time.Duration(rnd.Int64N(int64(lives)))) // the moment is random
		r.kill9()
		c.noteDropped(r)
		for range 1 + rnd.IntN(2) {
			c.change(c.draw())
		}
	}
	if c.narrow {
		c.change("limit")
	}
	if c.skip {
		c.change("policy")
	}
	c.start(c.settings()...)
	c.awaitHealed()
	w.stop()
	c.judge()
}

// changingOutbox is an outbox whose topics and settings change.
type changingOutbox struct {
	*outbox
	rnd          *rand.Rand
	env          []string // of deduplicated delivery
	deck         []string // changes to be drawn
	changeCounts map[string]int
	changeLog    changeLog

	elsewhere bool // all events go to one topic
	narrow    bool // the topics refuse large records
	skip      bool // poison is dropped, not sent to the dead-letter topic
}

func newChangingOutbox(t *testing.T, rnd *rand.Rand) *changingOutbox {
	const partitions = 3
	o := newOutbox(t, options{pg: heavyPostgres(t), types: []string{"order", "payment", "elsewhere", "dead"}, partitions: partitions})
	c := &changingOutbox{outbox: o, rnd: rnd, env: o.deduplicating(fence), changeCounts: map[string]int{}}
	c.changeLog = changeLog{Growth: map[string][2]int{}, Dropped: map[string]bool{}, Dead: o.topic("dead")}
	for _, topic := range o.follow.topics {
		c.changeLog.Growth[topic] = [2]int{partitions, partitions}
	}
	return c
}

// settings returns the settings of the next daemon.
func (c *changingOutbox) settings() []string {
	// Compressed, no record would be too large.
	env := append(slices.Clone(c.env), "OUTBOXCDC_POISON_POLICY=dead_letter", "OUTBOXCDC_POISON_TOPIC="+c.topic("dead"), "OUTBOXCDC_KAFKA_COMPRESSION=none")
	if c.skip {
		env = append(env, "OUTBOXCDC_POISON_POLICY=skip")
	}
	if c.elsewhere {
		env = append(env, "OUTBOXCDC_ROUTE_TOPIC="+c.topic("elsewhere"))
	}
	return env
}

// draw returns the next change. Every kind occurs once before any occurs again.
func (c *changingOutbox) draw() string {
	if len(c.deck) == 0 {
		c.deck = []string{"growth", rerouted, "limit", "policy", "nothing", "nothing"}
		c.rnd.Shuffle(len(c.deck), func(i, j int) { c.deck[i], c.deck[j] = c.deck[j], c.deck[i] })
	}
	what := c.deck[0]
	c.deck = c.deck[1:]
	return what
}

// change makes one change while no daemon runs.
func (c *changingOutbox) change(what string) {
	c.t.Helper()
	c.changeCounts[what]++
	switch what {
	case "nothing":
		return
	case "growth":
		topic := c.follow.topics[c.rnd.IntN(len(c.follow.topics))]
		count := c.changeLog.Growth[topic]
		count[1]++
		must(c.t, kafkatest.AddPartitions(testContext(c.t), c.kafka.Brokers(), topic, count[1]))
		c.changeLog.Growth[topic] = count
		return
	case rerouted:
		c.elsewhere = !c.elsewhere
	case "limit":
		c.limit(!c.narrow)
	case "policy":
		c.skip = !c.skip
	}
	c.changeLog.note(c.outbox, what)
}

// limit makes the topics of events refuse or accept large records.
func (c *changingOutbox) limit(narrow bool) {
	c.t.Helper()
	c.narrow = narrow
	most := map[bool]string{false: "1048588", true: "4000"}[narrow]
	for _, typ := range []string{"order", "payment", "elsewhere"} {
		must(c.t, kafkatest.SetTopicConfig(testContext(c.t), c.kafka.Brokers(), c.topic(typ), map[string]string{"max.message.bytes": most}))
	}
}

// noteDropped records the events that a daemon dropped.
func (c *changingOutbox) noteDropped(r *relay) {
	for _, e := range r.logged(msgSkipped) {
		if id, _ := e["event_id"].(string); id != "" {
			c.changeLog.Dropped[id] = true
		}
	}
}

// judge waits until everything has arrived, and compares it with the promise.
func (c *changingOutbox) judge() {
	t := c.t
	t.Helper()
	c.noteDropped(c.running())
	var ids []string
	for _, r := range c.truth() {
		if !c.changeLog.Dropped[r.ID] {
			ids = append(ids, r.ID)
		}
	}
	c.awaitEvents(ids, patience)
	c.awaitSettled()
	h := c.changeLog.history(c.outbox)
	arrived, dead := map[string]bool{}, 0
	for _, rec := range h.Records {
		id, _ := headerOf(rec, "id")
		arrived[id] = true
		if rec.Topic == c.topic("dead") {
			dead++
		}
	}
	h.removeEvents(func(id string) bool { return c.changeLog.Dropped[id] && !arrived[id] })
	file := h.keep(c.outbox)
	v := h.judge()
	c.proof.setVerdict(v)
	if err := v.err(); err != nil {
		t.Fatalf("%v\n  OUTBOXCDC_TEST_HISTORY=%s judges it again", err, file)
	}
	what := fmt.Sprintf("%d dead letters, %d events dropped by the policy; changes: %v", dead, len(c.changeLog.Dropped), c.changeCounts)
	c.outcome("%s; repeats allowed: where a change of settings sent an event elsewhere and no position record named its topic yet, and what follows such an event of its key; "+
		"%d records were sent after a later event of their key: such repeats, and events that a policy dropped before it was changed", what, v.late)
	t.Logf("%s, %d late; %s", v, v.late, what)
}

// removeEvents removes events from the history that were not to arrive.
func (h *history) removeEvents(out func(id string) bool) {
	h.Truth = slices.DeleteFunc(h.Truth, func(r row) bool { return out(r.ID) })
	h.Acks = slices.DeleteFunc(h.Acks, out)
	for i := range h.Unsure {
		h.Unsure[i] = slices.DeleteFunc(slices.Clone(h.Unsure[i]), out)
	}
	for i := range h.Commits {
		h.Commits[i].IDs = slices.DeleteFunc(slices.Clone(h.Commits[i].IDs), out)
	}
}

// F68: of two events the first is refused and the second is stored in another partition. The daemon is killed, and
// the topic gains partitions, so that the key of the first moves to the partition of the second. The record of the
// second does not prove that the first was stored. Once the first is sent behind it, the second is not sent again: it
// is of another key.
func TestDeduplicatedGrowth(t *testing.T) {
	t.Parallel()
	k := faultyKafka(t)
	o := newOutbox(t, options{kafka: k, partitions: 2})
	o.proves("F68", "one of two partitions refuses (NOT_ENOUGH_REPLICAS), the other stores a later event, kill -9 of a deduplicating daemon, 2 partitions become 3")
	o.sample()
	env := o.deduplicating(fence)
	refused, stored := keyWhere(0, 2, 1, 3), keyWhere(1, 2, 1, 3)
	inject(t, k, kafkatest.Fault{Answer: kerr.NotEnoughReplicas.Code, Topic: o.topic("order"), Partitions: []int32{0}})
	r := o.startStreaming(env...)
	o.insert("order", refused, 1, 1)
	o.insert("order", stored, 1, 1)
	o.awaitRecords(1)
	await(t, patience, "the first event to be refused", func() error { return waitFor(hitsOf(t, k) > 0) })
	r.kill9()
	heal(t, k)
	must(t, kafkatest.AddPartitions(testContext(t), k.Brokers(), o.topic("order"), 3))
	r = o.startStreaming(env...)
	o.insert("order", refused, 2, 1)
	o.insert("order", stored, 2, 1)
	o.awaitHealed()
	o.repeatsAtMost(o.verify(patience), 0, noneInFlight)
	if n := r.skippedInKafka(); n != 1 {
		t.Errorf("%d events skipped, want the one that was stored", n)
	}
}

// F83: the killed daemon was of the previous version. Its position record has partition counts and a fingerprint of the
// routing instead of topics and a fingerprint of the sources; the new daemon still finds what Kafka has beyond it.
func TestDeduplicatedUpgrade(t *testing.T) {
	t.Parallel()
	rnd := newRand(t)
	const partitions = 6
	o := newOutbox(t, options{types: []string{"order", "payment"}, partitions: partitions})
	o.proves("F83", "kill -9 of a deduplicating daemon under load, its position record in the form of the previous version")
	o.sample()
	env := o.deduplicating(fence)
	w := o.write(load{rand: rnd, types: []string{"order", "payment"}})
	unnoted := o.killWithUnrecorded(w, env...)
	o.forge(o.previousVersionRecord(o.newestRecord(), partitions))
	r := o.startStreaming(env...)
	w.awaitCommits(100)
	w.stop()
	o.awaitHealed()
	o.repeatsAtMost(o.verify(patience), 0, noneInFlight)
	o.outcome("Kafka had %d events that the record did not cover, all were found", unnoted)
	if n := r.skippedInKafka(); n < unnoted {
		t.Errorf("%d events skipped, but %d were in Kafka and in no position record", n, unnoted)
	}
	if now := o.newestRecord(); !strings.Contains(now, `"sources":`) || strings.Contains(now, `"partitions":`) {
		t.Errorf("the newest position record is %s", now)
	}
}

// previousVersionRecord converts a position record to the form of the previous version.
func (o *outbox) previousVersionRecord(record string, partitions int) string {
	o.t.Helper()
	var m map[string]any
	d := json.NewDecoder(strings.NewReader(record))
	d.UseNumber()
	must(o.t, d.Decode(&m))
	counts := map[string]any{}
	topics, _ := m["topics"].([]any)
	for _, topic := range topics {
		counts[topic.(string)] = partitions
	}
	if len(counts) == 0 || m["sources"] == nil {
		o.t.Fatalf("not a record of this version: %s", record)
	}
	delete(m, "topics")
	delete(m, "sources")
	delete(m, "published")
	m["partitions"], m["routing"] = counts, "0123456789abcdef"
	text, err := json.Marshal(m)
	must(o.t, err)
	return string(text)
}
