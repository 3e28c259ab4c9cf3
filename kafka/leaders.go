package kafka

import (
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"
)

// askForLeaders has the watch look up all topics soon.
func (p *Producer) askForLeaders() {
	p.stale.Store(true)
	select {
	case p.asked <- struct{}{}:
	default:
	}
}

// lead gives each partition of a topic the leader that a look-up found. It is called by the watch alone, which knows
// the brokers' addresses.
func (p *Producer) lead(t *topic, md *sarama.TopicMetadata) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.id == (sarama.Uuid{}) {
		t.id = md.Uuid
	}
	for _, mp := range md.Partitions {
		if int(mp.ID) >= len(t.parts) {
			continue // more partitions than keys are hashed over
		}
		part := &t.parts[mp.ID]
		if mp.LeaderEpoch < part.epoch {
			continue // the broker that answered has not heard yet
		}
		part.epoch = mp.LeaderEpoch
		p.elect(part, p.nodeOf(mp))
	}
}

// unlead takes the leaders from a topic that is gone, so that nothing is sent until a look-up has found it.
func (p *Producer) unlead(t *topic) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range t.parts {
		p.elect(&t.parts[i], nil)
	}
}

// nodeOf finds the broker that leads, or nil.
func (p *Producer) nodeOf(mp *sarama.PartitionMetadata) *node {
	addr, ok := p.control.brokers[mp.Leader]
	if !ok || mp.Leader < 0 || errors.Is(mp.Err, sarama.ErrLeaderNotAvailable) {
		return nil
	}
	n := p.nodes[mp.Leader]
	if n == nil {
		n = p.newNode(mp.Leader, addr)
		p.nodes[mp.Leader] = n
	}
	if n.addr != addr { // the broker at the old address is another one now
		n.addr, n.broken = addr, errLost
		n.kick()
	}
	return n
}

// elect makes n the partition's leader as soon as nothing is under way at the one before. A partition that failed at the
// old leader need not wait any longer.
func (p *Producer) elect(part *partition, n *node) {
	moved := part.wanted != n
	part.wanted = n
	if moved && n != nil {
		p.release(part)
	}
	if !part.held {
		p.follow(part)
	}
	p.hurry(part, time.Now())
}

// oldLeader is how long a broker that leads no more may keep an answer back. A living one says at once that it does not
// lead; one that hangs would hold its partitions until the read time-out, long after others have taken them over.
const oldLeader = 5 * time.Second

// hurry gives up the connection to an old leader that does not answer. It is called at each look-up.
func (p *Producer) hurry(part *partition, now time.Time) {
	switch {
	case !part.flying || part.wanted == nil || part.wanted == part.leader:
		part.leaving = time.Time{}
	case part.leaving.IsZero():
		part.leaving = now
	case now.Sub(part.leaving) > oldLeader:
		part.leaving = time.Time{}
		part.leader.broken = errLost
		part.leader.kick()
	}
}

// orphans looks for partitions that have something to send and no leader. It reports whether there are
// any, and ends the session when one has waited for too long.
func (p *Producer) orphans(now time.Time) bool {
	p.mu.Lock()
	found := false
	for _, t := range p.topics {
		for i := range t.parts {
			part := &t.parts[i]
			if part.wanted != nil || len(part.queue) == 0 {
				part.lost = time.Time{}
				continue
			}
			found = true
			if part.lost.IsZero() {
				part.lost = now
			}
			if now.Sub(part.lost) > p.cluster.cfg.AwayBudget {
				err := sarama.ErrLeaderNotAvailable
				if v := t.verdict.Load(); v != nil && v.gone {
					err = sarama.ErrUnknownTopicOrPartition
				}
				p.failLocked(&failure{
					doing: fmt.Sprintf("find the leader of partition %d of topic %s", part.id, t.name), topic: t.name, err: err,
				})
			}
		}
	}
	p.mu.Unlock()
	p.deliver()
	return found
}
