package kafka

import (
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// saving is what SavePosition was asked for.
type saving struct {
	saved checkpoint.PositionRecord
	done  func(error)
}

// errOver is what a record meets that was to be saved when the session ended.
var errOver = errors.New("the session with kafka is over")

// errNoPositions is what cannot be without a configured topic.
var errNoPositions = errors.New("internal error: no position topic is configured")

// SavePosition stores a position record, in the background, one after the other. What fails in a way that passes is tried again
// until the session ends. done is called once, from another goroutine: with nil, or with why not: a *[checkpoint.Unusable], or
// the session is over. It is written while the lease lasts, and waits for that.
func (p *Producer) SavePosition(s checkpoint.PositionRecord, done func(error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.cluster.cfg.PositionTopic == "":
		go done(errNoPositions)
		return
	case p.savingOver:
		go done(errOver)
		return
	}
	p.savings = append(p.savings, saving{s, done})
	p.kickSaver()
}

func (p *Producer) kickSaver() {
	select {
	case p.toSave <- struct{}{}:
	default:
	}
}

// awaitSaver waits until the goroutine that saves position records has something to look at.
func (p *Producer) awaitSaver() {
	select {
	case <-p.toSave:
	case <-p.stopped:
	}
}

// save stores position records until the session is over.
func (p *Producer) save() {
	defer p.background.Done()
	p.locked(func(l *positionLog) { l.preconnect(p.dialer.ctx) }) // meanwhile the session opens its stream
	defer p.locked(func(l *positionLog) { l.ctl.hangUp() })
	var sequence int32
	for {
		next, ok := p.nextSaving()
		if !ok {
			return
		}
		var err error
		p.locked(func(l *positionLog) { err = p.saveOne(l, &next.saved, &sequence) })
		if err != nil && p.over() && !errors.Is(err, errOver) {
			err = fmt.Errorf("%w: %w", errOver, err)
		}
		next.done(err)
	}
}

// nextSaving waits for one. When the session is over it answers all that are left.
func (p *Producer) nextSaving() (saving, bool) {
	for {
		over := p.over()
		p.mu.Lock()
		if !over && len(p.savings) > 0 {
			next := p.savings[0]
			p.savings = p.savings[1:]
			p.mu.Unlock()
			return next, true
		}
		var left []saving
		if over {
			left, p.savings, p.savingOver = p.savings, nil, true
		}
		p.mu.Unlock()
		if over {
			for _, s := range left {
				s.done(errOver)
			}
			return saving{}, false
		}
		p.awaitSaver()
	}
}

// saveOne stores a record, under a sequence number of its own, so that a late copy of a request cannot put it behind a newer one.
func (p *Producer) saveOne(l *positionLog, s *checkpoint.PositionRecord, sequence *int32) error {
	value, err := s.MarshalText()
	if err != nil {
		return fmt.Errorf("write the position record: internal error: %w", err)
	}
	now := time.Now()
	batch := &sarama.RecordBatch{
		Version: 2, Codec: p.cluster.codec, CompressionLevel: sarama.CompressionLevelDefault, FirstTimestamp: now, MaxTimestamp: now,
		ProducerID: p.id.producer, ProducerEpoch: p.id.epoch, FirstSequence: *sequence,
		Records: []*sarama.Record{{Key: []byte(l.slot), Value: value}},
	}
	doubt := false
	for tries := 0; ; tries++ {
		sent := false
		err := l.ask(p.dialer.ctx, func(b *sarama.Broker) error {
			if !p.beginSaving() {
				return errOver
			}
			defer p.endSaving()
			sent = true
			throttled, err := p.produceAlone(b, l.topic, batch)
			if throttled { // the next record goes over a new connection, which has no pause
				l.ctl.hangUp()
			}
			return err
		})
		doubt = doubt || sent && doubtful(err)
		p.mu.Lock()
		p.unsaved = err
		p.mu.Unlock()
		lasts := errors.As(err, new(*checkpoint.Unusable))
		switch {
		case err == nil:
			*sequence = after(*sequence, 1)
			return nil
		case p.over(), lasts && !doubt:
			return err
		case lasts: // its sequence number may be taken or not, so there can be no next one
			p.fail(err)
			return err
		case !passes(err):
			err = &failure{doing: "write the position record to topic " + l.topic, topic: l.topic, err: err}
			p.fail(err)
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

// produceAlone sends one batch to partition 0 of a topic and waits for its ack. throttled: the events and this batch exceed a
// quota, so the broker reads nothing from this connection for a while, and sarama would wait as long before it writes, whatever
// becomes of the lease.
func (p *Producer) produceAlone(b *sarama.Broker, topic string, batch *sarama.RecordBatch) (throttled bool, err error) {
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
