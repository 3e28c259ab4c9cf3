package deadletter

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

	"github.com/outboxcdc/outboxcdc/sink/kafka"
)

// hold is our membership in the group, which excludes every other member.
type hold struct {
	member     string
	generation int32
	lastAgreed atomic.Int64 // when the last accepted request was sent, in nanoseconds; 0: the coordinator has refused a request
	stop       chan struct{}
	heartbeats sync.WaitGroup
}

const (
	// holdFor is the session timeout: after a kill -9 the group remains in use for this long.
	holdFor = 30 * time.Second
	// holdMargin is how much earlier than after holdFor we take the group for lost, so that open requests end in time.
	holdMargin = 3 * time.Second
	// heldEvery is how often WhileHeld looks.
	heldEvery = 100 * time.Millisecond
	// beatEvery is the heartbeat interval. It leaves time for the coordinator to move to another broker.
	beatEvery = 3 * time.Second
)

// errHoldLost ends a command: another process may change the handled offsets.
var errHoldLost = errors.New("the group is not ours any more: its coordinator was out of reach for too long, or our member was removed; " +
	"dead letters handled since the last commit are not recorded")

// Hold keeps every other process from committing offsets until Close, or its error says which member prevents that.
// It reads the group's offsets again: another process may have changed them.
//
// It joins the group with a protocol of a random name. Kafka admits a member to a group only if it has a protocol in
// common with all other members, so there is at most one member, the first, and the coordinator checks each commit
// against it.
func (l *Topic) Hold(ctx context.Context) error {
	defer context.AfterFunc(ctx, l.client.Cut)()
	failed := func(err error) error {
		return kafka.Failure("take hold of group "+l.group, "", l.permissions(), err)
	}
	h, err := l.join()
	if h.member != "" {
		l.hold = h // also after an error: Close leaves the group
	}
	if err != nil && !errors.Is(err, sarama.ErrInconsistentGroupProtocol) {
		return failed(err)
	}
	members, err2 := l.members()
	if err2 != nil {
		return failed(err2)
	}
	// A group of the newer protocol (KIP-848) may admit us next to its members, and describes none of them.
	if _, in := members[h.member]; err != nil || !in || len(members) != 1 {
		delete(members, h.member)
		return failed(inUse(members))
	}
	h.heartbeats.Go(l.beat)
	if err := l.readState(ctx); err != nil {
		return failed(err)
	}
	return nil
}

// errInUse means that the group has another member.
var errInUse = errors.New("it is in use")

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
	return fmt.Errorf("%w%s: another dlq retry or drop, for some seconds a daemon, or a consumer; wait until that has ended (a killed process counts for %s)", errInUse, by, holdFor)
}

