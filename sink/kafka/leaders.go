package kafka

import (
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"
)

// askForLeaders makes the watch look up all topics soon.
func (p *Producer) askForLeaders() {
	p.leadersStale.Store(true)
	p.wantLookUp()
}

// setLeaders sets the leaders of a topic's partitions from metadata. Only the watch calls it.
func (p *Producer) setLeaders(t *topic, md *sarama.TopicMetadata) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.id == (sarama.Uuid{}) {
		t.id = md.Uuid
	}
	for _, mp := range md.Partitions {
		if int(mp.ID) >= len(t.parts) {
			continue // a partition beyond the pinned count
		}
		part := &t.parts[mp.ID]
		if mp.LeaderEpoch < part.epoch {
			continue // the metadata is older
		}
		part.epoch = mp.LeaderEpoch
		p.setLeader(part, p.leaderNode(mp))
	}
}

// clearLeaders removes the leaders of a missing topic, so that nothing is sent until a look-up finds the topic.
func (p *Producer) clearLeaders(t *topic) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range t.parts {
		p.setLeader(&t.parts[i], nil)
	}
}

// leaderNode returns the leader of a partition, or nil.
func (p *Producer) leaderNode(mp *sarama.PartitionMetadata) *node {
	addr, ok := p.control.brokers[mp.Leader]
	if !ok || mp.Leader < 0 || errors.Is(mp.Err, sarama.ErrLeaderNotAvailable) {
		return nil
	}
	n := p.nodes[mp.Leader]
	if n == nil {
		n = p.newNode(mp.Leader, addr)
		p.nodes[mp.Leader] = n
	}
	if n.addr != addr { // the old address may be that of another broker
		n.addr, n.connErr = addr, errLost
		n.wake()
	}
	return n
}

// setLeader makes n the partition's leader as soon as no request is open at the old one. A partition that waits for a
// resend is released.
func (p *Producer) setLeader(part *partition, n *node) {
	moved := part.nextLeader != n
	part.nextLeader = n
	if moved && n != nil {
		p.release(part)
	}
	if !part.held {
		p.moveToLeader(part)
	}
	p.dropSilentLeader(part, time.Now())
}

// oldLeaderTimeout is how long we wait for an answer of an old leader. A running broker answers at once that it is
// not the leader; a hung one would hold its partitions until the read time-out, although they have a new leader.
const oldLeaderTimeout = 5 * time.Second

// dropSilentLeader gives up the connection to an old leader that does not answer. It is called at each look-up.
func (p *Producer) dropSilentLeader(part *partition, now time.Time) {
	switch {
	case !part.inFlight || part.nextLeader == nil || part.nextLeader == part.leader:
		part.leavingSince = time.Time{}
	case part.leavingSince.IsZero():
		part.leavingSince = now
	case now.Sub(part.leavingSince) > oldLeaderTimeout:
		part.leavingSince = time.Time{}
		part.leader.connErr = errLost
		part.leader.wake()
	}
}

// checkLeaderless reports whether a partition has records to send and no leader. It ends the session if a partition
// waits for longer than AwayBudget.
func (p *Producer) checkLeaderless(now time.Time) bool {
	p.mu.Lock()
	found := false
	for _, t := range p.topics {
		for i := range t.parts {
			part := &t.parts[i]
			if part.nextLeader != nil || len(part.queue) == 0 {
				part.leaderlessSince = time.Time{}
				continue
			}
			found = true
			if part.leaderlessSince.IsZero() {
				part.leaderlessSince = now
			}
			if now.Sub(part.leaderlessSince) > p.cluster.cfg.AwayBudget {
				err := sarama.ErrLeaderNotAvailable
				if v := t.verdict.Load(); v != nil && v.missing {
					err = sarama.ErrUnknownTopicOrPartition
				}
				p.failLocked(&failure{
					op: fmt.Sprintf("find the leader of partition %d of topic %s", part.id, t.name), topic: t.name, err: err,
				})
			}
		}
	}
	p.mu.Unlock()
	p.deliver()
	return found
}
