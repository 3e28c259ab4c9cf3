package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// positionLog is the one partition of the position topic, over connections of its own. For one goroutine.
type positionLog struct {
	ctl    *control
	topic  string
	slot   string
	leader string // its address; "": to be looked up
}

func (p *Producer) newPositionLog() *positionLog {
	c := p.cluster
	l := &positionLog{ctl: c.newControl(p.dialer, p.secured), topic: c.cfg.PositionTopic, slot: c.cfg.Slot}
	l.ctl.conf.Net.ReadTimeout = c.cfg.ReadTimeout
	return l
}

// errNoLeader passes.
var errNoLeader = fmt.Errorf("the position topic has no leader: %w", sarama.ErrLeaderNotAvailable)

// ask puts a question to the leader of the topic.
func (l *positionLog) ask(ctx context.Context, question func(*sarama.Broker) error) error {
	if l.leader == "" {
		md, err := l.find(ctx)
		if err != nil {
			return err
		}
		addr, ok := l.ctl.brokers[md.Partitions[0].Leader]
		if !ok {
			return errNoLeader
		}
		l.leader = addr
	}
	err := l.ctl.askAt(ctx, l.leader, question)
	if err == nil {
		return nil
	}
	l.leader = ""
	if errors.Is(err, sarama.ErrUnknownTopicOrPartition) { // or it is led by somebody else now: the look-up tells
		return err
	}
	return l.judge(err)
}

// missingTries is how often the topic must be missing: a broker that has just started does not know all yet.
const missingTries = 4

// find looks the topic up.
func (l *positionLog) find(ctx context.Context) (*sarama.TopicMetadata, error) {
	for tries := 1; ; tries++ {
		found, err := l.ctl.topics(ctx, []string{l.topic})
		if err != nil {
			return nil, err
		}
		md := found[l.topic]
		if md == nil {
			md = &sarama.TopicMetadata{Name: l.topic, Err: sarama.ErrUnknownTopicOrPartition}
		}
		err = usable(md)
		switch {
		case err == nil && len(md.Partitions) > 1:
			return nil, l.unusable(fmt.Sprintf("it has %d partitions, and must have one", len(md.Partitions)),
				"delete it and create it again with one partition, or set delivery.position_topic to another topic", nil)
		case err == nil:
			return md, l.readable(md)
		case !errors.Is(err, sarama.ErrUnknownTopicOrPartition) || tries == missingTries:
			return nil, l.judge(err)
		}
		l.ctl.dialer.pause(200 * time.Millisecond)
	}
}

// readable says that reading is forbidden, which otherwise shows only once there is something to read.
func (l *positionLog) readable(md *sarama.TopicMetadata) error {
	const read = 1 << 3 // AclOperation.READ
	if allowed(md, read) {
		return nil
	}
	return l.judge(fmt.Errorf("reading is not allowed: %w", sarama.ErrTopicAuthorizationFailed))
}

// judge tells errors that last from those that pass.
func (l *positionLog) judge(err error) error {
	var code sarama.KError
	if !errors.As(err, &code) {
		return err
	}
	switch {
	case code == sarama.ErrUnknownTopicOrPartition:
		return &checkpoint.Unusable{
			Topic: l.topic, Why: "it does not exist", Missing: true,
			Remedy: "create it with one partition and cleanup.policy=compact (outboxcdc setup apply does)",
		}
	case kindOf(code).class == right:
		return l.unusable("access is refused", "grant the daemon's user Read, Write and Describe on topic "+l.topic, err)
	case kindOf(code).class == refused:
		return l.unusable("it does not take the record", "raise max.message.bytes of topic "+l.topic, err)
	}
	return err
}

func (l *positionLog) unusable(why, remedy string, err error) error {
	return &checkpoint.Unusable{Topic: l.topic, Why: why, Remedy: remedy, Err: err}
}

// LoadPosition reads the newest position record of the slot; nil if there is none. An error is a *[checkpoint.Unusable], or passes.
// If only the newest cannot be read, what those before it say comes with the error.
func (p *Producer) LoadPosition(ctx context.Context) (*checkpoint.Saved, error) {
	if p.cluster.cfg.PositionTopic == "" {
		return nil, errNoPositions
	}
	l := p.newPositionLog()
	defer l.ctl.hangUp()
	saved, err := l.load(ctx)
	var u *checkpoint.Unusable
	if err != nil && !errors.As(err, &u) {
		return nil, &failure{doing: "read the position record from topic " + l.topic, topic: l.topic, err: err}
	}
	return saved, err
}

// positionStep is how many offsets of the topic are read first. Records of all slots are in it, about one a second of each; and
// the records of the last seconds must be seen together, so that a late one of an earlier session is not taken for the newest.
const positionStep = 1000

