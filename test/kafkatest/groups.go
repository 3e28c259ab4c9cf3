package kafkatest

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Evict removes all members of a consumer group, which must have some.
func Evict(ctx context.Context, brokers []string, group string) error {
	return admin(brokers, "evict the members of group "+group, func(client *kgo.Client) error {
		req := kmsg.NewPtrDescribeGroupsRequest()
		req.Groups = []string{group}
		resp, err := req.RequestWith(ctx, client)
		if err != nil {
			return err
		}
		leave := kmsg.NewPtrLeaveGroupRequest()
		leave.Group = group
		for _, m := range resp.Groups[0].Members {
			member := kmsg.NewLeaveGroupRequestMember()
			member.MemberID = m.MemberID
			leave.Members = append(leave.Members, member)
		}
		if len(leave.Members) == 0 {
			return errors.New("there are none")
		}
		left, err := leave.RequestWith(ctx, client)
		if err != nil {
			return err
		}
		return kerr.ErrorForCode(left.ErrorCode)
	})
}

// CommittedOffsets returns the committed offsets of a group, by "topic/partition". A partition without one is missing.
func CommittedOffsets(ctx context.Context, brokers []string, group, topic string, partitions int) (map[string]int64, error) {
	offsets := map[string]int64{}
	err := admin(brokers, "read the offsets of group "+group, func(client *kgo.Client) error {
		req := kmsg.NewPtrOffsetFetchRequest()
		asked := kmsg.NewOffsetFetchRequestGroup()
		asked.Group = group
		t := kmsg.NewOffsetFetchRequestGroupTopic()
		t.Topic = topic
		for p := range partitions {
			t.Partitions = append(t.Partitions, int32(p))
		}
		asked.Topics = append(asked.Topics, t)
		req.Groups = append(req.Groups, asked)
		resp, err := req.RequestWith(ctx, client)
		if err != nil {
			return err
		}
		for _, g := range resp.Groups {
			if err := kerr.ErrorForCode(g.ErrorCode); err != nil {
				return err
			}
			for _, t := range g.Topics {
				for _, p := range t.Partitions {
					if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
						return err
					}
					if p.Offset >= 0 {
						offsets[fmt.Sprintf("%s/%d", t.Topic, p.Partition)] = p.Offset
					}
				}
			}
		}
		return nil
	})
	return offsets, err
}
