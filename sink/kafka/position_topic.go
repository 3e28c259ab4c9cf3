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

// positionConfig keeps the position topic small, so that the record of an idle slot is found soon. A slot writes
// about one record of some hundred bytes per second, and only the newest one is needed. Kafka never compacts the
// active segment, so a segment ends after an hour (2 MB for one slot) or 16 MiB (for many): what is read in addition
// to the compacted part. Smaller segments would mean many files, and Kafka 4 refuses less than 1 MiB. The dirty ratio
// is low so that ended segments are compacted soon, whatever the brokers' default is.
var positionConfig = map[string]string{
	"cleanup.policy":            "compact",
	"segment.ms":                strconv.FormatInt(time.Hour.Milliseconds(), 10),
	"segment.bytes":             strconv.Itoa(16 << 20),
	"min.cleanable.dirty.ratio": "0.1",
}

// PositionTopic returns how the topic of position records is created. A replicationFactor of -1 means the brokers'
// default.
func PositionTopic(replicationFactor int16) *Create {
	return &Create{Partitions: 1, ReplicationFactor: replicationFactor, Config: positionConfig}
}

// CheckPositionTopic returns nil if position records can be stored in the topic. A *[checkpoint.Unusable] has the
// reason if they cannot; any other error means that the check failed.
func (c *Cluster) CheckPositionTopic(ctx context.Context, topic string) error {
	ctl, done, err := c.temporaryControl(ctx)
	if err != nil {
		return err
	}
	defer done()
	for tries := 1; ; tries++ {
		l := &positionLog{ctl: ctl, topic: topic, tries: missingTries}
		err := l.check(ctx)
		if err == nil || errors.As(err, new(*checkpoint.Unusable)) {
			return err
		}
		// The leader of a new topic may not know the topic yet.
		if kindOf(err).class != resend || tries >= missingTries || ctx.Err() != nil {
			return positionFailure("check position topic ", topic, err)
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
	policy := settings[l.topic]["cleanup.policy"] // "": not allowed to read it
	if policies := strings.Split(policy, ","); policy != "" && !slices.Equal(policies, []string{"compact"}) {
		return l.unusable("its cleanup.policy is "+policy+", so Kafka deletes the records of an idle slot",
			"set cleanup.policy=compact on topic "+l.topic, nil)
	}
	// Only an attempt to read shows whether reading is forbidden.
	end, err := l.offset(ctx, sarama.OffsetNewest)
	if err != nil {
		return err
	}
	return l.ask(ctx, func(b *sarama.Broker) error {
		_, err := fetchBatches(b, l.topic, 0, end, fetchBytes)
		return err
	})
}

// ReadPosition reads the newest position record of a slot, like [Producer.LoadPosition], for commands that deliver
// nothing.
func (c *Cluster) ReadPosition(ctx context.Context, topic, slot string) (*checkpoint.PositionRecord, error) {
	ctl, done, err := c.temporaryControl(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	l := &positionLog{ctl: ctl, topic: topic, slot: slot, tries: missingTries}
	rec, err := l.load(ctx, nil)
	return rec, positionFailure("read the position record from topic ", topic, err)
}
