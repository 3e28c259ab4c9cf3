package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/human"
	"github.com/outboxcdc/outboxcdc/sink/kafka"
)

func (k *brokers) checkTopics(ctx context.Context, x *kafka.Examination) {
	if len(k.Tables) == 0 {
		k.skip(topicsKnown, "topics of logical messages are known only when messages are written (or name topics with --topic)")
	} else if len(k.found[topicsKnown]) == 0 {
		k.skip(topicsKnown, "the outbox could not be read: only topics that the settings name are checked")
	}
	k.because[groupTopics] = "no topic is known"
	if len(k.topics) > 0 {
		k.because[groupTopics] = "no topic can be used"
	}
	k.checkLetters(ctx, x)
	for i := range x.Topics {
		if t := &x.Topics[i]; slices.Contains(k.topics, t.Name) {
			k.checkTopic(x, t)
		}
	}
}

// defaultSize is Kafka's own max.message.bytes.
const defaultSize = 1_048_588

// create is a command of Kafka's own tool that creates a topic with suitable settings for this cluster.
func (k *brokers) create(x *kafka.Examination, name string) Remedy {
	partitions, replicas := k.Partitions[name], 0
	for i := range x.Topics {
		if c := x.Topics[i].Create; c != nil && x.Topics[i].Name == name { // as the daemon would
			partitions, replicas = c.Partitions, c.Replicas
		}
	}
	if partitions == 0 {
		partitions = 6
	}
	if name == k.Letters {
		return k.createOwn(x, name, partitions, replicas, kafka.LetterTopic(&kafka.Create{}))
	}
	return k.createWith(x, name, partitions, replicas, "")
}

// createOwn is the command that creates a topic of the daemon's own: `setup apply` if another finding needs that
// command, which creates the topic as well, so that a second command would fail; otherwise a command of Kafka's own
// tool, which needs no administrator of Postgres.
func (k *brokers) createOwn(x *kafka.Examination, name string, partitions, replicas int, like *kafka.Create) Remedy {
	for _, setup := range k.setups {
		for _, findings := range k.found {
			if slices.ContainsFunc(findings, func(f Finding) bool { return slices.Contains(f.Remedy, setup) }) {
				return setup
			}
		}
	}
	return k.createWith(x, name, partitions, replicas, " --config "+strings.Join(like.Pairs(), " --config "))
}

// createWith creates a topic; replicas 0: as many as suit the cluster.
func (k *brokers) createWith(x *kafka.Examination, name string, partitions, replicas int, more string) Remedy {
	if replicas == 0 {
		replicas = min(3, len(x.Brokers))
	}
	if replicas == 3 {
		more += " --config min.insync.replicas=2"
	}
	return shellf("kafka-topics.sh --bootstrap-server %s%s --create --topic %s --partitions %d --replication-factor %d%s",
		strings.Join(k.Brokers, ","), k.Client, name, partitions, replicas, more)
}

// alter is a command that changes settings of a topic.
func (k *brokers) alter(name, settings string) Remedy {
	return shellf("kafka-configs.sh --bootstrap-server %s%s --alter --entity-type topics --entity-name %s --add-config %s",
		strings.Join(k.Brokers, ","), k.Client, name, settings)
}

