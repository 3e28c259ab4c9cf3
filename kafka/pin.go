package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/IBM/sarama"
)

// pin is the partition count that a topic's keys are hashed over, for the life of the process: with another count the records of a
// key would go to two partitions and lose their order.
//
// It protects the records that the topic holds. Keys of a topic that was deleted and created again are therefore hashed over its own
// count if that moves no key of a record in it. None moves if the topic holds no record, or if its count divides the old one: what
// this process has stored in partition p of it has a key whose hash modulo the old count is p, and so it is modulo the new one.
// Otherwise the old count stays, and a topic with fewer partitions than that is refused.
type pin struct {
	count int32
	id    sarama.Uuid   // of the topic; zero: brokers that give no ids do not show that a topic was created again
	past  []sarama.Uuid // of the topics of that name before it, which a broker may still know
	seen  sarama.Uuid   // the id seen last
	found int32         // the count seen last
}

// other: id is that of another topic of the same name.
func (p *pin) other(id sarama.Uuid) bool {
	return p.id != sarama.Uuid{} && id != sarama.Uuid{} && p.id != id
}

// errCreatedAgain ends a session that has used the topic. The new topic may have another partition count, and it knows nothing of the
// session's sequence numbers.
var errCreatedAgain = errors.New("the topic was recreated")

// errPast is metadata of a topic that was deleted since.
var errPast = errors.New("metadata is older than what is known already")

// isPast reports whether md is about a topic that was deleted since.
func (c *Cluster) isPast(md *sarama.TopicMetadata) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pins[md.Name]
	return p != nil && slices.Contains(p.past, md.Uuid)
}

// countOf returns the partition count to hash the topic's keys over. It is called while nothing is under way to the topic: between two
// sessions, or before a session's first record to it.
func (c *control) countOf(ctx context.Context, md *sarama.TopicMetadata) (int32, error) {
	empty := false
	if c.cluster.asksWhetherEmpty(md) {
		var err error
		if empty, err = c.empty(ctx, md); err != nil {
			return 0, fmt.Errorf("look whether the topic, which was created again, holds records: %w", err)
		}
	}
	return c.cluster.pinned(md.Name, int32(len(md.Partitions)), md.Uuid, empty)
}

// asksWhetherEmpty: the topic was created again with a count that moves keys.
func (c *Cluster) asksWhetherEmpty(md *sarama.TopicMetadata) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pins[md.Name]
	return p != nil && p.other(md.Uuid) && p.count%int32(len(md.Partitions)) != 0 && c.cfg.Partitions[md.Name] == 0
}

// empty asks the leaders of the topic whether it holds no record.
func (c *control) empty(ctx context.Context, md *sarama.TopicMetadata) (bool, error) {
	if _, led := leaderless(md); !led {
		return false, sarama.ErrLeaderNotAvailable
	}
	empty := true
	for _, part := range md.Partitions {
		err := c.askAt(ctx, c.brokers[part.Leader], func(b *sarama.Broker) error {
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

// offsetAt asks a leader where a partition begins (sarama.OffsetOldest) or ends (OffsetNewest).
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

// pinned returns the partition count to hash over, pinning it at the first call for a topic. What the cluster has now is only compared,
// unless the topic was created again: more partitions are a warning, fewer an error.
func (c *Cluster) pinned(topic string, found int32, id sarama.Uuid, empty bool) (int32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pins[topic]
	if p == nil {
		p = &pin{count: found, found: found, id: id, seen: id}
		if n := c.cfg.Partitions[topic]; n != 0 {
			p.count = n
		}
		c.pins[topic] = p
		c.metrics.changed.WithLabelValues(c.metrics.label(topic)).Set(0)
	}
	if p.id == (sarama.Uuid{}) {
		p.id, p.seen = id, id
	}
	again, before := p.other(id), p.count
	if again && c.cfg.Partitions[topic] == 0 && (empty || p.count%found == 0) {
		p.count = found
	}
	if again && p.seen != id {
		p.seen = id
		c.log.Warn("topic was recreated", "topic", topic, "partitions", found, "used", p.count)
	}
	if again && found >= p.count {
		p.past, p.id = append(p.past, p.id), id
	}
	if p.found != found || p.count != before {
		c.metrics.changed.WithLabelValues(c.metrics.label(topic)).Set(float64(found - p.count))
	}
	if p.found != found && found > p.count {
		c.log.Warn("partitions were added to the topic; keys keep their partitions until the next restart",
			"topic", topic, "partitions", found, "used", p.count)
	}
	p.found = found
	switch {
	case found >= p.count:
		return p.count, nil
	case again:
		return 0, fmt.Errorf("%d partitions, %d wanted: %w, and was created again with records whose keys would move; remedy: delete its records, "+
			"create it with %d partitions, or restart the daemon", found, p.count, errFewerPartitions, p.count)
	}
	return 0, fmt.Errorf("%d partitions, %d wanted: %w; remedy: add partitions, or restart the daemon", found, p.count, errFewerPartitions)
}
