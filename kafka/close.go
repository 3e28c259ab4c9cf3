package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/IBM/sarama"
)

// close waits for answers and then cuts: a request that is left could otherwise be sent after the next session has begun.
func (p *Producer) close(ctx context.Context) error {
	p.mu.Lock()
	p.stop() // what the cut fails is no failure of Kafka's, and is told by Close alone
	p.mu.Unlock()
	p.awaitAnswers(ctx)
	p.dialer.cut()
	// From here on a crash finds what it would have found a moment ago: nothing more reaches Kafka.

	gone := make(chan struct{})
	go func() {
		defer close(gone)
		p.background.Wait()
		p.control.hangUp()
		p.senders.Wait()
	}()
	bound := time.NewTimer(p.cluster.cfg.CloseTimeout)
	defer bound.Stop()
	select {
	case <-gone:
	case <-bound.C:
		p.cluster.log.Warn("sarama did not end in time; its goroutines are left behind without a connection")
	}

	p.cbMu.Lock()
	p.silent = true
	p.cbMu.Unlock()
	return p.settle()
}

// awaitAnswers waits until no request is open.
func (p *Producer) awaitAnswers(ctx context.Context) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for p.openRequests() > 0 {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (p *Producer) openRequests() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open
}

// settle counts what is left and tells the cluster which topics it was for.
func (p *Producer) settle() error {
	var left uint64
	waiting := map[string]struct{}{}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.topics {
		// A topic that was used once and was deleted since does not matter, until it is asked for.
		v := t.verdict.Load()
		if t.unacked() > 0 || t == p.last && (v == nil || !v.ready) {
			waiting[t.name] = struct{}{}
		}
		left += t.unacked()
	}
	p.cluster.ended(p, waiting, p.unreadEnds(), p.unsaved != nil)
	if left > 0 {
		return &failure{doing: "close the kafka session", err: fmt.Errorf("%d events %w", left, errLeft)}
	}
	return nil
}

// Unanswered reports, after Close, whether the session sent something that is not acknowledged, and of which it is not known whether
// it is in the log, or will be: its answer did not come, or said just that.
func (p *Producer) Unanswered() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.topics {
		for i := range t.parts {
			part := &t.parts[i]
			if part.flying || slices.ContainsFunc(part.queue, func(b *batch) bool { return b.doubtful }) {
				return true
			}
		}
	}
	return false
}

// doubtful: the batch may be in the log, or come to be, although this is no ack.
func doubtful(err error) bool {
	var code sarama.KError
	switch {
	case err == nil:
		return false
	case !errors.As(err, &code): // no answer
		return !errors.As(err, new(sarama.PacketEncodingError)) && !errors.Is(err, sarama.ErrNotConnected)
	}
	return !slices.Contains(unstored, code) && kindOf(err).class != right && kindOf(err).class != refused
}

// unstored are the answers, besides those about rights and about the records themselves, that a broker gives before it appends a
// batch. After any other the batch may be in the log: a leader that loses its place while it waits for the replicas says
// NOT_LEADER_OR_FOLLOWER (acks=all; DelayedProduce in Kafka's source), and the new leader has the batch.
var unstored = []sarama.KError{
	sarama.ErrNotEnoughReplicas, sarama.ErrInvalidMessage, sarama.ErrInvalidTopic, sarama.ErrInvalidRequiredAcks, sarama.ErrUnsupportedVersion,
	sarama.ErrUnsupportedForMessageFormat, sarama.ErrUnsupportedCompressionType, sarama.ErrOutOfOrderSequenceNumber,
	sarama.ErrInvalidProducerEpoch, sarama.ErrInvalidProducerIDMapping, sarama.ErrUnknownProducerID,
}

func (t *topic) unacked() (n uint64) {
	for i := range t.parts {
		n += t.parts[i].sent - t.parts[i].acked.Load()
	}
	return n
}
