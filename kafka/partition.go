package kafka

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"

	"github.com/outboxcdc/outboxcdc/router"
)

// partition is where order is kept. All but acked is guarded by Producer.mu.
//
// Its batches wait in queue, oldest first. One of them is under way at a time, the oldest: a broker that has forgotten our producer
// id takes any sequence number as the first, so it would take a second batch after it has refused the first. A broker forgets an id
// once the newest batch of it is older than producer.id.expiration.ms, by that batch's own time, and with a topic that is deleted;
// neither shows here. A batch that fails in a way that may pass is held for a pause and sent again with the same sequence number, so
// that the broker drops it if it has it.
type partition struct {
	topic *topic
	id    int32

	queue    []*batch
	flying   bool  // the first of queue is in a request that is not answered yet
	sequence int32 // of the next record to be sealed

	held  bool  // the first of queue waits to be sent again
	dead  bool  // it has failed for good, and nothing is sent after it
	cause error // why it is held

	leader *node     // where its batches go, and where the flying one is
	wanted *node     // where they should go from now on; nil: there is no leader
	epoch  int32     // of the leader, so that an older answer to a look-up changes nothing
	listed bool      // in leader.work
	lost   time.Time // since when there is no leader although there is something to send

	leaving time.Time // since when another leads, while the old leader has not answered

	sent  uint64        // records handed to Send
	acked atomic.Uint64 // records acknowledged without a hole
}

// add puts a record into the partition's last batch, or into a new one.
func (p *Producer) add(part *partition, rec *router.Record, n uint64) (size int) {
	size = recordSize(rec)
	var last *batch
	if k := len(part.queue); k > 0 {
		last = part.queue[k-1]
	}
	if last == nil || last.sealed || last.size+size > part.topic.batch {
		last, _ = p.free.Get().(*batch)
		if last == nil {
			last = newBatch()
		}
		last.part = part
		part.queue = append(part.queue, last)
	}
	last.add(rec, n, size)
	return size
}

// sendable: there is a batch, and nothing that it has to wait for.
func (part *partition) sendable() bool {
	return len(part.queue) > 0 && !part.flying && !part.held && !part.dead && part.leader != nil && part.leader == part.wanted
}

// next takes the batch that is to be sent next, or nil; it must fit into room.
func (p *Producer) next(part *partition, room int, now time.Time) *batch {
	if !part.sendable() {
		return nil
	}
	b := part.queue[0]
	if b.size > room {
		return nil
	}
	if !b.sealed {
		b.seal(identity{p.id.producer, p.id.epoch, part.sequence}, p.cluster.codec, now)
		part.sequence = after(part.sequence, len(b.records))
	}
	if b.tries++; b.tries > 1 {
		p.metrics.retries.Inc()
	}
	part.flying = true
	return b
}

// answered takes what the broker said of the flying batch, or why it said nothing.
func (p *Producer) answered(b *batch, err error) {
	part := b.part
	part.flying = false
	var code sarama.KError
	if errors.As(err, &code) && code == sarama.ErrDuplicateSequenceNumber {
		err = nil // the broker has it
	}
	switch {
	case err == nil:
		part.queue = slices.Delete(part.queue, 0, 1)
		p.done = append(p.done, b)
	case passes(err) && b.tries <= p.cluster.cfg.Retries:
		part.held, part.cause = true, err
		p.askForLeaders()
	default:
		p.giveUp(b, err)
	}
	p.settled(part)
}

// passes: the same batch may be taken later. Who gets no answer does not know, and the sequence numbers tell the broker.
func passes(err error) bool {
	k := kindOf(err)
	return k.class == resend || k.reason == reasonConnection
}

// giveUp ends the session because of a batch.
func (p *Producer) giveUp(b *batch, err error) {
	part, k := b.part, kindOf(err)
	part.dead = true
	f := &failure{
		doing: fmt.Sprintf("deliver event %d to partition %d of topic %s", b.entries[0].n, part.id, part.topic.name),
		topic: part.topic.name, err: err,
	}
	switch {
	case k.class == refused:
		f.events = b.events()
	case refusesID(err):
		p.cluster.forgetID()
	}
	p.metrics.errors.WithLabelValues(p.metrics.label(part.topic.name), k.reason).Add(float64(len(b.entries)))
	p.failLocked(f)
}

// settled: nothing of the partition is under way. Now it may change its leader, and what failed may go again.
func (p *Producer) settled(part *partition) {
	if part.dead || p.over() {
		return
	}
	if !part.held {
		p.follow(part)
		return
	}
	pause := doubling(p.cluster.cfg.RetryMin, p.cluster.cfg.RetryMax, part.queue[0].tries-1)
	time.AfterFunc(pause, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.release(part)
	})
}

// release lets a held partition go on.
func (p *Producer) release(part *partition) {
	if !part.held || part.dead || p.over() {
		return
	}
	part.held, part.cause = false, nil
	p.follow(part)
}

// follow moves the partition to the leader it should have. What is under way at the old one is settled first: two
// requests at two brokers have no order.
func (p *Producer) follow(part *partition) {
	if part.flying {
		return
	}
	if part.leader != part.wanted {
		if part.listed {
			part.leader.unlist(part)
		}
		part.leader = part.wanted
	}
	part.list(p)
}

// list tells the leader that there is something to send.
func (part *partition) list(p *Producer) {
	n := part.leader
	if part.listed || !part.sendable() {
		return
	}
	part.listed = true
	n.work = append(n.work, part)
	if len(part.queue) > 1 {
		n.fresh = max(n.fresh, p.cluster.cfg.BatchLimit) // the first batch is full, and need not wait for more
	}
	if n.free() {
		n.kick()
	}
}
