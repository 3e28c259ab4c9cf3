package kafka

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
)

// hold is a membership in the group that keeps all others out of it.
type hold struct {
	member     string
	generation int32
	heard      atomic.Int64 // when we asked what the coordinator last answered with yes, in nanoseconds; 0: it has said no
	stop       chan struct{}
	beating    sync.WaitGroup
}

const (
	// holdFor is after what silence of ours the coordinator gives the group to somebody else. So long it is in use after kill -9.
	holdFor = 30 * time.Second
	// beatEvery leaves room for a coordinator that moves.
	beatEvery = 3 * time.Second
)

// errHoldLost ends what may be done only by one at a time.
var errHoldLost = errors.New("the group is not ours any more: its coordinator was out of reach for too long, or somebody has removed us; " +
	"what was done since the last commit is not noted")

// Hold keeps everybody else from noting anything until Close, or says who does that to us. It reads again what is noted:
// another may have had the group meanwhile.
//
// It joins the group with a protocol of a name that nobody else has. Kafka lets nobody into a group who has no protocol in
// common with all its members: so one member at most, whoever is first, and each commit is checked against it.
func (l *DeadLetters) Hold(ctx context.Context) error {
	defer context.AfterFunc(ctx, l.dialer.cut)()
	failed := func(err error) error {
		return &failure{doing: "take hold of group " + l.group, rights: l.rights(), err: err}
	}
	h, err := l.join()
	if h.member != "" {
		l.hold = h // also after an error: Close gives it up
	}
	if err != nil && !errors.Is(err, sarama.ErrInconsistentGroupProtocol) {
		return failed(err)
	}
	members, err2 := l.members()
	if err2 != nil {
		return failed(err2)
	}
	// A group of the newer protocol (KIP-848) may let us in beside its members, and shows none of them.
	if _, in := members[h.member]; err != nil || !in || len(members) != 1 {
		delete(members, h.member)
		return failed(inUse(members))
	}
	h.beating.Go(l.beat)
	if err := l.look(); err != nil {
		return failed(err)
	}
	return nil
}

func inUse(members map[string]string) error {
	var who []string
	for _, m := range members {
		who = append(who, m)
	}
	slices.Sort(who)
	by := ""
	if len(who) > 0 {
		by = " by " + strings.Join(who, " and ")
	}
	return fmt.Errorf("it is in use%s: another dlq retry or drop, or somebody consumes with it; wait until that has ended (one that was killed counts for %s)", by, holdFor)
}

// join returns when we are in the group. Also with an error the hold has the member's id, if we have become one.
func (l *DeadLetters) join() (*hold, error) {
	req := &sarama.JoinGroupRequest{
		Version: 5, GroupId: l.group, SessionTimeout: int32(holdFor.Milliseconds()), RebalanceTimeout: int32(holdFor.Milliseconds()),
		// Of a consumer, because tools do not list other groups.
		ProtocolType: "consumer",
	}
	h := &hold{stop: make(chan struct{})}
	if err := req.AddGroupProtocolMetadata("outboxcdc-dlq-"+rand.Text(), &sarama.ConsumerGroupMemberMetadata{Topics: []string{l.topic}}); err != nil {
		return h, err
	}
	err := l.ask(func(b *sarama.Broker) error {
		h.heard.Store(time.Now().UnixNano())
		res, err := b.JoinGroup(req)
		if err == nil && errors.Is(res.Err, sarama.ErrMemberIdRequired) { // from now on it is the same member, however often we ask
			req.MemberId = res.MemberId
			res, err = b.JoinGroup(req)
		}
		if err != nil {
			return err
		}
		if err := codeOf(res.Err); err != nil {
			return err
		}
		h.member, h.generation = res.MemberId, res.GenerationId
		return nil
	})
	if err != nil {
		return h, err
	}
	return h, l.ask(func(b *sarama.Broker) error {
		sync := &sarama.SyncGroupRequest{Version: 3, GroupId: l.group, GenerationId: h.generation, MemberId: h.member}
		if err := sync.AddGroupAssignmentMember(h.member, &sarama.ConsumerGroupMemberAssignment{}); err != nil {
			return err
		}
		res, err := b.SyncGroup(sync)
		if err != nil {
			return err
		}
		return codeOf(res.Err)
	})
}

// codeOf is nil for no error.
func codeOf(code sarama.KError) error {
	if code == sarama.ErrNoError {
		return nil
	}
	return code
}

// beat tells the coordinator that we live, until Close or until it does not want to know.
func (l *DeadLetters) beat() {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for {
		select {
		case <-l.hold.stop:
			return
		case <-tick.C:
		}
		if l.heartbeat(); l.hold.heard.Load() == 0 {
			return
		}
	}
}

func (l *DeadLetters) heartbeat() {
	h, now := l.hold, time.Now()
	_, err := l.try(func(b *sarama.Broker) error {
		res, err := b.Heartbeat(&sarama.HeartbeatRequest{Version: 3, GroupId: l.group, GenerationId: h.generation, MemberId: h.member})
		if err != nil {
			return err
		}
		return codeOf(res.Err)
	})
	switch {
	case err == nil:
		h.heard.Store(now.UnixNano())
	case isNoMember(err):
		h.heard.Store(0)
	} // else Held knows for how long that is no matter
}

