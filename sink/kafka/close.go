package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/IBM/sarama"

	"github.com/outboxcdc/outboxcdc/internal/brokerauth"
)

// close waits for open answers and then cuts all connections, so that no request is sent after the next session has
// begun.
func (p *Producer) close(ctx context.Context) error {
	p.mu.Lock()
	p.stop() // so that errors of the cut are not reported as a failure
	p.mu.Unlock()
	p.awaitAnswers(ctx)
	p.dialer.cut()
	// After the cut nothing reaches Kafka any more.

	finished := make(chan struct{})
	go func() {
		defer close(finished)
		p.background.Wait()
		p.control.hangUp()
		p.senders.Wait()
	}()
	bound := time.NewTimer(p.cluster.cfg.CloseTimeout)
	defer bound.Stop()
	select {
	case <-finished:
	case <-bound.C:
		p.cluster.log.Warn("sarama did not end in time; its goroutines have no connection")
	}

	p.cbMu.Lock()
	p.callbacksOff = true
	p.cbMu.Unlock()
	return p.countUnacked()
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

// countUnacked returns an error with the number of unacknowledged events, and tells the cluster what the session
// waited for.
func (p *Producer) countUnacked() error {
	var left uint64
	waiting := map[string]struct{}{}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.topics {
		// A topic without unacknowledged events matters only if the last event was for this topic.
		v := t.verdict.Load()
		if t.unacked() > 0 || t == p.last && (v == nil || !v.ready) {
			waiting[t.name] = struct{}{}
		}
		left += t.unacked()
	}
	p.cluster.noteEnd(p, waiting)
	if left > 0 {
		return &failure{op: "close the kafka session", err: fmt.Errorf("%d events %w", left, errUnacked)}
	}
	return nil
}

// Unanswered reports, after Close, whether the session sent a batch without an ack that may be in the log, or may be
// stored later.
func (p *Producer) Unanswered() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.topics {
		for i := range t.parts {
			part := &t.parts[i]
			if part.inFlight || slices.ContainsFunc(part.queue, func(b *batch) bool { return b.maybeStored }) {
				return true
			}
		}
	}
	return false
}

// maybeStored reports whether a batch may be in the log, or may be stored later, after a request with this error.
func maybeStored(err error) bool {
	var code sarama.KError
	switch {
	case err == nil, errors.As(err, new(*brokerauth.TokenError)): // not sent
		return false
	case !errors.As(err, &code): // no answer
		return !errors.As(err, new(sarama.PacketEncodingError)) && !errors.Is(err, sarama.ErrNotConnected)
	}
	return !slices.Contains(notStoredCodes, code) && kindOf(err).class != denied && kindOf(err).class != refused
}

// notStoredCodes are the codes that a broker answers before it appends a batch, in addition to those of the classes
// denied and refused. After any other code the batch may be in the log: a leader that loses its leadership while it
// waits for the replicas answers NOT_LEADER_OR_FOLLOWER (acks=all; DelayedProduce in Kafka's source), and the new
// leader has the batch.
var notStoredCodes = []sarama.KError{
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
