package kafka

import (
	"context"
	"fmt"
	"time"
)

// close: sarama must not be closed with records in flight, because it then fails some and still sends later ones. So
// either nothing is in flight, or the connections are cut first and nothing can be sent any more.
func (p *Producer) close(ctx context.Context) error {
	p.drain(ctx)
	p.stop() // what the cut fails is no failure of Kafka's, and is told by Close alone
	p.dialer.cut()
	// From here on a crash finds what it would have found a moment ago: nothing more reaches Kafka.

	gone := make(chan struct{})
	go func() {
		defer close(gone)
		p.background.Wait()
		p.control.hangUp()
		p.feeders.Wait()
		for _, l := range p.allLanes() {
			if l.async != nil {
				l.async.AsyncClose()
			}
		}
		p.takers.Wait()
		_ = p.client.Close()
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

// drain waits for acks. Records that were not handed to sarama before a failure have none to wait for.
func (p *Producer) drain(ctx context.Context) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	stopped := p.stopped
	var giveUp <-chan time.Time
	for p.inflight.Load() > p.unsent.Load() {
		select {
		case <-ctx.Done():
			return
		case <-giveUp:
			return
		case <-stopped:
			stopped = nil
			t := time.NewTimer(p.cluster.cfg.FailedDrain)
			defer t.Stop()
			giveUp = t.C
		case <-tick.C:
		}
	}
}

// settle counts what is left and tells the cluster which topics it was for.
func (p *Producer) settle() error {
	var left uint64
	waiting := map[string]struct{}{}
	for _, l := range p.allLanes() {
		l.leave(nil) // also orders the sender's writes before the reads below
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.topics {
		// A topic that was used once and is gone since concerns nobody, until it is asked for.
		v := t.verdict.Load()
		if t.unacked() || t == p.last && (v == nil || !v.ready) {
			waiting[t.name] = struct{}{}
		}
		for i := range t.parts {
			left += t.parts[i].sent - t.parts[i].acked.Load()
		}
	}
	p.cluster.ended(p, waiting)
	if left > 0 {
		return &failure{doing: "close the kafka session", err: fmt.Errorf("%d events %w", left, errLeft)}
	}
	return nil
}
