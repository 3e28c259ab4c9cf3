package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// `setup` creates the position topic that the daemon will use, so that the daemon deduplicates; without Kafka it does
// the rest; and a new slot contradicts the position record. It creates the dead-letter topic if a policy uses it.
func TestSetupPositionTopic(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	topic := o.name + ".positions"
	env := []string{"OUTBOXCDC_DELIVERY_POSITION_TOPIC=" + topic, stopAtPoison}
	run := func(exit int, env []string, args []string, want ...string) {
		t.Helper()
		out, notes, got := o.runBinary(env, append([]string{"setup"}, args...)...)
		if got != exit {
			t.Fatalf("setup %v: exit code %d, want %d:\n%s%s", args, got, exit, out, notes)
		}
		for _, w := range want {
			if !strings.Contains(out+notes, w) {
				t.Errorf("setup %v does not print %q:\n%s%s", args, w, out, notes)
			}
		}
		if len(want) == 0 && strings.Contains(out+notes, " topic ") {
			t.Errorf("setup %v without need of one:\n%s", args, out)
		}
	}
	run(0, []string{atLeastOnce, stopAtPoison}, []string{"apply"})
	run(0, env, []string{"sql"}, "\n-- kafka-topics.sh --bootstrap-server "+strings.Join(o.kafka.Brokers(), ",")+
		" --create --topic "+topic+" --partitions 1 --config cleanup.policy=compact --config ")
	run(0, env, []string{"apply", "--dry-run"}, "would create position topic "+topic+": 1 partition, cleanup.policy=compact,")

	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
	nowhere := append(slices.Clone(env), "OUTBOXCDC_KAFKA_BROKERS=127.0.0.1:1")
	run(69, nowhere, []string{"apply", "--dry-run"}, "would create", "nothing was changed", "127.0.0.1:1")
	run(69, nowhere, []string{"apply"}, "created slot "+o.name, "everything else except topics is done", "127.0.0.1:1", "--no-topic")
	run(0, nowhere, []string{"apply", "--no-topic"})
	run(0, env, []string{"apply"}, "slot "+o.name+" already exists", "created position topic "+topic)
	run(0, env, []string{"apply"}, "position topic "+topic+" already exists")
	await(t, patience, "the broker to know the topic", func() error {
		if out, notes, code := o.runBinary(env, "setup", "apply", "--dry-run"); code != 0 || !strings.Contains(out+notes, "position topic "+topic+" already exists") {
			return fmt.Errorf("exit code %d: %s%s", code, out, notes)
		}
		return nil
	})
	o.deliver(env, "order", "k", 1, 10)

	dead := o.name + ".dead"
	letters := append(slices.Clone(env), "OUTBOXCDC_POISON_CAUSES=too_large=hold_key", "OUTBOXCDC_POISON_TOPIC="+dead, "OUTBOXCDC_ROUTE_PARTITIONS="+dead+"=2")
	const settings = "cleanup.policy=delete, max.message.bytes=2097176, retention.ms=-1"
	run(0, letters, []string{"sql"}, "\n-- In Kafka, once, the dead-letter topic", "--create --topic "+dead+" --partitions 2 --config "+strings.ReplaceAll(settings, ", ", " --config "))
	run(0, letters, []string{"apply", "--dry-run"}, "position topic "+topic+" already exists", "would create dead-letter topic "+dead+": 2 partitions, "+settings)
	run(0, letters, []string{"apply"}, "created dead-letter topic "+dead)
	run(0, letters, []string{"apply"}, "dead-letter topic "+dead+" already exists")

	two := o.name + ".two"
	must(t, kafkatest.CreateTopic(testContext(t), o.kafka.Brokers(), two, 2, nil))
	run(78, append(slices.Clone(env), "OUTBOXCDC_DELIVERY_POSITION_TOPIC="+two), []string{"apply"}, "it has 2 partitions, and must have one", "remedy: ")

	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
	run(0, env, []string{"apply"}, "created slot "+o.name)
	r := o.start(env...)
	r.awaitStop(patience, 79, "recreated")
	o.adopt(env, 0)
	o.startStreaming(env...)
	o.insert("order", "k", 11, 10)
	o.repeatsAtMost(o.verify(patience), 0, "the new slot begins after the delivered events")
}
