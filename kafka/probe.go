package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/IBM/sarama"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// Probe succeeds when exactly what the last session was waiting for would work now, as far as that can be asked
// without writing: brokers answer, its topics exist and may be written, every partition has a leader that can be
// reached and enough replicas in sync. The error names what is missing.
func (c *Cluster) Probe(ctx context.Context) error {
	ctl, done, err := c.briefControl(ctx)
	if err != nil {
		return err
	}
	defer done()

	topics, unread, position, producerID := c.waitedFor()
	if err := ctl.ping(ctx); err != nil {
		return &failure{doing: "probe kafka", err: err}
	}
	if producerID {
		if _, err := ctl.producerID(ctx); err != nil {
			return &failure{doing: "probe kafka: get a producer id", err: err}
		}
	}
	if position {
		if err := c.probePosition(ctx, ctl); err != nil {
			return &failure{doing: "probe position topic " + c.cfg.PositionTopic, topic: c.cfg.PositionTopic, err: err}
		}
	}
	if err := probeEnds(ctx, ctl, unread); err != nil {
		return &failure{doing: "probe kafka", err: err}
	}
	if len(topics) == 0 {
		return nil
	}
	return c.probeTopics(ctx, ctl, topics)
}

// probeEnds asks whether the ends of topics could be read. A topic that does not exist has none.
func probeEnds(ctx context.Context, ctl *control, topics []string) error {
	if len(topics) == 0 {
		return nil
	}
	found, err := ctl.topics(ctx, topics)
	if err != nil {
		return err
	}
	for _, name := range topics {
		md := found[name]
		if md == nil || errors.Is(md.Err, sarama.ErrUnknownTopicOrPartition) {
			continue
		}
		if id, ok := leaderless(md); !ok {
			return fmt.Errorf("topic %s, whose ends are to be read: partition %d has no leader", name, id)
		}
		for _, part := range md.Partitions {
			if err := ctl.askAt(ctx, ctl.brokers[part.Leader], answers); err != nil {
				return fmt.Errorf("topic %s, whose ends are to be read: partition %d: %w", name, part.ID, err)
			}
		}
	}
	return nil
}

// probePosition asks whether a position record would be stored. A topic that cannot be used at all is the session's matter,
// which does without.
func (c *Cluster) probePosition(ctx context.Context, ctl *control) error {
	l := &positionLog{ctl: ctl, topic: c.cfg.PositionTopic}
	md, err := l.find(ctx, missingTries)
	if errors.As(err, new(*checkpoint.Unusable)) {
		return nil
	}
	if err != nil {
		return err
	}
	configs, err := ctl.configs(ctx, []string{l.topic})
	if err != nil {
		return err
	}
	if err := led(md, configs[l.topic].minISR); err != nil {
		return err
	}
	return ctl.askAt(ctx, ctl.brokers[md.Partitions[0].Leader], answers)
}

func (c *Cluster) probeTopics(ctx context.Context, ctl *control, topics []string) error {
	found, err := ctl.topics(ctx, topics)
	if err != nil {
		return &failure{doing: "probe kafka", err: err}
	}
	why := c.createMissing(ctx, ctl, topics, found)
	configs, err := ctl.configs(ctx, topics)
	if err != nil {
		return &failure{doing: "probe kafka", err: err}
	}
	var missing several
	var leaders []int32
	for _, name := range topics {
		md := found[name]
		if md == nil {
			md = &sarama.TopicMetadata{Name: name, Err: sarama.ErrUnknownTopicOrPartition}
		}
		if err := ctl.works(ctx, md, configs[name].minISR); err != nil {
			if why[name] != "" {
				err = fmt.Errorf("%s (%w)", why[name], err)
			}
			missing = append(missing, &failure{doing: "probe topic " + name, topic: name, err: err})
			continue
		}
		for _, part := range md.Partitions {
			leaders = append(leaders, part.Leader)
		}
	}
	if len(missing) > 0 {
		return missing
	}
	slices.Sort(leaders)
	for _, id := range slices.Compact(leaders) {
		// Metadata still names a broker that only we cannot reach.
		if err := ctl.askAt(ctx, ctl.brokers[id], answers); err != nil {
			return &failure{doing: fmt.Sprintf("probe kafka: reach broker %d at %s", id, ctl.brokers[id]), err: err}
		}
	}
	return nil
}

// works judges one topic for Probe.
func (c *control) works(ctx context.Context, md *sarama.TopicMetadata, minISR int) error {
	if err := usable(md); err != nil {
		return err
	}
	if c.cluster.isPast(md) {
		return errPast
	}
	if _, err := c.countOf(ctx, md); err != nil {
		return err
	}
	return led(md, minISR)
}

// led judges a topic's leaders and replicas.
func led(md *sarama.TopicMetadata, minISR int) error {
	if id, ok := leaderless(md); !ok {
		return fmt.Errorf("partition %d has no leader", id)
	}
	for _, part := range md.Partitions {
		// Kafka 4 asks for no more replicas than there are; an older broker with such a setting fails the session
		// again, which is better than never trying.
		if want := min(minISR, len(part.Replicas)); len(part.Isr) < want {
			return fmt.Errorf("partition %d has %d replicas in sync, min.insync.replicas is %d", part.ID, len(part.Isr), minISR)
		}
	}
	return nil
}