// isNoMember: who asks is not, or no longer, in the group.
func isNoMember(err error) bool {
	return errors.Is(err, sarama.ErrUnknownMemberId) || errors.Is(err, sarama.ErrIllegalGeneration) || errors.Is(err, sarama.ErrFencedInstancedId)
}

// Held is an error as soon as somebody else may have the group.
func (l *DeadLetters) Held() error {
	if l.hold == nil || time.Since(time.Unix(0, l.hold.heard.Load())) > holdFor {
		return &failure{doing: "hold group " + l.group, err: errHoldLost}
	}
	return nil
}

// release lets the next one in at once. It is no matter if it fails: then holdFor passes.
func (l *DeadLetters) release() {
	h := l.hold
	if h == nil {
		return
	}
	close(h.stop)
	h.beating.Wait()
	if b, err := l.client.Coordinator(l.group); err == nil {
		_, _ = b.LeaveGroup(&sarama.LeaveGroupRequest{Version: 3, GroupId: l.group, Members: []sarama.MemberIdentity{{MemberId: h.member}}})
	}
	l.hold = nil
}

// lettersRetries bounds how often something is asked again that should pass: a coordinator that has yet to be made, or loads.
const lettersRetries = 20

// ask puts a question to the group's coordinator, again if that may help.
func (l *DeadLetters) ask(question func(*sarama.Broker) error) error {
	for tries := 0; ; tries++ {
		again, err := l.try(question)
		if !again || tries == lettersRetries {
			return err
		}
		l.dialer.pause(250 * time.Millisecond)
	}
}

// try is one try of ask. If it is to be repeated, the coordinator is looked for anew.
func (l *DeadLetters) try(question func(*sarama.Broker) error) (again bool, err error) {
	coordinator, err := l.client.Coordinator(l.group)
	lost := false
	if err == nil {
		if err = question(coordinator); err == nil {
			return false, nil
		}
		if lost = kindOf(err).reason == reasonConnection; lost {
			_ = coordinator.Close() // it is opened again when it is asked for
		}
	}
	if again = lost || kindOf(err).class == resend; again {
		_ = l.client.RefreshCoordinator(l.group)
	}
	return again, err
}

// noted reads the group's offsets.
func (l *DeadLetters) noted() error {
	ids := make([]int32, len(l.parts))
	for i := range l.parts {
		ids[i] = l.parts[i].id
	}
	var res *sarama.OffsetFetchResponse
	err := l.ask(func(b *sarama.Broker) (err error) {
		res, err = b.FetchOffset(sarama.NewOffsetFetchRequest(l.cluster.version, l.group, map[string][]int32{l.topic: ids}))
		if err == nil {
			err = codeOf(res.GroupError())
		}
		return err
	})
	if errors.Is(err, sarama.ErrGroupIDNotFound) { // nobody has dealt with anything
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the offsets of group %s: %w", l.group, err)
	}
	for i := range l.parts {
		p := &l.parts[i]
		block := res.GetBlock(l.topic, p.id)
		if block == nil {
			return fmt.Errorf("read the offsets of group %s: %w", l.group, errUnanswered)
		}
		if block.Err != sarama.ErrNoError {
			return fmt.Errorf("read the offset of group %s in partition %d: %w", l.group, p.id, block.Err)
		}
		if p.dealt, err = parseDealt(block.Offset, block.Metadata); err != nil {
			return fmt.Errorf("group %s in partition %d: %w", l.group, p.id, err)
		}
		p.some = block.Offset >= 0
	}
	return nil
}

// members are who is in the group, by member id.
func (l *DeadLetters) members() (map[string]string, error) {
	all := map[string]string{}
	err := l.ask(func(b *sarama.Broker) error {
		res, err := b.DescribeGroups(&sarama.DescribeGroupsRequest{Version: 5, Groups: []string{l.group}})
		if err != nil {
			return err
		}
		clear(all)
		for _, g := range res.Groups {
			if g.Err != sarama.ErrNoError && g.Err != sarama.ErrGroupIDNotFound {
				return g.Err
			}
			for id, m := range g.Members {
				all[id] = fmt.Sprintf("%s at %s", m.ClientId, strings.TrimPrefix(m.ClientHost, "/"))
			}
		}
		return nil
	})
	return all, err
}

// Commit stores what was noted as the group's offsets. It wants a Hold.
func (l *DeadLetters) Commit() error {
	failed := func(err error) error {
		return &failure{doing: fmt.Sprintf("commit the offsets of group %s in topic %s", l.group, l.topic), rights: l.rights(), err: err}
	}
	if l.hold == nil {
		return failed(errors.New("internal error: nobody holds the group"))
	}
	req := &sarama.OffsetCommitRequest{Version: 6, ConsumerGroup: l.group, ConsumerGroupGeneration: l.hold.generation, ConsumerID: l.hold.member}
	for i := range l.parts {
		p := &l.parts[i]
		req.AddBlockWithLeaderEpoch(l.topic, p.id, p.next, -1, 0, p.metadata())
	}
	err := l.ask(func(b *sarama.Broker) error {
		res, err := b.CommitOffset(req)
		if err != nil {
			return err
		}
		for _, codes := range res.Errors {
			for id, code := range codes {
				switch {
				case code == sarama.ErrNoError:
				case isNoMember(code):
					return errHoldLost
				default:
					return fmt.Errorf("partition %d: %w", id, code)
				}
			}
		}
		return nil
	})
	if err != nil {
		return failed(err)
	}
	return nil
}
