package kafka

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// positionConfig keeps the position topic small, so that the record of a slot which has been idle for long is found soon. A slot
// writes about one record of some hundred bytes a second, and only the newest counts; but Kafka never compacts the segment that is
// written to. So a segment ends after an hour (2 MB of one slot) or 16 MiB (of many), which is what has to be read at most beside
// the compacted part. Not less: each segment is files, and Kafka 4 refuses less than 1 MiB. And a segment that has ended is nearly
// all dirt, so it is compacted as soon as the cleaner comes by, whatever the brokers' own ratio is.
var positionConfig = map[string]string{
	"cleanup.policy":            "compact",
	"segment.ms":                strconv.FormatInt(time.Hour.Milliseconds(), 10),
	"segment.bytes":             strconv.Itoa(16 << 20),
	"min.cleanable.dirty.ratio": "0.1",
}

// PositionConfig returns the configuration that the position topic gets, as sorted "name=value" pairs.
func PositionConfig() (pairs []string) {
	for name, value := range positionConfig {
		pairs = append(pairs, name+"="+value)
	}
	slices.Sort(pairs)
	return pairs
}

// CreatePositionTopic creates the topic of position records; -1 replicas means as many as the brokers are configured for. created is
// false when it is there already, however it is configured: see [Cluster.CheckPositionTopic].
func (c *Cluster) CreatePositionTopic(ctx context.Context, topic string, replicationFactor int16) (created bool, err error) {
	ctl, done, err := c.briefControl(ctx)
	if err != nil {
		return false, err
	}
	defer done()
	wanted := Create{Partitions: 1, ReplicationFactor: replicationFactor, Config: positionConfig}
	results, err := ctl.create(ctx, map[string]*sarama.TopicDetail{topic: wanted.detail(0)})
	if err == nil {
		err = results[topic]
	}
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, sarama.ErrTopicAlreadyExists):
		return false, nil
	}
	return false, &failure{doing: "create position topic " + topic, topic: topic, rights: "Create on topic " + topic, err: err}
}

// CheckPositionTopic returns nil if position records can be kept in the topic; a *[checkpoint.Unusable] says what is wrong with
// it, any other error that this could not be found out.
func (c *Cluster) CheckPositionTopic(ctx context.Context, topic string) error {
	ctl, done, err := c.briefControl(ctx)
	if err != nil {
		return err
	}
	defer done()
	for tries := 1; ; tries++ {
		l := &positionLog{ctl: ctl, topic: topic}
		err := l.check(ctx)
		if err == nil || errors.As(err, new(*checkpoint.Unusable)) {
			return err
		}
		// The broker that leads a topic which was just made may not know it yet.
		if kindOf(err).class != resend || tries >= missingTries || ctx.Err() != nil {
			return &failure{doing: "check position topic " + topic, topic: topic, err: err}
		}
		ctl.dialer.pause(200 * time.Millisecond)
	}
}

func (l *positionLog) check(ctx context.Context) error {
	if _, err := l.find(ctx, missingTries); err != nil {
		return err
	}
	settings, err := l.ctl.describe(ctx, []string{l.topic}, []string{"cleanup.policy"})
	if err != nil {
		return err
	}
	policy := settings[l.topic]["cleanup.policy"] // "": it may not be read
	if policies := strings.Split(policy, ","); policy != "" && !slices.Equal(policies, []string{"compact"}) {
		return l.unusable("its cleanup.policy is "+policy+", so Kafka deletes the records of a slot that stands still",
			"set cleanup.policy=compact on topic "+l.topic, nil)
	}
	// Reading, which nothing but reading finds out to be forbidden.
	end, err := l.offset(ctx, sarama.OffsetNewest)
	if err != nil {
		return err
	}
	return l.ask(ctx, func(b *sarama.Broker) error {
		_, err := FetchBatches(b, l.topic, 0, end, 0)
		return err
	})
}