// load reads from the end backwards until there is a record of the slot.
func (l *positionLog) load(ctx context.Context) (*checkpoint.Saved, error) {
	end, err := l.offset(ctx, sarama.OffsetNewest)
	if err != nil {
		return nil, err
	}
	start, err := l.offset(ctx, sarama.OffsetOldest)
	if err != nil {
		return nil, err
	}
	step := int64(positionStep)
	for until := end; until > start; step *= tailStep {
		from := max(start, until-step)
		best, err := l.window(ctx, from, until)
		if best.seen || err != nil {
			return checkpoint.Latest(best.saved[max(0, len(best.saved)-checkpoint.Recent):]), err
		}
		until = from
	}
	return nil, nil
}

func (l *positionLog) offset(ctx context.Context, which int64) (offset int64, err error) {
	err = l.ask(ctx, func(b *sarama.Broker) error {
		req := sarama.NewOffsetRequest(l.ctl.conf.Version)
		req.AddBlock(l.topic, 0, which, 1)
		res, err := b.GetAvailableOffsets(req)
		if err != nil {
			return err
		}
		block := res.GetBlock(l.topic, 0)
		if block == nil {
			return errUnanswered
		}
		if block.Err != sarama.ErrNoError {
			return block.Err
		}
		offset = block.Offset
		return nil
	})
	return offset, err
}

// newest are the slot's records in a window.
type newest struct {
	seen  bool
	saved []checkpoint.Saved // since the last deletion
	err   error              // the newest cannot be read
}

// window reads the slot's records at the offsets from ≤ n < until.
func (l *positionLog) window(ctx context.Context, from, until int64) (best newest, err error) {
	for from < until {
		next := from
		err := l.ask(ctx, func(b *sarama.Broker) error {
			batches, err := fetchBatches(b, l.topic, 0, from, 0)
			if err != nil {
				return err
			}
			for _, b := range batches {
				for _, rec := range b.Records {
					at := b.FirstOffset + rec.OffsetDelta
					if !b.Control && at >= from && at < until && string(rec.Key) == l.slot {
						best.take(rec.Value)
					}
				}
				next = max(next, b.LastOffset()+1)
			}
			if len(batches) == 0 { // compacted away
				next = min(until, from+positionStep)
			}
			return nil
		})
		if err != nil {
			return best, err
		}
		from = next
	}
	if best.err != nil {
		return best, &checkpoint.Unusable{
			Topic: l.topic, Why: "the newest record of slot " + l.slot + " cannot be read", Err: best.err, Record: true,
			Remedy: "if a newer outboxcdc has written it, run that one; else see `outboxcdc slot adopt`",
		}
	}
	return best, nil
}

func (n *newest) take(value []byte) {
	n.seen = true
	if value == nil {
		n.saved, n.err = nil, nil
		return
	}
	var s checkpoint.Saved
	if n.err = s.UnmarshalText(value); n.err == nil {
		n.saved = append(n.saved, s)
	}
}

// saving is what SavePosition was asked for.
type saving struct {
	saved checkpoint.Saved
	done  func(error)
}

// errOver is what a record meets that was to be saved when the session ended.
var errOver = errors.New("the session with kafka is over")

// errNoPositions is what cannot be without a configured topic.
var errNoPositions = errors.New("internal error: no position topic is configured")

// SavePosition stores a position record, in the background, one after the other. What fails in a way that passes is tried again
// until the session ends. done is called once, from another goroutine: with nil, or with why not: a *[checkpoint.Unusable], or
// the session is over. Nothing is written once the lease has run out.
func (p *Producer) SavePosition(s checkpoint.Saved, done func(error)) {
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
	select {
	case p.toSave <- struct{}{}:
	default:
	}
}

// save stores position records until the session is over.
func (p *Producer) save() {
	defer p.background.Done()
	l := p.newPositionLog()
	defer l.ctl.hangUp()
	var sequence int32
	for {
		next, ok := p.nextSaving()
		if !ok {
			return
		}
		err := p.saveOne(l, &next.saved, &sequence)
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
		select {
		case <-p.toSave:
		case <-p.stopped:
		}
	}
}

// saveOne stores a record, under a sequence number of its own, so that a late copy of a request cannot put it behind a newer one.
func (p *Producer) saveOne(l *positionLog, s *checkpoint.Saved, sequence *int32) error {
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
			now := time.Now()
			if p.over() {
				return errOver
			}
			if err := p.leased(now); err != nil {
				p.fail(err)
				return err
			}
			sent = true
			return p.produceAlone(b, l.topic, batch)
		})
		doubt = doubt || sent && doubtful(err)
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

// produceAlone sends one batch to partition 0 of a topic and waits for its ack.
func (p *Producer) produceAlone(b *sarama.Broker, topic string, batch *sarama.RecordBatch) error {
	req := &sarama.ProduceRequest{Version: 9, RequiredAcks: sarama.WaitForAll, Timeout: int32(p.cluster.cfg.ProduceTimeout / time.Millisecond)}
	req.AddBatch(topic, 0, batch)
	res, err := b.Produce(req)
	if err != nil {
		return err
	}
	block := res.GetBlock(topic, 0)
	switch {
	case block == nil:
		return errUnanswered
	case block.Err == sarama.ErrNoError, block.Err == sarama.ErrDuplicateSequenceNumber:
		return nil
	}
	return block.Err
}
