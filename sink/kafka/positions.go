package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/internal/advice"
)

// positionLog reads and writes the single partition of the position topic, over its own connection. It is for one
// goroutine at a time.
type positionLog struct {
	ctl      *control
	topic    string
	slot     string
	leader   string              // its address; "": to be looked up
	sequence int32               // of the session's next batch
	pending  *sarama.RecordBatch // has been sent, and it is not known whether it is stored
	tries    int                 // how many look-ups must lack the topic
}

func (p *Producer) newPositionLog() *positionLog {
	c := p.cluster
	l := &positionLog{ctl: c.newControl(p.dialer, p.secured), topic: c.cfg.PositionTopic, slot: c.cfg.Slot, tries: daemonTries}
	l.ctl.conf.Net.ReadTimeout = c.cfg.ReadTimeout
	return l
}

// withPositionLog calls f with the position log, under its lock.
func (p *Producer) withPositionLog(f func(*positionLog)) {
	p.positionsMu.Lock()
	defer p.positionsMu.Unlock()
	f(p.positions)
}

// errNoLeader is transient.
var errNoLeader = fmt.Errorf("the position topic has no leader: %w", sarama.ErrLeaderNotAvailable)

// ask calls question for the leader of the topic.
func (l *positionLog) ask(ctx context.Context, question func(*sarama.Broker) error) error {
	if err := l.locate(ctx, l.tries); err != nil {
		return err
	}
	err := l.ctl.askBroker(ctx, l.leader, question)
	if err == nil {
		return nil
	}
	l.leader = ""
	l.ctl.doubt()
	if errors.Is(err, sarama.ErrUnknownTopicOrPartition) { // or the leader has changed, which the next look-up shows
		return err
	}
	return l.judge(err)
}

// locate looks up the leader of the topic, unless it is known.
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

// preconnect connects before the first request, because a start waits for that request. It ignores errors, which the
// request will return.
func (l *positionLog) preconnect(ctx context.Context) {
	if l.locate(ctx, 1) == nil {
		_ = l.ctl.askBroker(ctx, l.leader, ping)
	}
}

// missingTries is how many answers must lack the topic, or all brokers, because a broker that has just started has
// incomplete metadata. A failure to get one does not count. A daemon stops without the topic, and a supervisor may not
// start it again, so it looks for 5 s.
const (
	missingTries = 4
	daemonTries  = 25
)

// absences counts for each topic how many answers in a row have lacked it.
type absences map[string]int

// count counts an answer about the topic, and reports whether it is missing. err is what the answer says: nil, or why
// the topic cannot be used.
func (a absences) count(topic string, err error) (missing bool) {
	if !errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
		delete(a, topic)
		return false
	}
	a[topic]++
	return a[topic] >= missingTries
}

// find looks up the topic, at most most times if it is missing.
func (l *positionLog) find(ctx context.Context, most int) (*sarama.TopicMetadata, error) {
	for starting, absent := 0, 0; ; {
		md, err := l.lookUp(ctx)
		if err == nil {
			return md, l.checkReadable(md)
		}
		switch u, ok := errors.AsType[*checkpoint.Unusable](err); {
		case errors.Is(err, errStarting):
			starting++
		case ok && u.Missing:
			absent++
		default:
			return nil, err
		}
		if starting >= most || absent >= most {
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
	if err := checkWritable(md); err != nil {
		return nil, l.judge(err)
	}
	if n := len(md.Partitions); n > 1 {
		return nil, l.unusable(fmt.Sprintf("it has %d partitions, and must have one", n),
			"delete it and create it again with one partition, or set delivery.position_topic to another topic", nil)
	}
	return md, nil
}

// checkReadable returns an error if reading is forbidden. Reads of an empty topic do not show this.
func (l *positionLog) checkReadable(md *sarama.TopicMetadata) error {
	const read = 1 << 3 // AclOperation.READ
	if isAllowed(md, read) {
		return nil
	}
	return l.judge(fmt.Errorf("reading is not allowed: %w", sarama.ErrTopicAuthorizationFailed))
}

// judge returns a *checkpoint.Unusable for permanent errors, and other errors unchanged.
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
	case kindOf(code).class == denied:
		return &checkpoint.Unusable{
			Topic: l.topic, Why: "access is refused", Denied: true, Err: err, Remedy: "grant the daemon's user Read, Write and Describe on topic " + l.topic,
		}
	case kindOf(code).class == refused:
		return l.unusable("it refuses the record", "raise max.message.bytes of topic "+l.topic, err)
	}
	return err
}

// positionFailure adds what was attempted to an error that is not a *[checkpoint.Unusable].
func positionFailure(op, topic string, err error) error {
	if err == nil || errors.As(err, new(*checkpoint.Unusable)) {
		return err
	}
	return &failure{op: op + topic, topic: topic, err: err}
}

func (l *positionLog) unusable(why, remedy string, err error) error {
	return &checkpoint.Unusable{Topic: l.topic, Why: why, Remedy: remedy, Err: err}
}

