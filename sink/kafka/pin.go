package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/IBM/sarama"
)

// pin is the partition count over which a topic's keys are hashed during the life of the process. With another count
// the records of a key would be in two partitions and lose their order.
//
// A recreated topic gets its own count if this moves no key of a record in the topic: if the topic has no records, or
// if its count divides the old one. In the second case this process has only stored records in partition p whose hash
// modulo the old count is p, so the hash modulo the new count is p, too. Otherwise the old count stays, and a topic
// with fewer partitions is refused.
type pin struct {
	count      int32
	id         sarama.Uuid   // of the topic; zero: brokers that give no ids do not show that a topic was created again
	deletedIDs []sarama.Uuid // of the topics of that name before it, which a broker may still know
	lastID     sarama.Uuid   // the id seen last
	lastCount  int32         // the count seen last
	gained     float64       // its part of the metric, which several topics may share
}

// isOther reports whether id is that of another topic of the same name.
func (p *pin) isOther(id sarama.Uuid) bool {
	return p.id != sarama.Uuid{} && id != sarama.Uuid{} && p.id != id
}

// errRecreated ends a session that has used a topic before it was recreated. The new topic may have another partition
// count, and no state of the session's sequence numbers.
var errRecreated = errors.New("the topic was recreated")

// errOldMetadata means that metadata is about a topic that was deleted since.
var errOldMetadata = errors.New("metadata is older than what is known already")

// isDeletedTopic reports whether md is about a topic that was deleted since.
func (c *Cluster) isDeletedTopic(md *sarama.TopicMetadata) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pins[md.Name]
	return p != nil && slices.Contains(p.deletedIDs, md.Uuid)
}

// partitionCount returns the partition count over which the topic's keys are hashed. It is called while no record for
// the topic is in flight: between two sessions, or before a session's first record for the topic.
func (c *control) partitionCount(ctx context.Context, md *sarama.TopicMetadata) (int32, error) {
	empty := false
	if c.cluster.mustCheckEmpty(md) {
		var err error
		if empty, err = c.isEmpty(ctx, md); err != nil {
			return 0, fmt.Errorf("check whether the recreated topic has records: %w", err)
		}
	}
	return c.cluster.pinCount(md.Name, int32(len(md.Partitions)), md.Uuid, empty)
}

// lastCount returns the partition count that was seen last.
func (c *Cluster) lastCount(topic string) int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pins[topic]; p != nil {
		return p.lastCount
	}
	return 0
}

// mustCheckEmpty reports whether the topic was recreated with a count that moves keys.
func (c *Cluster) mustCheckEmpty(md *sarama.TopicMetadata) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pins[md.Name]
	return p != nil && p.isOther(md.Uuid) && p.count%int32(len(md.Partitions)) != 0 && c.cfg.Partitions[md.Name] == 0
}

// isEmpty asks the leaders of the topic whether it has no records.
func (c *control) isEmpty(ctx context.Context, md *sarama.TopicMetadata) (bool, error) {
	if _, ok := leaderless(md); !ok {
		return false, sarama.ErrLeaderNotAvailable
	}
	empty := true
	for _, part := range md.Partitions {
		err := c.askBroker(ctx, c.brokers[part.Leader], func(b *sarama.Broker) error {
			first, err := offsetAt(b, c.conf.Version, md.Name, part.ID, sarama.OffsetOldest)
			if err != nil {
				return err
			}
			end, err := offsetAt(b, c.conf.Version, md.Name, part.ID, sarama.OffsetNewest)
			empty = empty && first == end
			return err
		})
		if err != nil || !empty {
			return false, err
		}
	}
	return true, nil
}

// offsetAt requests the first offset (sarama.OffsetOldest) or the end (OffsetNewest) of a partition from its leader.
func offsetAt(b *sarama.Broker, version sarama.KafkaVersion, topic string, id int32, which int64) (int64, error) {
	req := sarama.NewOffsetRequest(version)
	req.AddBlock(topic, id, which, 1)
	res, err := b.GetAvailableOffsets(req)
	if err != nil {
		return 0, err
	}
	block := res.GetBlock(topic, id)
	switch {
	case block == nil:
		return 0, errUnanswered
	case block.Err != sarama.ErrNoError:
		return 0, block.Err
	}
	return block.Offset, nil
}

// pinCount returns the partition count of a topic, and pins it at the first call. Later counts are only compared,
// unless the topic was recreated: more partitions are a warning, fewer are an error.
func (c *Cluster) pinCount(topic string, found int32, id sarama.Uuid, empty bool) (int32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pins[topic]
	if p == nil {
		p = &pin{count: found, lastCount: found, id: id, lastID: id}
		if n := c.cfg.Partitions[topic]; n != 0 {
			p.count = n
		}
		c.pins[topic] = p
		c.metrics.changed.WithLabelValues(c.metrics.label(topic)) // the series exists
	}
	if p.id == (sarama.Uuid{}) {
		p.id, p.lastID = id, id
	}
	recreated, before := p.isOther(id), p.count
	if recreated && c.cfg.Partitions[topic] == 0 && (empty || p.count%found == 0) {
		p.count = found
	}
	if recreated && p.lastID != id {
		p.lastID = id
		c.log.Warn("topic was recreated", "topic", topic, "partitions", found, "used", p.count)
	}
	if recreated && found >= p.count {
		p.deletedIDs, p.id = append(p.deletedIDs, p.id), id
	}
	if gained := float64(found - p.count); p.lastCount != found || p.count != before {
		c.metrics.changed.WithLabelValues(c.metrics.label(topic)).Add(gained - p.gained)
		p.gained = gained
	}
	if p.lastCount != found && found > p.count {
		c.log.Warn("partitions were added to the topic; keys keep their partitions until the next restart",
			"topic", topic, "partitions", found, "used", p.count)
	}
	p.lastCount = found
	switch {
	case found >= p.count:
		return p.count, nil
	case recreated:
		return 0, fmt.Errorf("%d partitions, %d wanted: %w, and was recreated with records whose keys would move; remedy: delete its records, "+
			"create it with %d partitions, or restart the daemon", found, p.count, errFewerPartitions, p.count)
	}
	return 0, fmt.Errorf("%d partitions, %d wanted: %w; remedy: add partitions, or restart the daemon", found, p.count, errFewerPartitions)
}
