package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// createTopics are the settings of a daemon that creates topics on a single broker.
var createTopics = []string{
	"OUTBOXCDC_KAFKA_CREATE_TOPICS_PARTITIONS=5", "OUTBOXCDC_KAFKA_CREATE_TOPICS_REPLICATION_FACTOR=1",
	"OUTBOXCDC_KAFKA_CREATE_TOPICS_CONFIG=max.message.bytes=200000",
}

// With kafka.create_topics the daemon creates missing topics, including the dead-letter topic, and uses them at once.
func TestCreateTopics(t *testing.T) {
	t.Parallel()
	o := newPoisonOutbox(t, options{missing: []string{"order", "dead"}})
	r := o.startStreaming(append(o.policy("dead_letter"), createTopics...)...)
	o.insertMixed(5, nullKey, 5)
	o.verifyGood(0)
	o.verifyDeadLetters(0)
	made := map[string]string{}
	for _, e := range r.logged("topic created") {
		made[fmt.Sprint(e["topic"])] = fmt.Sprint(e["partitions"])
	}
	if len(made) != 2 || made[o.topic("order")] != "5" || made[o.topic("dead")] != "5" {
		t.Errorf("made: %v", made)
	}
	var most int32
	for _, rec := range o.readAll() {
		most = max(most, rec.Partition)
	}
	if most < 3 {
		t.Errorf("the last partition with records is %d: fewer than 5 were created", most)
	}
	if r.hasBeenIn("parked") {
		t.Error("the daemon was parked")
	}
}

// A backlog with many new aggregate types logs one line for each topic, and no warning.
func TestCreateManyTopics(t *testing.T) {
	t.Parallel()
	types := make([]string, 60)
	for i := range types {
		types[i] = fmt.Sprint("new", i)
	}
	o := newOutbox(t, options{types: types, missing: types})
	o.sample()
	o.exec(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) SELECT 'new' || n, 'k', 'made', '{}' FROM generate_series(0, 59) n`)
	began := time.Now()
	r := o.startStreaming(append(createTopics, steady)...)
	await(t, patience, "the last topic", func() error {
		if n := len(r.logged("topic created")); n < len(types) {
			return fmt.Errorf("%d topics", n)
		}
		return nil
	})
	t.Logf("%d topics in %s", len(types), time.Since(began).Round(time.Millisecond))
	o.verify(patience)
	slow := 0 // times when a busy broker needed so long that it is said
	for _, e := range r.entries() {
		switch {
		case e["msg"] == "waiting for topic" || e["msg"] == "topic can be used" || strings.Contains(fmt.Sprint(e["reason"]), "just created"),
			e["reason"] == "reading the letters of held keys":
			slow++
		case e["level"] == "WARN":
			t.Errorf("in the log: %v", e)
		}
	}
	if slow > len(types)/10 {
		t.Errorf("%d lines about waiting for Kafka", slow)
	}
	is(t, "log lines", len(r.logged("topic created")), len(types))
}
