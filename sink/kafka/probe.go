package kafka

import (
	"context"
	"fmt"
	"slices"

	"github.com/IBM/sarama"
)

// Probe checks, without writing, whether everything that the last session waited for is available: brokers answer,
// its topics exist and may be written, and every partition has a reachable leader and enough replicas in sync. The
// error names what is missing. The position topic, which every session needs, is always checked; if it cannot be
// used, the error is a *[checkpoint.Unusable].
func (c *Cluster) Probe(ctx context.Context) (err error) {
	ctl, done, err := c.temporaryControl(ctx)
	if err != nil {
		return err
	}
	defer done()
	defer func() {
		if err != nil {
			ctl.doubt()
		}
	}()

	topics, producerID := c.lastWaits()
	if err := ctl.ping(ctx); err != nil {
		return &failure{op: "probe kafka", err: err}
	}
	if producerID {
		if _, err := ctl.producerID(ctx); err != nil {
			return &failure{op: "probe kafka: get a producer id", err: err}
		}
	}
	if c.cfg.PositionTopic != "" {
		if err := c.probePosition(ctx, ctl); err != nil {
			return positionFailure("probe position topic ", c.cfg.PositionTopic, err)
		}
	}
	if len(topics) == 0 {
		return nil
	}
	return c.probeTopics(ctx, ctl, topics)
}

// probePosition checks whether a position record can be stored.
func (c *Cluster) probePosition(ctx context.Context, ctl *control) error {
	l := &positionLog{ctl: ctl, topic: c.cfg.PositionTopic}
	md, err := l.find(ctx, 1)
	if err != nil {
		return err
	}
	configs, err := ctl.configs(ctx, []string{l.topic})
	if err != nil {
		return err
	}
	if err := checkLeaders(md, configs[l.topic].minISR); err != nil {
		return err
	}
	return ctl.askBroker(ctx, ctl.brokers[md.Partitions[0].Leader], ping)
}

func (c *Cluster) probeTopics(ctx context.Context, ctl *control, topics []string) error {
	found, err := ctl.topics(ctx, topics)
	if err != nil {
		return &failure{op: "probe kafka", err: err}
	}
	why := c.createMissing(ctx, ctl, topics, found)
	configs, err := ctl.configs(ctx, topics)
	if err != nil {
		return &failure{op: "probe kafka", err: err}
	}
	var missing errorList
	var leaders []int32
	for _, name := range topics {
		md := found[name]
		if md == nil {
			md = &sarama.TopicMetadata{Name: name, Err: sarama.ErrUnknownTopicOrPartition}
		}
		if err := ctl.checkTopic(ctx, md, configs[name].minISR); err != nil {
			if why[name] != "" {
				err = fmt.Errorf("%s (%w)", why[name], err)
			}
			missing = append(missing, &failure{op: "probe topic " + name, topic: name, err: err})
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
		// Metadata may name a broker that only we cannot reach.
		if err := ctl.askBroker(ctx, ctl.brokers[id], ping); err != nil {
			return &failure{op: fmt.Sprintf("probe kafka: reach broker %d at %s", id, ctl.brokers[id]), err: err}
		}
	}
	return nil
}

// checkTopic checks one topic for Probe.
func (c *control) checkTopic(ctx context.Context, md *sarama.TopicMetadata, minISR int) error {
	if err := checkWritable(md); err != nil {
		return err
	}
	if c.cluster.isDeletedTopic(md) {
		return errOldMetadata
	}
	if _, err := c.partitionCount(ctx, md); err != nil {
		return err
	}
	return checkLeaders(md, minISR)
}

// checkLeaders checks a topic's leaders and replicas.
func checkLeaders(md *sarama.TopicMetadata, minISR int) error {
	if id, ok := leaderless(md); !ok {
		return fmt.Errorf("partition %d has no leader", id)
	}
	for _, part := range md.Partitions {
		// Kafka 4 requires no more replicas than exist. With an older broker and such a setting the next session fails
		// again, which is better than never trying.
		if want := min(minISR, len(part.Replicas)); len(part.Isr) < want {
			return fmt.Errorf("partition %d has %d replicas in sync, min.insync.replicas is %d", part.ID, len(part.Isr), minISR)
		}
	}
	return nil
}