// join joins the group. The hold has a member id if the coordinator has assigned one, even with an error.
func (l *Topic) join() (*hold, error) {
	req := &sarama.JoinGroupRequest{
		Version: 5, GroupId: l.group, SessionTimeout: int32(holdFor.Milliseconds()), RebalanceTimeout: int32(holdFor.Milliseconds()),
		// Tools list only groups of this type.
		ProtocolType: "consumer",
	}
	h := &hold{stop: make(chan struct{})}
	if err := req.AddGroupProtocolMetadata("outboxcdc-dlq-"+rand.Text(), &sarama.ConsumerGroupMemberMetadata{Topics: []string{l.topic}}); err != nil {
		return h, err
	}
	err := l.ask(func(b *sarama.Broker) error {
		h.lastAgreed.Store(time.Now().UnixNano())
		res, err := b.JoinGroup(req)
		if err == nil && errors.Is(res.Err, sarama.ErrMemberIdRequired) { // repeated requests are then of the same member
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

// codeOf returns code as an error, nil for ErrNoError.
func codeOf(code sarama.KError) error {
	if code == sarama.ErrNoError {
		return nil
	}
	return code
}

// beat sends heartbeats until Close, or until the coordinator refuses one.
func (l *Topic) beat() {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for {
		select {
		case <-l.hold.stop:
			return
		case <-tick.C:
		}
		if l.heartbeat(); l.hold.lastAgreed.Load() == 0 {
			return
		}
	}
}

func (l *Topic) heartbeat() {
	h, now := l.hold, time.Now()
	_, err := l.tryOnce(func(b *sarama.Broker) error {
		res, err := b.Heartbeat(&sarama.HeartbeatRequest{Version: 3, GroupId: l.group, GenerationId: h.generation, MemberId: h.member})
		if err != nil {
			return err
		}
		return codeOf(res.Err)
	})
	switch {
	case err == nil:
		h.lastAgreed.Store(now.UnixNano())
	case isNoMember(err):
		h.lastAgreed.Store(0)
	} // other errors do not matter until Held finds that holdFor has passed
}

// isNoMember reports whether the coordinator refused a request because its sender is not a member of the group.
func isNoMember(err error) bool {
	return errors.Is(err, sarama.ErrUnknownMemberId) || errors.Is(err, sarama.ErrIllegalGeneration) || errors.Is(err, sarama.ErrFencedInstancedId)
}

// Held returns an error as soon as another process may have the group.
func (l *Topic) Held() error {
	if l.hold == nil || time.Since(time.Unix(0, l.hold.lastAgreed.Load())) > holdFor-holdMargin {
		return kafka.Failure("hold group "+l.group, "", "", errHoldLost)
	}
	return nil
}

// WhileHeld returns a context that ends, with the error of Held as its cause, as soon as another process may have the
// group: a request that waits for an answer for long must not be sent again beside that process.
func (l *Topic) WhileHeld(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		tick := time.NewTicker(heldEvery)
		defer tick.Stop()
		for ctx.Err() == nil {
			if err := l.Held(); err != nil {
				cancel(err)
			}
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}

// release leaves the group, so that the next process can join at once. If it fails, the group is free after holdFor.
func (l *Topic) release() {
	h := l.hold
	if h == nil {
		return
	}
	close(h.stop)
	h.heartbeats.Wait()
	_, _ = l.tryOnce(func(b *sarama.Broker) error {
		_, err := b.LeaveGroup(&sarama.LeaveGroupRequest{Version: 3, GroupId: l.group, Members: []sarama.MemberIdentity{{MemberId: h.member}}})
		return err
	})
	l.hold = nil
}

// maxRetries is how often a request is repeated after an error that should pass: a coordinator that is being elected,
// or loads.
const maxRetries = 20

// pauseBetween is the pause between two tries.
const pauseBetween = 250 * time.Millisecond

// ask sends a request to the group's coordinator, and repeats it after transient errors.
func (l *Topic) ask(question func(*sarama.Broker) error) error {
	for tries := 0; ; tries++ {
		again, err := l.tryOnce(question)
		if !again || tries == maxRetries {
			return err
		}
		l.client.Pause(pauseBetween)
	}
}

// tryOnce is one attempt of ask.
func (l *Topic) tryOnce(question func(*sarama.Broker) error) (again bool, err error) {
	err = l.client.AskCoordinator(l.group, question)
	return kafka.ConnectionLost(err) || kafka.Transient(err), err
}

// readHandled reads the group's offsets.
func (l *Topic) readHandled() error {
	if len(l.parts) == 0 {
		return nil
	}
	ids := make([]int32, len(l.parts))
	for i := range l.parts {
		ids[i] = l.parts[i].id
	}
	var res *sarama.OffsetFetchResponse
	err := l.ask(func(b *sarama.Broker) (err error) {
		res, err = b.FetchOffset(sarama.NewOffsetFetchRequest(kafka.ProtocolVersion, l.group, map[string][]int32{l.topic: ids}))
		if err == nil {
			err = codeOf(res.GroupError())
		}
		return err
	})
	if errors.Is(err, sarama.ErrGroupIDNotFound) { // no dead letter was handled yet
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the offsets of group %s: %w", l.group, err)
	}
	for i := range l.parts {
		p := &l.parts[i]
		block := res.GetBlock(l.topic, p.id)
		if block == nil {
			return fmt.Errorf("read the offsets of group %s: %w", l.group, errors.New("the broker's answer does not mention the partition"))
		}
		if block.Err != sarama.ErrNoError {
			return fmt.Errorf("read the offset of group %s in partition %d: %w", l.group, p.id, block.Err)
		}
		if p.handled, err = parseHandled(block.Offset, block.Metadata); err != nil {
			return fmt.Errorf("group %s in partition %d: %w", l.group, p.id, err)
		}
		p.committed = block.Offset >= 0
		p.recorded = p.clone()
	}
	return nil
}

// members describes the members of the group, by member id.
func (l *Topic) members() (map[string]string, error) {
	all := map[string]string{}
	err := l.describe(func(g *sarama.GroupDescription) {
		clear(all)
		for id, m := range g.Members {
			all[id] = fmt.Sprintf("%s at %s", m.ClientId, strings.TrimPrefix(m.ClientHost, "/"))
		}
	})
	return all, err
}

// describe calls fn with what the coordinator says about the group.
func (l *Topic) describe(fn func(*sarama.GroupDescription)) error {
	return l.ask(func(b *sarama.Broker) error {
		res, err := b.DescribeGroups(&sarama.DescribeGroupsRequest{Version: 5, Groups: []string{l.group}, IncludeAuthorizedOperations: true})
		if err != nil {
			return err
		}
		for _, g := range res.Groups {
			if g.Err != sarama.ErrNoError && g.Err != sarama.ErrGroupIDNotFound {
				return g.Err
			}
			fn(g)
		}
		return nil
	})
}

// MayHold returns an error if Kafka says that the user may not hold the group: Read on it is missing. It is nil also if
// Kafka does not say.
func (l *Topic) MayHold(ctx context.Context) error {
	defer context.AfterFunc(ctx, l.client.Cut)()
	const unknown = -1 << 31
	var allowed int32 = unknown
	err := l.describe(func(g *sarama.GroupDescription) { allowed = g.AuthorizedOperations })
	if err == nil && allowed != unknown && allowed&(1<<sarama.AclOperationRead) == 0 {
		err = sarama.ErrGroupAuthorizationFailed
	}
	if err != nil {
		return kafka.Failure("ask whether the offsets of group "+l.group+" may be committed", "", l.permissions(), err)
	}
	return nil
}

// Commit stores what was recorded and what was marked as the group's offsets. It requires Hold.
func (l *Topic) Commit() error {
	failed := func(err error) error {
		return kafka.Failure(fmt.Sprintf("commit the offsets of group %s in topic %s", l.group, l.topic), "", l.permissions(), err)
	}
	if l.hold == nil {
		return failed(errors.New("internal error: the group is not held"))
	}
	req := &sarama.OffsetCommitRequest{Version: 6, ConsumerGroup: l.group, ConsumerGroupGeneration: l.hold.generation, ConsumerID: l.hold.member}
	for i := range l.parts {
		p := &l.parts[i]
		req.AddBlockWithLeaderEpoch(l.topic, p.id, p.recorded.next, -1, 0, p.recorded.metadata())
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
