package kafkatest

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// LogEnds reads the ends of topics' partitions repeatedly, over the same connections.
type LogEnds struct{ client *kgo.Client }

// OpenLogEnds does not connect yet.
func OpenLogEnds(brokers []string) (*LogEnds, error) {
	client, err := newClient(brokers)
	if err != nil {
		return nil, err
	}
	return &LogEnds{client}, nil
}

// Read returns, by "topic/partition", the offset after the last record that a read-committed consumer can see now. A
// topic that does not exist has no ends.
func (l *LogEnds) Read(ctx context.Context, topics ...string) (map[string]int64, error) {
	ends := map[string]int64{}
	for _, topic := range topics {
		count, err := partitionsOf(ctx, l.client, topic)
		if errors.Is(err, kerr.UnknownTopicOrPartition) {
			continue
		}
		if err != nil {
			return nil, err
		}
		const latest = -1
		offsets, err := listOffsets(ctx, l.client, topic, count, latest)
		if err != nil {
			return nil, err
		}
		for p, offset := range offsets {
			ends[fmt.Sprintf("%s/%d", topic, p)] = offset
		}
	}
	return ends, nil
}

// Close closes the connections.
func (l *LogEnds) Close() { l.client.Close() }