// usableTopic reports whether the daemon can write to the topic, and otherwise adds the finding.
func (k *brokers) usableTopic(check string, x *kafka.Examination, t *kafka.TopicFacts) bool {
	var denied interface{ PermissionDenied() bool }
	switch {
	case t.Missing && t.Collides != "":
		k.fail(check, Unavailable, []Remedy{advicef("let another name lead to the topic, for example with route.topics; or recreate %s under the name %s", t.Collides, t.Name)},
			"there is no topic %s, and no broker creates it: its name collides with that of topic %s, because Kafka takes . and _ for the same in the names of its metrics", t.Name, t.Collides)
	case t.Missing && t.Create != nil && t.Create.Err == nil:
		k.ok(check, "%s does not exist: the daemon creates it with %s, replication factor %d (kafka.create_topics)",
			t.Name, human.Count(t.Create.Partitions, "partition", "partitions"), t.Create.Replicas)
	case t.Missing && t.Create != nil:
		remedy := []Remedy{k.create(x, t.Name), advicef("or grant the daemon's user Create on it, or correct kafka.create_topics or the name of the topic, whichever Kafka refuses")}
		k.fail(check, Unavailable, remedy, "there is no topic %s, and Kafka refuses to let the daemon create it (kafka.create_topics): %s", t.Name, cause(t.Create.Err))
	case t.Missing:
		from := k.named[t.Name]
		if from == "" {
			from = "poison.topic"
		}
		k.fail(check, Unavailable, []Remedy{k.create(x, t.Name)},
			"there is no topic %s, named by %s: its first event waits for the topic, and so do all events after it (the daemon does not use auto.create.topics.enable of the brokers)", t.Name, from)
	case t.Err != nil && errors.As(t.Err, &denied) && denied.PermissionDenied():
		k.fail(check, Denied, []Remedy{k.allowWrite(t.Name)}, "%s", cause(t.Err))
	case t.Err != nil:
		k.fail(check, Unavailable, []Remedy{advicef("see the log of the brokers")}, "%s", cause(t.Err))
	case len(t.Leaderless) > 0:
		k.fail(check, Unavailable, []Remedy{advicef("restart the brokers that have a replica: kafka-topics.sh --bootstrap-server %s%s --describe --topic %s", strings.Join(k.Brokers, ","), k.Client, t.Name)},
			"topic %s: %s without a leader: %v", t.Name, human.Count(len(t.Leaderless), "partition", "partitions"), t.Leaderless)
	default:
		return true
	}
	return false
}

func (k *brokers) checkTopic(x *kafka.Examination, t *kafka.TopicFacts) {
	if !k.usableTopic(topicExists, x, t) {
		return
	}
	k.ok(topicExists, "%s: %s, the daemon may write", t.Name, human.Count(t.Partitions, "partition", "partitions"))
	k.checkReplicas(x, t)
	k.checkPartitions(t)
	if t.Settings == nil {
		for _, check := range []string{topicInSync, topicCleanup, topicSize, topicTimestamp} {
			k.skip(check, "the daemon may not read the settings of %s (DescribeConfigs)", t.Name)
		}
		return
	}
	k.checkInSync(t)
	k.checkCleanup(t)
	k.checkSize(t)
	k.checkTimestamps(t)
}

func (k *brokers) checkReplicas(x *kafka.Examination, t *kafka.TopicFacts) {
	switch {
	case t.Replicas < 2 && len(x.Brokers) < 2:
		k.ok(topicReplicas, "%s: 1, the number of brokers", t.Name)
	case t.Replicas < 2:
		k.warn(topicReplicas, []Remedy{advicef("add replicas with kafka-reassign-partitions.sh; or recreate the topic while it is empty: %s", k.create(x, t.Name).Text)},
			"%s: 1, so an acknowledged event is lost with the disk of one broker", t.Name)
	case t.InSync < t.Replicas:
		k.warn(topicReplicas, []Remedy{advicef("see which broker lags: kafka-topics.sh --bootstrap-server %s%s --describe --under-replicated-partitions", strings.Join(k.Brokers, ","), k.Client)},
			"%s: %d replicas, %d in sync", t.Name, t.Replicas, t.InSync)
	default:
		k.ok(topicReplicas, "%s: %d, all in sync", t.Name, t.Replicas)
	}
}

func (k *brokers) checkPartitions(t *kafka.TopicFacts) {
	want := k.Partitions[t.Name]
	switch {
	case want == 0:
		k.skip(topicPartitions, "route.partitions does not name %s: while the daemon runs, it uses the number of partitions at its start", t.Name)
	case want > t.Partitions:
		k.fail(topicPartitions, Unavailable, []Remedy{
			shellf("kafka-topics.sh --bootstrap-server %s%s --alter --topic %s --partitions %d", strings.Join(k.Brokers, ","), k.Client, t.Name, want),
		}, "%s has %d, but route.partitions says %d: nothing can be delivered to the topic", t.Name, t.Partitions, want)
	default:
		k.ok(topicPartitions, "%s has %d, keys are hashed over %d", t.Name, t.Partitions, want)
	}
}

// number is a setting of the topic, or def if the setting is unknown.
func number(t *kafka.TopicFacts, name string, def int64) int64 {
	n, err := strconv.ParseInt(t.Settings[name], 10, 64)
	if err != nil {
		return def
	}
	return n
}

