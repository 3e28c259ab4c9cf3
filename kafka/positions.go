package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/IBM/sarama"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// positionLog is the one partition of the position topic, over a connection of its own. For one goroutine at a time.
type positionLog struct {
	ctl    *control
	topic  string
	slot   string
	leader string // its address; "": to be looked up
	most   int    // bytes that are read at most until there is a record of the slot
	bytes  int    // that were read
}

func (p *Producer) newPositionLog() *positionLog {
	c := p.cluster
	l := &positionLog{ctl: c.newControl(p.dialer, p.secured), topic: c.cfg.PositionTopic, slot: c.cfg.Slot, most: c.cfg.PositionMost}
	l.ctl.conf.Net.ReadTimeout = c.cfg.ReadTimeout
	return l
}

// locked lends f the position topic.
func (p *Producer) locked(f func(*positionLog)) {
	p.positionsMu.Lock()
	defer p.positionsMu.Unlock()
	f(p.positions)
}

// errNoLeader passes.
var errNoLeader = fmt.Errorf("the position topic has no leader: %w", sarama.ErrLeaderNotAvailable)

// ask puts a question to the leader of the topic.
func (l *positionLog) ask(ctx context.Context, question func(*sarama.Broker) error) error {
	if err := l.locate(ctx, missingTries); err != nil {
		return err
	}
	err := l.ctl.askAt(ctx, l.leader, question)
	if err == nil {
		return nil
	}
	l.leader = ""
	if errors.Is(err, sarama.ErrUnknownTopicOrPartition) { // or it has another leader now: the look-up tells
		return err
	}
	return l.judge(err)
}

// locate finds out who leads the topic, unless that is known.
func (l *positionLog) locate(ctx context.Context, tries int) error {
	if l.leader != "" {
		return nil
	}
	md, err := l.find(ctx, tries)
	if err != nil {
		return err
	}
	addr, ok := l.ctl.brokers[md.Partitions[0].Leader]
	if !ok {
		return errNoLeader
	}
	l.leader = addr
	return nil
}

// preconnect connects before the first request, for which a start waits. That request meets the error again, if there is one.
func (l *positionLog) preconnect(ctx context.Context) {
	if l.locate(ctx, 1) == nil {
		_ = l.ctl.askAt(ctx, l.leader, answers)
	}
}

// missingTries is how often the topic, or any broker, must be missing: a broker that has just started does not know all yet.
const missingTries = 4

// find looks the topic up; so many times, if it is missing.
func (l *positionLog) find(ctx context.Context, most int) (*sarama.TopicMetadata, error) {
	for tries := 1; ; tries++ {
		md, err := l.lookUp(ctx)
		if err == nil {
			return md, l.readable(md)
		}
		if u, ok := errors.AsType[*checkpoint.Unusable](err); tries >= most || !errors.Is(err, errStarting) && !(ok && u.Missing) {
			return nil, err
		}
		l.ctl.dialer.pause(200 * time.Millisecond)
	}
}

func (l *positionLog) lookUp(ctx context.Context) (*sarama.TopicMetadata, error) {
	found, err := l.ctl.topics(ctx, []string{l.topic})
	if err != nil {
		return nil, err
	}
	md := found[l.topic]
	if md == nil {
		return nil, l.judge(sarama.ErrUnknownTopicOrPartition)
	}
	if err := usable(md); err != nil {
		return nil, l.judge(err)
	}
	if n := len(md.Partitions); n > 1 {
		return nil, l.unusable(fmt.Sprintf("it has %d partitions, and must have one", n),
			"delete it and create it again with one partition, or set delivery.position_topic to another topic", nil)
	}
	return md, nil
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
// If only the newest cannot be read, what those before it say comes with the error. When ctx is over the session can only be closed.
func (p *Producer) LoadPosition(ctx context.Context) (*checkpoint.PositionRecord, error) {
	if p.cluster.cfg.PositionTopic == "" {
		return nil, errNoPositions
	}
	type answer struct {
		saved *checkpoint.PositionRecord
		err   error
	}
	answered := make(chan answer, 1)
	p.background.Go(func() { // sarama waits longer than the caller can, and sees no end but that of its connection
		var a answer
		p.locked(func(l *positionLog) { a.saved, a.err = l.load(ctx) })
		answered <- a
	})
	var a answer
	select {
	case a = <-answered:
	case <-ctx.Done():
		a.err = context.Cause(ctx)
	}
	if topic := p.cluster.cfg.PositionTopic; a.err != nil && !errors.As(a.err, new(*checkpoint.Unusable)) {
		return nil, &failure{doing: "read the position record from topic " + topic, topic: topic, err: a.err}
	}
	return a.saved, a.err
}

// positionStep is how many offsets of the topic are read first. Records of all slots are in it, about one a second of each; and
// the records of the last seconds must be seen together, so that a late one of an earlier session is not taken for the newest.
const positionStep = 1000

// load reads from the end backwards until there is a record of the slot. A topic with segments of another size than setup apply gives it
// (a gigabyte, by default) may hold more of other slots than can be read while the server waits; then the topic counts as unusable, so
// that delivery goes on.
func (l *positionLog) load(ctx context.Context) (*checkpoint.PositionRecord, error) {
	l.bytes = 0
	end, err := l.offset(ctx, sarama.OffsetNewest)
	if err != nil {
		return nil, err
	}
	start, err := l.offset(ctx, sarama.OffsetOldest)
	if err != nil {
		return nil, err
	}
	step := int64(positionStep)
	for until := end; until > start; step *= windowGrowth {
		if l.bytes > l.most {
			return nil, l.unusable(fmt.Sprintf("%d MiB of it were read without a record of slot %s", l.bytes>>20, l.slot),
				"set "+strings.Join(PositionConfig(), " and ")+" on topic "+l.topic+"; the daemon asks again once a minute", nil)
		}
		from := max(start, until-step)
		best, err := l.window(ctx, from, until)
		if best.seen || err != nil {
			return checkpoint.Merge(best.saved[max(0, len(best.saved)-checkpoint.Recent):]), err
		}
		until = from
	}
	return nil, nil
}

// offset returns where the topic begins (sarama.OffsetOldest) or ends (OffsetNewest).
func (l *positionLog) offset(ctx context.Context, which int64) (offset int64, err error) {
	err = l.ask(ctx, func(b *sarama.Broker) (err error) {
		offset, err = offsetAt(b, l.ctl.conf.Version, l.topic, 0, which)
		return err
	})
	return offset, err
}

// newest are the slot's records in a window.
type newest struct {
	seen  bool
	saved []checkpoint.PositionRecord // since the last deletion
	err   error                       // the newest cannot be read
}

// window reads the slot's records at the offsets from ≤ n < until.
func (l *positionLog) window(ctx context.Context, from, until int64) (best newest, err error) {
	for from < until {
		next := from
		err := l.ask(ctx, func(b *sarama.Broker) error {
			batches, err := FetchBatches(b, l.topic, 0, from, 0)
			if err != nil {
				return err
			}
			for _, b := range batches {
				for _, rec := range b.Records {
					l.bytes += len(rec.Key) + len(rec.Value)
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
	var s checkpoint.PositionRecord
	if n.err = s.UnmarshalText(value); n.err == nil {
		n.saved = append(n.saved, s)
	}
}
