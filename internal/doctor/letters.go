package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/outboxcdc/outboxcdc/internal/human"
	"github.com/outboxcdc/outboxcdc/sink/kafka"
	"github.com/outboxcdc/outboxcdc/sink/kafka/deadletter"
)

// checkLetters checks the dead-letter topic, if a policy uses it.
func (k *brokers) checkLetters(ctx context.Context, x *kafka.Examination) {
	if k.Letters == "" {
		k.skip(topicDeadLetters, "no policy sends events to a dead-letter topic (poison.policy, poison.causes, poison.decisions)")
		return
	}
	at := slices.IndexFunc(x.Topics, func(t kafka.TopicFacts) bool { return t.Name == k.Letters })
	letters := &x.Topics[at]
	if !k.usableTopic(topicDeadLetters, x, letters) {
		return
	}
	if k.HeldGroup != "" && !k.heldReadable(ctx) {
		return
	}
	if letters.Settings == nil {
		k.ok(topicDeadLetters, "the daemon may write to %s, but not read its settings (DescribeConfigs)", k.Letters)
		return
	}
	most, largest, whose := number(letters, "max.message.bytes", defaultSize), int64(0), ""
	for i := range x.Topics {
		t := &x.Topics[i]
		if n := number(t, "max.message.bytes", 0); t.Name != k.Letters && t.Name != k.Positions && n > largest {
			largest, whose = n, t.Name
		}
	}
	larger := []Remedy{k.alter(k.Letters, fmt.Sprintf("max.message.bytes=%d", 2*largest))}
	if k.HeldGroup == "" { // hold_key does not cut
		larger = append(larger, settingf("poison: {oversize: cut}"))
	}
	limit := ""
	for _, name := range []string{"retention.bytes", "retention.ms"} {
		if value := letters.Settings[name]; value != "" && value != "-1" {
			limit = name + " is " + value
		}
	}
	switch {
	case k.HeldGroup != "" && strings.Contains(letters.Settings["cleanup.policy"], "compact"):
		k.fail(topicDeadLetters, Wrong, []Remedy{k.alter(k.Letters, "cleanup.policy=delete,retention.ms=-1")},
			"%s is compacted: of the events that wait there until their key is released (hold_key), Kafka deletes all but the last of each key", k.Letters)
	case strings.Contains(letters.Settings["cleanup.policy"], "compact"):
		k.warn(topicDeadLetters, []Remedy{k.alter(k.Letters, "cleanup.policy=delete")}, "%s is compacted: dead letters are deleted, and those without key are refused", k.Letters)
	case most <= largest && !k.Cut:
		k.warn(topicDeadLetters, larger,
			"%s accepts %d bytes, %s accepts %d: an event that is too large for that topic is also too large for a dead letter, and stops the daemon", k.Letters, most, whose, largest)
	case k.HeldGroup != "" && limit != "":
		k.warn(topicDeadLetters, []Remedy{k.alter(k.Letters, "retention.ms=-1,retention.bytes=-1")},
			"%s: %s: Kafka deletes events that wait there until their key is released (hold_key), and no other topic has them", k.Letters, limit)
	default:
		k.ok(topicDeadLetters, "%s: %s, up to %d bytes", k.Letters, human.Count(letters.Partitions, "partition", "partitions"), most)
	}
}

// errOne ends the reading of the dead-letter topic: one letter could be read.
var errOne = errors.New("one letter was read")

// heldReadable reports whether the daemon may read which keys are held, and otherwise adds the finding.
func (k *brokers) heldReadable(ctx context.Context) bool {
	letters, err := deadletter.Open(ctx, k.Kafka, k.Letters, k.HeldGroup)
	if err == nil {
		defer letters.Close()
		err = letters.Read(ctx, true, func(*deadletter.Letter) error { return errOne })
	}
	denied := func(err error) bool {
		var d interface{ PermissionDenied() bool }
		return errors.As(err, &d) && d.PermissionDenied()
	}
	ofGroup := k.acls("--operation Read --operation Describe --group " + k.HeldGroup)
	switch {
	case err == nil, errors.Is(err, errOne):
	case denied(err):
		k.fail(topicDeadLetters, Denied, []Remedy{k.acls("--operation Read --operation Describe --topic " + k.Letters), ofGroup}, "which keys are held cannot be read (hold_key): %s", cause(err))
		return false
	default:
		k.cannot(topicDeadLetters, err)
		return false
	}
	switch err := letters.MayHold(ctx); {
	case err == nil:
		return true
	case denied(err):
		k.warn(topicDeadLetters, []Remedy{ofGroup}, "the daemon cannot renew the offsets of the group %s (hold_key): Kafka deletes them after offsets.retention.minutes, and then letters that were handled hold their keys again", k.HeldGroup)
	default:
		k.cannot(topicDeadLetters, err)
	}
	return false
}
