package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// saveRequest is a position record to store, and the callback for the result.
type saveRequest struct {
	record checkpoint.PositionRecord
	done   func(error)
}

// errSessionOver means that the session ended before a position record was stored.
var errSessionOver = errors.New("the session with kafka is over")

// errNoPositionTopic means that a position record is loaded or stored without a position topic.
var errNoPositionTopic = errors.New("internal error: no position topic is configured")

// SavePosition stores a position record in the background. Records are stored in the order of the calls, during the
// lease. After a transient error the record is sent again until the session ends. done is called once from another
// goroutine: with nil, with a *[checkpoint.Unusable], or with an error because the session has ended.
func (p *Producer) SavePosition(s checkpoint.PositionRecord, done func(error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.cluster.cfg.PositionTopic == "":
		go done(errNoPositionTopic)
		return
	case p.saverDone:
		go done(errSessionOver)
		return
	}
	p.saveRequests = append(p.saveRequests, saveRequest{s, done})
	p.wakeSaver()
}

// wakeSaver wakes everyone who waits in awaitSaver: the saver, and the reader of the position record, which stores a
// mark. mu is held.
func (p *Producer) wakeSaver() {
	close(p.saverWakeup)
	p.saverWakeup = make(chan struct{})
}

// awaitSaver waits until wakeSaver is called or the session ends. mu is held, except while it waits.
func (p *Producer) awaitSaver() {
	wakeup := p.saverWakeup
	p.unlocked(func() {
		select {
		case <-wakeup:
		case <-p.stopped:
		}
	})
}

// runSaver stores position records until the session ends.
func (p *Producer) runSaver() {
	defer p.background.Done()
	p.withPositionLog(func(l *positionLog) { l.preconnect(p.dialer.ctx) }) // while the session opens its stream
	defer p.withPositionLog(func(l *positionLog) { l.ctl.hangUp() })
	for {
		next, ok := p.nextSave()
		if !ok {
			return
		}
		var err error
		p.withPositionLog(func(l *positionLog) { err = p.saveOne(l, &next.record) })
		if err != nil && p.ended() && !errors.Is(err, errSessionOver) {
			err = fmt.Errorf("%w: %w", errSessionOver, err)
		}
		next.done(err)
	}
}

// nextSave waits for the next request. When the session has ended, it answers all requests and returns false.
func (p *Producer) nextSave() (saveRequest, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for !p.ended() {
		if len(p.saveRequests) > 0 {
			next := p.saveRequests[0]
			p.saveRequests = p.saveRequests[1:]
			return next, true
		}
		p.awaitSaver()
	}
	remaining := p.saveRequests
	p.saveRequests, p.saverDone = nil, true
	p.unlocked(func() {
		for _, s := range remaining {
			s.done(errSessionOver)
		}
	})
	return saveRequest{}, false
}

// saveOne stores a position record.
func (p *Producer) saveOne(l *positionLog, s *checkpoint.PositionRecord) error {
	value, err := s.MarshalText()
	if err != nil {
		return fmt.Errorf("write the position record: internal error: %w", err)
	}
	_, err = p.store(p.dialer.ctx, l, &sarama.Record{Key: []byte(l.slot), Value: value})
	if err != nil && !p.ended() && !errors.As(err, new(*checkpoint.Unusable)) {
		err = &failure{op: "write the position record to topic " + l.topic, topic: l.topic, err: err}
		p.fail(err)
	}
	return err
}

// store stores a record with its own sequence number, so that a late copy of the request cannot store it again after
// a newer record. A batch whose fate is not known, because ctx ended, is sent again before the next one.
func (p *Producer) store(ctx context.Context, l *positionLog, rec *sarama.Record) (*sarama.RecordBatch, error) {
	if l.pending != nil {
		if err := p.storeBatch(ctx, l, l.pending); err != nil {
			return nil, err
		}
	}
	now := time.Now()
	batch := &sarama.RecordBatch{
		Version: 2, Codec: p.cluster.codec, CompressionLevel: sarama.CompressionLevelDefault, FirstTimestamp: now, MaxTimestamp: now,
		ProducerID: p.id.producer, ProducerEpoch: p.id.epoch, FirstSequence: l.sequence, Records: []*sarama.Record{rec},
	}
	return batch, p.storeBatch(ctx, l, batch)
}

func (p *Producer) storeBatch(ctx context.Context, l *positionLog, batch *sarama.RecordBatch) error {
	for tries := 0; ; tries++ {
		sent := false
		err := l.ask(ctx, func(b *sarama.Broker) error {
			if !p.beginSaving() {
				return errSessionOver
			}
			defer p.endSaving()
			sent = true
			throttled, err := p.produceOne(b, l.topic, batch)
			if throttled { // the next record uses a new connection, which is not throttled
				l.ctl.hangUp()
			}
			return err
		})
		if sent && maybeStored(err) {
			l.pending = batch
		}
		p.mu.Lock()
		p.unsaved = err
		p.mu.Unlock()
		permanent := errors.As(err, new(*checkpoint.Unusable))
		switch {
		case err == nil:
			l.sequence, l.pending = nextSequence(l.sequence, 1), nil
			return nil
		case p.ended(), ctx.Err() != nil:
			return err
		case permanent && l.pending != nil: // the next sequence number is unknown, so no other record can be stored
			p.fail(err)
			return err
		case permanent, !isTransient(err):
			return err
		}
		p.dialer.pause(doubling(p.cluster.cfg.RetryMin, p.cluster.cfg.RetryMax, tries))
	}
}

// fail ends the session.
func (p *Producer) fail(err error) {
	p.mu.Lock()
	p.failLocked(err)
	p.mu.Unlock()
	p.deliver()
}

// produceOne sends one batch to partition 0 of a topic and waits for its ack. throttled means that a quota is
// exceeded. The broker then reads nothing from this connection for some time, and sarama would wait as long before
// the next write, perhaps beyond the lease.
func (p *Producer) produceOne(b *sarama.Broker, topic string, batch *sarama.RecordBatch) (throttled bool, err error) {
	req := p.produceRequest()
	req.AddBatch(topic, 0, batch)
	res, err := b.Produce(req)
	if err != nil {
		return false, err
	}
	if err = verdictOn(res, topic, 0); errors.Is(err, sarama.ErrDuplicateSequenceNumber) {
		err = nil
	}
	return res.ThrottleTime > 0, err
}
