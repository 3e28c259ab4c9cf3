package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/IBM/sarama"

	"github.com/outboxcdc/outboxcdc/router"
)

// Letter is a record of a dead-letter topic. Its slices are valid for as long as somebody holds them.
type Letter struct {
	Partition int32
	Offset    int64
	Time      time.Time
	Key       []byte // nil: null
	Value     []byte // nil: null
	Headers   []router.Header
	Dealt     bool // with it, before: see DeadLetters.Deal
}

// DeadLetters is a dead-letter topic and what a consumer group has noted about it: which letters somebody has dealt with.
// The group is only a place for offsets: nobody consumes with it, and who notes something holds it alone. For one goroutine.
type DeadLetters struct {
	cluster *Cluster
	dialer  *dialer
	client  sarama.Client
	topic   string
	group   string
	parts   []letters
	gone    int64
	hold    *hold // nil: we may only look
}

// letters is one partition.
type letters struct {
	id         int32
	first, end int64 // of its log, when it was looked at
	some       bool  // something was noted ever
	dealt
}

// OpenDeadLetters connects, reads what the group has noted, and finds where each partition of the topic begins and ends. What
// comes to the topic later is not seen.
func (c *Cluster) OpenDeadLetters(ctx context.Context, topic, group string) (_ *DeadLetters, err error) {
	l := &DeadLetters{cluster: c, topic: topic, group: group, dialer: newDialer(c.cfg.DialTimeout, c.metrics.connections)}
	// What is noted at the end has to get through after ctx has ended.
	defer context.AfterFunc(ctx, l.dialer.cut)()
	defer func() {
		if err != nil {
			l.Close()
			err = &failure{doing: "open dead-letter topic " + topic, topic: topic, rights: l.rights(), err: err}
		}
	}()
	security, err := c.secure()
	if err != nil {
		return nil, err
	}
	if l.client, err = sarama.NewClient(c.cfg.Brokers, c.saramaConfig(l.dialer, security)); err != nil {
		return nil, err
	}
	ids, err := l.client.Partitions(topic)
	if errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
		return nil, fmt.Errorf("%w; it is made by you, and the daemon waits for it at its first dead letter", sarama.ErrUnknownTopicOrPartition)
	}
	if err != nil {
		return nil, err
	}
	slices.Sort(ids)
	for _, id := range ids {
		l.parts = append(l.parts, letters{id: id})
	}
	return l, l.look()
}

// look finds what is noted, and where each partition begins and ends. In that order: whoever notes meanwhile what came
// meanwhile is not to be behind the end.
func (l *DeadLetters) look() error {
	if err := l.noted(); err != nil {
		return err
	}
	l.gone = 0
	for i := range l.parts {
		p := &l.parts[i]
		var err error
		if p.first, err = l.client.GetOffset(l.topic, p.id, sarama.OffsetOldest); err == nil {
			p.end, err = l.client.GetOffset(l.topic, p.id, sarama.OffsetNewest)
		}
		if err != nil {
			return fmt.Errorf("find where partition %d begins and ends: %w", p.id, err)
		}
		if p.next > p.end { // the topic was made anew, and its offsets began anew
			p.dealt, p.some = dealt{}, false
		}
		if p.some {
			l.gone += p.openBefore(p.first)
		}
		p.add(0, p.first-1)
	}
	return nil
}

// rights are what all of this needs.
func (l *DeadLetters) rights() string {
	return fmt.Sprintf("Read and Describe on topic %s and on group %s", l.topic, l.group)
}

// Gone is how many letters Kafka has deleted that nobody had dealt with, as far as the group's offsets tell.
func (l *DeadLetters) Gone() int64 { return l.gone }

// Read calls fn with each letter, partition by partition in the order of the offsets: with all those from the beginning, else
// from the first one that nobody has dealt with. An error of fn ends it, and so does the end of ctx.
func (l *DeadLetters) Read(ctx context.Context, all bool, fn func(*Letter) error) error {
	for i := range l.parts {
		p := &l.parts[i]
		from := max(p.first, p.next)
		if all {
			from = p.first
		}
		if err := l.read(ctx, p, from, fn); err != nil {
			return err
		}
	}
	return nil
}