func (k *brokers) checkInSync(t *kafka.TopicFacts) {
	least := int(number(t, "min.insync.replicas", 1))
	switch {
	case least > t.Replicas:
		k.fail(topicInSync, Unavailable, []Remedy{k.alter(t.Name, fmt.Sprintf("min.insync.replicas=%d", max(1, t.Replicas-1)))},
			"%s: %d, but there are %d replicas: no broker can ever acknowledge", t.Name, least, t.Replicas)
	case least > t.InSync:
		k.fail(topicInSync, Unavailable, []Remedy{advicef("restart the brokers of the other replicas")},
			"%s: %d, but %d replicas are in sync: nothing is acknowledged", t.Name, least, t.InSync)
	case least == t.Replicas && t.Replicas > 1:
		k.warn(topicInSync, []Remedy{k.alter(t.Name, fmt.Sprintf("min.insync.replicas=%d", t.Replicas-1))},
			"%s: %d of %d replicas: delivery pauses as soon as one broker is down", t.Name, least, t.Replicas)
	case least < 2 && t.Replicas > 1:
		k.warn(topicInSync, []Remedy{k.alter(t.Name, "min.insync.replicas=2")},
			"%s: %d, so an acknowledged event may have one copy", t.Name, least)
	default:
		k.ok(topicInSync, "%s: %d of %d", t.Name, least, t.Replicas)
	}
}

func (k *brokers) checkCleanup(t *kafka.TopicFacts) {
	policy := t.Settings["cleanup.policy"]
	if strings.Contains(policy, "compact") {
		k.warn(topicCleanup, []Remedy{k.alter(t.Name, "cleanup.policy=delete")},
			"%s: %s: all events of a key except the last are deleted after some time, and events without key are refused", t.Name, policy)
		return
	}
	k.ok(topicCleanup, "%s: %s", t.Name, policy)
}

func (k *brokers) checkSize(t *kafka.TopicFacts) {
	most := number(t, "max.message.bytes", defaultSize)
	if most < defaultSize {
		k.warn(topicSize, []Remedy{k.alter(t.Name, fmt.Sprintf("max.message.bytes=%d", defaultSize))},
			"%s: %d, less than Kafka's default: a larger event is poison, cause too_large", t.Name, most)
		return
	}
	k.ok(topicSize, "%s: %d", t.Name, most)
}

// The limits that a topic should accept: the age of events in a backlog, and the difference of clocks.
const (
	backlogAge      = 7 * 24 * time.Hour
	clockDifference = time.Minute
)

func (k *brokers) checkTimestamps(t *kafka.TopicFacts) {
	const most = int64(1) << 62 / int64(time.Millisecond)
	duration := func(name string) time.Duration {
		return time.Duration(min(number(t, name, most), most)) * time.Millisecond
	}
	before, after := duration("message.timestamp.before.max.ms"), duration("message.timestamp.after.max.ms")
	least := clockDifference
	if k.OwnTime {
		least = backlogAge
	}
	kind := t.Settings["message.timestamp.type"]
	switch {
	case kind == "LogAppendTime" && k.OwnTime:
		k.warn(topicTimestamp, []Remedy{k.alter(t.Name, "message.timestamp.type=CreateTime")},
			"%s: LogAppendTime replaces the time that route.timestamp gives", t.Name)
	case kind == "LogAppendTime":
		k.ok(topicTimestamp, "%s: LogAppendTime", t.Name)
	case before < least:
		k.warn(topicTimestamp, []Remedy{k.alter(t.Name, "message.timestamp.before.max.ms=9223372036854775807")},
			"%s: before.max.ms is %v: an event that is older when it is sent, as after an outage, is refused and becomes poison (cause rejected)", t.Name, before)
	case after < clockDifference:
		k.warn(topicTimestamp, []Remedy{k.alter(t.Name, "message.timestamp.after.max.ms=3600000")},
			"%s: after.max.ms is %v: if clocks differ by more, events are refused and become poison (cause rejected)", t.Name, after)
	default:
		k.ok(topicTimestamp, "%s: %s, old events are accepted", t.Name, kind)
	}
}
