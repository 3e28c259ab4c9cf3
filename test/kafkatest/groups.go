package kafkatest

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Evict removes all members of a consumer group, which must have some.
func Evict(ctx context.Context, brokers []string, group string) error {
	return admin(ctx, brokers, "evict the members of group "+group, func(client *kgo.Client) error {
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
