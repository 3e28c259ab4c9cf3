package integration

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/outboxcdc/outboxcdc/internal/kafkatest"
)

// What may change between an end that was not clean and the next start: topics, and settings that decide where an event goes.

// F68: of two events the first is refused and the second is stored in another partition. The daemon is killed, and the topic grows, so
// that the key of the first moves to where the second is. That the second is there says nothing of the first.
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
	await(t, patience, "the first event to be refused", func() error { return unless(hitsOf(t, k) > 0) })
	r.kill9()
	heal(t, k)
	must(t, kafkatest.AddPartitions(testContext(t), k.Brokers(), o.topic("order"), 3))
	r = o.startStreaming(env...)
	o.insert("order", refused, 2, 1)
	o.insert("order", stored, 2, 1)
	o.healed()
	o.repeatsAtMost(o.verify(patience), 0, "all partitions of a topic are read")
	if n := r.leftOut(); n != 1 {
		t.Errorf("%d events left out, want the one that was stored", n)
	}
}

// F83: the daemon that was killed was of the version before. Its position record has partition counts and a fingerprint of the routing
// instead of topics and a fingerprint of the sources; what Kafka has beyond it is found all the same.
func TestDeduplicatedUpgrade(t *testing.T) {
	t.Parallel()
	rnd := newRand(t)
	const partitions = 6
	o := newOutbox(t, options{types: []string{"order", "payment"}, partitions: partitions})
	o.proves("F83", "kill -9 of a deduplicating daemon under load, its position record in the form of the version before")
	o.sample()
	env := o.deduplicating(fence)
	w := o.write(load{rand: rnd, types: []string{"order", "payment"}})
	unnoted := o.killInDoubt(w, env...)
	o.forge(o.ofVersionBefore(o.newestRecord(), partitions))
	r := o.startStreaming(env...)
	w.awaitCommits(100)
	w.stop()
	o.healed()
	o.repeatsAtMost(o.verify(patience), 0, nothingOnTheWay)
	o.outcome("Kafka had %d events that the record did not know of, all were found", unnoted)
	if n := r.leftOut(); n < unnoted {
		t.Errorf("%d events left out, but %d were in Kafka and in no position record", n, unnoted)
	}
	if now := o.newestRecord(); !strings.Contains(now, `"sources":`) || strings.Contains(now, `"partitions":`) {
		t.Errorf("the newest position record is %s", now)
	}
}

// ofVersionBefore is a position record in the form of the version before.
func (o *outbox) ofVersionBefore(record string, partitions int) string {
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
	m["partitions"], m["routing"] = counts, "0123456789abcdef"
	text, err := json.Marshal(m)
	must(o.t, err)
	return string(text)
}
