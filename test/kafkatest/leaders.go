package kafkatest

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/test/child"
)

// MoveLeader makes another replica the leader of a partition: the next one after the present leader, by node id. It
// returns when the cluster reports the new leader.
func MoveLeader(ctx context.Context, brokers []string, topic string, partition int) error {
	return admin(brokers, fmt.Sprintf("move the leader of %s/%d", topic, partition), func(client *kgo.Client) error {
		p, err := describe(ctx, client, topic, partition)
		if err != nil {
			return err
		}
		order := []int32{next(p.Leader, p.Replicas)}
		for _, r := range p.Replicas {
			if r != order[0] {
				order = append(order, r)
			}
		}
		if err := prefer(ctx, client, topic, partition, order); err != nil {
			return err
		}
		return child.Await(ctx, func() error {
			if err := elect(ctx, client, topic, partition); err != nil {
				return err
			}
			p, err := describe(ctx, client, topic, partition)
			if err == nil && p.Leader != order[0] {
				err = fmt.Errorf("%d leads", p.Leader)
			}
			return err
		})
	})
}

// AwaitInSync returns when every partition of the topic has so many in-sync replicas.
func AwaitInSync(ctx context.Context, brokers []string, topic string, partitions, replicas int) error {
	return admin(brokers, "wait for the replicas of "+topic, func(client *kgo.Client) error {
		return child.Await(ctx, func() error {
			for i := range partitions {
				p, err := describe(ctx, client, topic, i)
				if err != nil {
					return err
				}
				if len(p.ISR) < replicas {
					return fmt.Errorf("partition %d has %d of %d in sync", i, len(p.ISR), replicas)
				}
			}
			return nil
		})
	})
}

func next(leader int32, replicas []int32) int32 {
	lowest, above := replicas[0], int32(-1)
	for _, r := range replicas {
		lowest = min(lowest, r)
		if r > leader && (above < 0 || r < above) {
			above = r
		}
	}
	if above < 0 {
		return lowest
	}
	return above
}

func describe(ctx context.Context, client *kgo.Client, topic string, partition int) (*kmsg.MetadataResponseTopicPartition, error) {
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = kmsg.StringPtr(topic)
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return nil, err
	}
	for i := range resp.Topics {
		if err := kerr.ErrorForCode(resp.Topics[i].ErrorCode); err != nil {
			return nil, err
		}
		for j := range resp.Topics[i].Partitions {
			if p := &resp.Topics[i].Partitions[j]; int(p.Partition) == partition {
				return p, nil
			}
		}
	}
	return nil, fmt.Errorf("topic %s has no partition %d", topic, partition)
}

// prefer sets the order of the replicas; the first is the preferred leader.
func prefer(ctx context.Context, client *kgo.Client, topic string, partition int, replicas []int32) error {
	p := kmsg.NewAlterPartitionAssignmentsRequestTopicPartition()
	p.Partition, p.Replicas = int32(partition), replicas
	t := kmsg.NewAlterPartitionAssignmentsRequestTopic()
	t.Topic, t.Partitions = topic, append(t.Partitions, p)
	req := kmsg.NewPtrAlterPartitionAssignmentsRequest()
	req.TimeoutMillis = adminTimeoutMillis
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	if err := refusal(resp.ErrorCode, resp.ErrorMessage); err != nil {
		return err
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if err := refusal(p.ErrorCode, p.ErrorMessage); err != nil {
				return err
			}
		}
	}
	return nil
}

// elect makes the preferred replica the leader.
func elect(ctx context.Context, client *kgo.Client, topic string, partition int) error {
	t := kmsg.NewElectLeadersRequestTopic()
	t.Topic, t.Partitions = topic, []int32{int32(partition)}
	req := kmsg.NewPtrElectLeadersRequest()
	req.TimeoutMillis = adminTimeoutMillis
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if p.ErrorCode != kerr.ElectionNotNeeded.Code {
				if err := refusal(p.ErrorCode, p.ErrorMessage); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