// LoadPosition reads the newest position record of the slot, merged with those before it. It returns nil if there is
// none. The error is a *[checkpoint.Unusable] or transient. If only the newest record cannot be read, the result of
// the earlier ones is returned with the error. After the end of ctx the session can only be closed.
func (p *Producer) LoadPosition(ctx context.Context) (*checkpoint.PositionRecord, error) {
	if p.cluster.cfg.PositionTopic == "" {
		return nil, errNoPositionTopic
	}
	type answer struct {
		saved *checkpoint.PositionRecord
		err   error
	}
	answered := make(chan answer, 1)
	p.background.Go(func() { // because sarama does not return at the end of ctx
		var a answer
		p.withPositionLog(func(l *positionLog) {
			var mark *sarama.RecordBatch
			if mark, a.err = p.mark(ctx, l); a.err == nil {
				a.saved, a.err = l.load(ctx, mark)
			}
		})
		answered <- a
	})
	var a answer
	select {
	case a = <-answered:
	case <-ctx.Done():
		a.err = context.Cause(ctx)
	}
	return a.saved, positionFailure("read the position record from topic ", p.cluster.cfg.PositionTopic, a.err)
}

// markKey is the suffix of the key of marks. It occurs in no name of a slot.
const markKey = "/reader"

// mark stores a record without content before the session reads the position records. A broker that no longer leads
// the topic, and does not know it, would answer a read with old records, but cannot acknowledge a record. Its records
// have another key than position records, so that compaction keeps one for each slot.
func (p *Producer) mark(ctx context.Context, l *positionLog) (*sarama.RecordBatch, error) {
	return p.store(ctx, l, &sarama.Record{Key: []byte(l.slot + markKey)})
}

// errNoMark is transient.
var errNoMark = fmt.Errorf("the broker does not have the record that this session has just stored, so it does not lead the topic: %w", sarama.ErrNotLeaderForPartition)

// positionStep is the size of the first window. The topic has about one record per second of each slot. The window
// must have the records of several seconds, so that a late record of an earlier session is not mistaken for the
// newest.
const positionStep = 1000

// load reads backwards from the end until it finds a record of the slot. With a mark, the window at the end must have
// it: what is read there is believed only then.
func (l *positionLog) load(ctx context.Context, mark *sarama.RecordBatch) (*checkpoint.PositionRecord, error) {
	end, err := l.offset(ctx, sarama.OffsetNewest)
	if err != nil {
		return nil, err
	}
	start, err := l.offset(ctx, sarama.OffsetOldest)
	if err != nil {
		return nil, err
	}
	if mark != nil && start >= end {
		return nil, errNoMark
	}
	step := int64(positionStep)
	for until := end; until > start; step *= windowGrowth {
		from := max(start, until-step)
		best, err := l.window(ctx, from, until, mark)
		if err == nil && mark != nil && until == end && !best.marked {
			l.leader = ""
			l.ctl.doubt()
			return nil, errNoMark
		}
		if best.seen || err != nil {
			return checkpoint.Merge(best.records[max(0, len(best.records)-checkpoint.Recent):]), err
		}
		until = from
	}
	return nil, nil
}

// offset returns the first offset (sarama.OffsetOldest) or the end (OffsetNewest) of the topic.
func (l *positionLog) offset(ctx context.Context, which int64) (offset int64, err error) {
	err = l.ask(ctx, func(b *sarama.Broker) (err error) {
		offset, err = offsetAt(b, l.ctl.conf.Version, l.topic, 0, which)
		return err
	})
	return offset, err
}

// windowRecords are the slot's records in a window.
type windowRecords struct {
	seen    bool
	marked  bool                        // the mark is there
	damaged bool                        // a later batch cannot be decoded
	records []checkpoint.PositionRecord // since the last deletion
	err     error                       // the newest cannot be read
}

// window reads the slot's records at the offsets from ≤ n < until.
func (l *positionLog) window(ctx context.Context, from, until int64, mark *sarama.RecordBatch) (best windowRecords, err error) {
	most, skip := int32(fetchBytes), int64(1)
	for from < until {
		next := from
		err := l.ask(ctx, func(b *sarama.Broker) error {
			batches, err := fetchBatches(b, l.topic, 0, from, most)
			if err != nil {
				return err
			}
			for _, b := range batches {
				best.marked = best.marked || mark != nil && b.FirstOffset < until && b.ProducerID == mark.ProducerID && b.ProducerEpoch == mark.ProducerEpoch && b.FirstSequence == mark.FirstSequence
				for _, rec := range b.Records {
					at := b.FirstOffset + rec.OffsetDelta
					// A record with headers is an event: another daemon may send events to any topic.
					if !b.Control && at >= from && at < until && string(rec.Key) == l.slot && len(rec.Headers) == 0 {
						best.add(rec.Value)
					}
				}
				next = max(next, b.LastOffset()+1)
			}
			if len(batches) == 0 { // compacted
				next = min(until, from+positionStep)
			}
			return nil
		})
		if isUndecodable(err) && most > 1 { // one of the batches: fetch them one by one
			most = 1
			continue
		}
		if isUndecodable(err) { // read on after the batch, whose length is not known
			best.damaged, from, skip = true, min(until, from+skip), 2*skip
			continue
		}
		if err != nil {
			return best, err
		}
		l.ctl.cluster.endsProgress.Add(next - from)
		from, skip = next, 1
	}
	if best.damaged && best.err == nil {
		best.err = errors.New("a later batch is damaged")
	}
	if best.err != nil {
		return best, &checkpoint.Unusable{
			Topic: l.topic, Why: "the newest record of slot " + l.slot + " cannot be read", Err: best.err, Record: true,
			Remedy: "if a newer outboxcdc has written it, run that one; otherwise " + advice.Recover,
		}
	}
	return best, nil
}

func (n *windowRecords) add(value []byte) {
	n.seen, n.damaged = true, false
	if value == nil {
		n.records, n.err = nil, nil
		return
	}
	var s checkpoint.PositionRecord
	if n.err = s.UnmarshalText(value); n.err == nil {
		n.records = append(n.records, s)
	}
}
