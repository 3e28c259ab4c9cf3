package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// Broker settings that the shared broker does not have: it creates topics automatically, and it checks permissions.
func TestBrokerWithSettings(t *testing.T) {
	t.Parallel()
	var k kafkatest.Cluster
	if testSuite.fake == "" {
		k = kafkatest.RealForTest(t, kafkatest.RealOptions{QuickStart: true, Settings: map[string]string{
			"auto.create.topics.enable": "true",
			// There are no users without SASL: permissions apply to everybody. A resource without any is open to all,
			// so the broker itself, and the test, are not affected.
			"authorizer.class.name":          "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
			"allow.everyone.if.no.acl.found": "true",
		}})
	} else {
		k = kafkatest.FakeForTest(t, kafkatest.FakeOptions{AutoCreate: true})
	}
	t.Run("topics by themselves", func(t *testing.T) { t.Parallel(); testAutoCreateUnused(t, k) })
	t.Run("rights", func(t *testing.T) {
		needRealKafka(t)
		t.Parallel()
		testWritePermission(t, k)
	})
	t.Run("denied", func(t *testing.T) {
		needRealKafka(t)
		t.Parallel()
		testDeniedTopic(t, k)
	})
}

// The brokers create every topic that a client requests, with one partition. The daemon's look-ups must not request
// one.
func testAutoCreateUnused(t *testing.T, k kafkatest.Cluster) {
	lasts := fullOrShort(10*time.Second, 3*time.Second)
	o := newOutbox(t, options{kafka: k, types: []string{"order", "late"}, missing: []string{"late"}})
	o.proves("F67", "a topic is missing for %v where brokers create topics by themselves, with one partition; then created with three", lasts)
	o.sample()
	checkAutoCreate(t, k, o.name+".accident")
	r := o.startStreaming()
	o.insert("order", "a", 1, 50)
	o.insert("late", "a", 1, 50)
	r.awaitState("waiting_for_topic", patience)
	o.holdFault(lasts)
	if _, err := kafkatest.ReadAll(testContext(t), k.Brokers(), o.topic("late")); !errors.Is(err, kerr.UnknownTopicOrPartition) {
		t.Fatalf("the topic was created while the daemon waited: %v", err)
	}
	o.makeTopic("late", 3, nil)
	o.awaitHealed()
	o.repeatsAtMost(o.verify(patience), 0, "nothing failed")
}

// checkAutoCreate checks that the brokers really do.
func checkAutoCreate(t *testing.T, k kafkatest.Cluster, topic string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(k.Brokers()...), kgo.AllowAutoTopicCreation())
	must(t, err)
	defer client.Close()
	must(t, client.ProduceSync(testContext(t), &kgo.Record{Topic: topic, Value: []byte("v")}).FirstErr())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = kafkatest.DeleteTopic(ctx, k.Brokers(), topic)
	})
}

// The permission to write is missing before the first ack: the daemon ends with 77 and names it. Once the daemon has
// delivered, it waits when the same permission is revoked, and continues when it is back.
func testWritePermission(t *testing.T, k kafkatest.Cluster) {
	rounds := fullOrShort(5, 2)
	rnd := newRand(t)
	o := newOutbox(t, options{kafka: k, types: []string{"order", "other"}})
	o.proves("F69", "the permission to write to a topic missing at the start; granted; revoked and granted again under load, %d times", rounds)
	o.sample()
	give := func(operations ...kmsg.ACLOperation) {
		t.Helper()
		must(t, kafkatest.Allow(testContext(t), k.Brokers(), anonymous, o.topic("order"), operations...))
	}
	// Everything except writing.
	give(kmsg.ACLOperationRead, kmsg.ACLOperationDescribe, kmsg.ACLOperationDescribeConfigs, kmsg.ACLOperationDelete)
	o.insert("order", "a", 1, 10)
	before := o.confirmed()
	r := o.start(smallWindow)
	is(t, "exit code", r.awaitExit(patience), 77)
	log := r.entries()
	last := log[len(log)-1]
	if text, _ := last["error"].(string); last["level"] != "ERROR" || !strings.Contains(text, o.topic("order")) {
		t.Errorf("the last line of the log does not name the topic: %v", last)
	}
	if now := o.confirmed(); now != before {
		t.Errorf("the slot went from %s to %s", before, now)
	}
	o.outcome("exit 77 at the start")

	give(kmsg.ACLOperationWrite)
	r = o.startStreaming(smallWindow, "OUTBOXCDC_TUNING_PARK_AFTER=3s")
	w := o.write(load{rand: rnd, types: []string{"order", "other"}})
	for range rounds {
		w.awaitDelivered(100) // of this daemon: before its first ack a missing permission is an error of the setup
		must(t, kafkatest.Forbid(testContext(t), k.Brokers(), anonymous, o.topic("order"), kmsg.ACLOperationWrite))
		r.awaitState("parked", patience)
		o.awaitSlotFree()
		w.awaitCommits(50)
		give(kmsg.ACLOperationWrite)
		o.awaitHealed()
	}
	w.stop()
	ended := r.sessionsEnded()
	o.outcome("%d sessions ended", ended)
	v := o.verify(patience)
	if ended > 3*rounds {
		t.Errorf("%d sessions ended, but a parked daemon waits; states: %s", ended, states(r))
	}
	o.repeatsAtMost(v, ended*answerWindow, "a window of %d for each session that ended", answerWindow)
}

// A role that may only insert names topics that the daemon may not write to, existing or not: each event becomes a dead
// letter in the end, also the first event of the process.
func testDeniedTopic(t *testing.T, k kafkatest.Cluster) {
	o := newOutbox(t, options{kafka: k, types: []string{"order", "none", "secret"}, missing: []string{"none"}})
	o.proves("F69", "events for topics without a permission, one that exists and one that does not, route.missing_topic poison")
	for _, name := range []string{"none", "secret"} {
		must(t, kafkatest.Allow(testContext(t), k.Brokers(), "somebody", o.topic(name), kmsg.ACLOperationWrite, kmsg.ACLOperationDescribe))
	}
	t.Cleanup(func() {
		must(t, kafkatest.Allow(context.Background(), k.Brokers(), anonymous, o.topic("secret"), kmsg.ACLOperationDelete, kmsg.ACLOperationDescribe))
	})
	o.makeTopic("dead", 1, nil)
	env := []string{
		"OUTBOXCDC_ROUTE_MISSING_TOPIC=3s",
		"OUTBOXCDC_POISON_POLICY=dead_letter", "OUTBOXCDC_POISON_TOPIC=" + o.topic("dead"),
	}
	for round := 1; round <= 2; round++ { // the second time this process has delivered nothing
		for _, typ := range []string{"none", "order", "secret"} {
			o.insert(typ, "a", round, 1)
		}
		r := o.start(env...)
		await(t, patience, "the permitted events, and dead letters", func() error {
			orders, dead := len(o.readRecords(o.topic("order"))), len(o.readRecords(o.topic("dead")))
			if orders != round || dead != 2*round {
				return fmt.Errorf("%d events and %d dead letters; %s", orders, dead, o.situation())
			}
			return nil
		})
		r.term()
	}
}

const anonymous = "ANONYMOUS" // all clients without SASL