func (l *DeadLetters) read(ctx context.Context, p *letters, from int64, fn func(*Letter) error) error {
	for tries := 0; from < p.end; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		batches, err := l.fetch(p.id, from)
		switch {
		case errors.Is(err, sarama.ErrOffsetOutOfRange): // deleted meanwhile
			if p.first, err = l.client.GetOffset(l.topic, p.id, sarama.OffsetOldest); err == nil && p.first > from {
				from = p.first
				continue
			}
		case err == nil && len(batches) > 0:
			tries = 0
		}
		if err != nil || len(batches) == 0 {
			if tries++; tries > lettersRetries {
				err = cmp.Or(err, errors.New("the broker sends nothing, although there is more"))
				return &failure{doing: fmt.Sprintf("read partition %d of topic %s at offset %d", p.id, l.topic, from), topic: l.topic, rights: l.rights(), err: err}
			}
			l.dialer.pause(100 * time.Millisecond)
			if err != nil {
				_ = l.client.RefreshMetadata(l.topic) // the leader may be another one
			}
			continue
		}
		for _, b := range batches {
			if from, err = p.hand(ctx, b, from, fn); err != nil {
				return err
			}
		}
	}
	return nil
}

// hand gives fn the letters of a batch from an offset on, and returns the offset behind the batch.
func (p *letters) hand(ctx context.Context, b *sarama.RecordBatch, from int64, fn func(*Letter) error) (int64, error) {
	for _, r := range b.Records {
		offset := b.FirstOffset + r.OffsetDelta
		if b.Control || offset < from || offset >= p.end {
			continue
		}
		if ctx.Err() != nil {
			return from, context.Cause(ctx)
		}
		p.pass(from, offset-1)
		letter := &Letter{Partition: p.id, Offset: offset, Time: b.FirstTimestamp.Add(r.TimestampDelta), Key: r.Key, Value: r.Value, Dealt: p.has(offset)}
		if b.LogAppendTime {
			letter.Time = b.MaxTimestamp
		}
		for _, h := range r.Headers {
			letter.Headers = append(letter.Headers, router.Header{Name: string(h.Key), Value: h.Value})
		}
		from = offset + 1
		if err := fn(letter); err != nil {
			return from, err
		}
	}
	p.pass(from, min(b.LastOffset(), p.end-1))
	return max(from, b.LastOffset()+1), nil
}

// fetch asks the partition's leader for what is at offset.
func (l *DeadLetters) fetch(id int32, offset int64) ([]*sarama.RecordBatch, error) {
	leader, err := l.client.Leader(l.topic, id)
	if err != nil {
		return nil, err
	}
	batches, err := fetchBatches(leader, l.topic, id, offset, 500*time.Millisecond)
	var code sarama.KError
	if err != nil && !errors.As(err, &code) {
		_ = leader.Close() // it is opened again when it is asked for
	}
	return batches, err
}

// fetchBatches asks a leader for whole batches from an offset on, and waits until there is one. Uncommitted records of a transaction
// are read, too: the daemon makes none.
func fetchBatches(leader *sarama.Broker, topic string, id int32, offset int64, wait time.Duration) ([]*sarama.RecordBatch, error) {
	req := &sarama.FetchRequest{Version: 11, MaxWaitTime: int32(wait / time.Millisecond), MinBytes: 1, MaxBytes: fetchBytes, SessionEpoch: -1}
	req.AddBlock(topic, id, offset, fetchBytes, -1)
	res, err := leader.Fetch(req)
	if err != nil {
		return nil, err
	}
	block := res.GetBlock(topic, id)
	switch {
	case block == nil:
		return nil, errUnanswered
	case block.Err != sarama.ErrNoError:
		return nil, block.Err
	}
	var batches []*sarama.RecordBatch
	for _, set := range block.RecordsSet {
		if set.RecordBatch == nil {
			return nil, errors.New("records of a format older than Kafka 0.11")
		}
		if !set.RecordBatch.PartialTrailingRecord {
			batches = append(batches, set.RecordBatch)
		}
	}
	return batches, nil
}

// fetchBytes bounds what is read at a time; a larger batch comes alone.
const fetchBytes = 1 << 20

// Room says whether Deal can note one more letter. There is always room for the oldest.
func (l *DeadLetters) Room(letter *Letter) bool { return l.part(letter).room(letter.Offset) }

// Deal notes that somebody has dealt with the letter; Commit makes it last.
func (l *DeadLetters) Deal(letter *Letter) { l.part(letter).add(letter.Offset, letter.Offset) }

// Pass is Deal for a letter that is nobody's business here, as soon as nothing in front of it is open.
func (l *DeadLetters) Pass(letter *Letter) { l.part(letter).pass(letter.Offset, letter.Offset) }

func (l *DeadLetters) part(letter *Letter) *letters {
	i := slices.IndexFunc(l.parts, func(p letters) bool { return p.id == letter.Partition })
	return &l.parts[i]
}

// Close gives up the group and cuts all connections.
func (l *DeadLetters) Close() {
	if l.client != nil {
		l.release()
		_ = l.client.Close()
	}
	l.dialer.cut()
}
