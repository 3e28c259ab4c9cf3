package kafka

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"

	"github.com/outboxcdc/outboxcdc/internal/brokerauth"
	"github.com/outboxcdc/outboxcdc/router"
)

// partition keeps the order of a partition's records. All fields except acked are guarded by Producer.mu.
//
// Batches wait in queue, oldest first. Only the oldest one is in flight. A broker that has forgotten our producer id
// accepts any sequence number as the first one, so it could accept a second batch after it has refused the first. A
// broker forgets an id when the newest batch with this id is older than producer.id.expiration.ms, by the batch's own
// timestamp, and when the topic is deleted. We notice neither. After a transient error a batch is held for a pause
// and sent again with the same sequence number, so that the broker drops a duplicate.
type partition struct {
	topic *topic
	id    int32

	queue    []*batch
	inFlight bool  // the first of queue is in an open request
	sequence int32 // of the next record

	held   bool // the first of queue waits to be sent again
	failed bool // the first of queue has failed permanently, so nothing more is sent

	failing      error     // the last answer for the first of queue; nil: none has failed
	failingSince time.Time // when the first of its answers failed

	leader          *node     // broker to which batches are sent, and the broker of the batch in flight
	nextLeader      *node     // leader from metadata; nil: there is no leader
	epoch           int32     // leader epoch, so that older metadata is ignored
	listed          bool      // in leader.listed
	leaderlessSince time.Time // since when there are batches and no leader

	leavingSince time.Time // since when there is another leader, while the old leader has not answered

	sent  uint64        // records passed to Send
	acked atomic.Uint64 // acknowledged records, without a hole
}

// add puts a record into the partition's last batch, or into a new one.
func (p *Producer) add(part *partition, rec *router.Record, n uint64) (size int) {
	size = recordSize(rec)
	var last *batch
	if k := len(part.queue); k > 0 {
		last = part.queue[k-1]
	}
	if last == nil || last.sealed || last.size+size > part.topic.batchLimit {
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

// sendable reports whether there is a batch that can be sent now.
func (part *partition) sendable() bool {
	return len(part.queue) > 0 && !part.inFlight && !part.held && !part.failed && part.leader != nil && part.leader == part.nextLeader
}

// nextBatch returns the batch to send next and marks it as in flight. It returns nil if there is none of at most room
// bytes.
func (p *Producer) nextBatch(part *partition, room int, now time.Time) *batch {
	if !part.sendable() {
		return nil
	}
	b := part.queue[0]
	if b.size > room {
		return nil
	}
	if !b.sealed {
		b.seal(identity{p.id.producer, p.id.epoch, part.sequence}, p.cluster.codec, now)
		part.sequence = nextSequence(part.sequence, len(b.entries))
	}
	if b.tries++; b.tries > 1 {
		p.metrics.retries.Inc()
	}
	part.inFlight = true
	return b
}

// handleAnswer handles the broker's answer for the batch in flight, or the error of the request.
func (p *Producer) handleAnswer(b *batch, err error) {
	part := b.part
	part.inFlight = false
	var code sarama.KError
	if errors.As(err, &code) && code == sarama.ErrDuplicateSequenceNumber {
		err = nil // the broker has it
	}
	switch {
	case err == nil:
		part.failing = nil
		part.queue = slices.Delete(part.queue, 0, 1)
		p.ackedBatches = append(p.ackedBatches, b)
	case isTransient(err) && b.tries <= p.cluster.cfg.Retries:
		part.held = true
		if part.failing == nil {
			part.failingSince = time.Now()
		}
		part.failing = err
		p.askForLeaders()
	default:
		p.giveUp(b, err)
	}
	p.afterAnswer(part)
}

// isTransient reports whether the same request may succeed later. Without an answer the batch may be stored, but then
// the broker recognizes the resend by its sequence number. Without a token, which sarama also needs for a connection
// that is to be authenticated again, the request was not sent. Its connection is closed, because the broker waits for
// the token; if no token is made for the next one, connect ends the session after Config.AwayBudget.
func isTransient(err error) bool {
	k := kindOf(err)
	return k.class == resend || k.reason == reasonConnection || errors.As(err, new(*brokerauth.TokenError))
}

// giveUp ends the session because of a batch.
func (p *Producer) giveUp(b *batch, err error) {
	part, k := b.part, kindOf(err)
	part.failed = true
	f := &failure{
		op:    fmt.Sprintf("deliver event %d to partition %d of topic %s", b.numbers[0], part.id, part.topic.name),
		topic: part.topic.name, err: err,
	}
	f.clock = k.reason == reasonTimestamp && !b.rowTimes
	switch {
	case k.class == refused && !f.clock:
		f.events = slices.Clone(b.numbers)
	case refusesID(err):
		p.cluster.forgetID()
	}
	p.metrics.errors.WithLabelValues(p.metrics.label(part.topic.name), k.reason).Add(float64(len(b.entries)))
	p.failLocked(f)
}

// afterAnswer is called when no batch of the partition is in flight any more. It moves the partition to its new
// leader, or schedules the resend.
func (p *Producer) afterAnswer(part *partition) {
	if part.failed || p.ended() {
		return
	}
	if !part.held {
		p.moveToLeader(part)
		return
	}
	pause := doubling(p.cluster.cfg.RetryMin, p.cluster.cfg.RetryMax, part.queue[0].tries-1)
	time.AfterFunc(pause, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.release(part)
	})
}

// release ends the hold of a partition.
func (p *Producer) release(part *partition) {
	if !part.held || part.failed || p.ended() {
		return
	}
	part.held = false
	p.moveToLeader(part)
}

// moveToLeader moves the partition to its next leader, unless a batch is in flight: requests at two brokers have no
// order.
func (p *Producer) moveToLeader(part *partition) {
	if part.inFlight {
		return
	}
	if part.leader != part.nextLeader {
		if part.listed {
			part.leader.unlist(part)
		}
		part.leader = part.nextLeader
	}
	part.enlist(p)
}

// enlist lists the partition at its leader if it can send.
func (part *partition) enlist(p *Producer) {
	n := part.leader
	if part.listed || !part.sendable() {
		return
	}
	part.listed = true
	n.listed = append(n.listed, part)
	if len(part.queue) > 1 {
		n.newBytes = max(n.newBytes, p.cluster.cfg.BatchLimit) // the first batch is full, and does not wait for Flush
	}
	if n.canSend() {
		n.wake()
	}
}
