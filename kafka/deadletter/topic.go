// Package deadletter reads a dead-letter topic for the dlq commands, and records which dead letters are handled.
//
// The handled offsets are the committed offsets of a consumer group and their metadata ([handled]). group.go holds the group,
// topic.go reads the topic.
package deadletter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/IBM/sarama"

	"github.com/outboxcdc/outboxcdc/kafka"
	"github.com/outboxcdc/outboxcdc/router"
)

// Letter is a dead letter: a record of the dead-letter topic. Its slices are not reused.
type Letter struct {
	Partition int32
	Offset    int64
	Time      time.Time
	Key       []byte // nil: null
	Value     []byte // nil: null
	Headers   []router.Header
	Handled   bool // it was retried or dropped before: see Topic.MarkHandled
}

// Topic is a dead-letter topic and the handled offsets of its partitions, which are stored as the offsets of a consumer group. The
// group only stores offsets: no consumer uses it, and only its single member commits (Hold). A Topic is for one goroutine.
type Topic struct {
	client  *kafka.Client
	topic   string
	group   string
	parts   []partition
	expired int64
	hold    *hold // nil: handled offsets can only be read
}

// partition is one partition of the topic.
type partition struct {
	id         int32
	first, end int64 // of its log, when it was last looked up
	committed  bool  // the group has an offset for it
	handled
}

// ErrNoTopic says that Kafka has no such topic, and so no dead letters.
var ErrNoTopic = errors.New("the topic does not exist: create it; until then the daemon waits for it at its first dead letter")

// Open connects, reads the group's offsets, and finds the beginning and the end of each partition of the topic. Records that are
// produced later are not read.
func Open(ctx context.Context, cluster *kafka.Cluster, topic, group string) (_ *Topic, err error) {
	l := &Topic{topic: topic, group: group}
	defer func() {
		if err != nil {
			l.Close()
			err = kafka.Failure("open dead-letter topic "+topic, topic, l.permissions(), err)
		}
	}()
	if l.client, err = cluster.NewClient(ctx); err != nil {
		return nil, err
	}
	// Only until Open returns: the last commit has to succeed also after ctx has ended.
	defer context.AfterFunc(ctx, l.client.Cut)()
	ids, err := l.client.Partitions(topic)
	if errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
		return nil, ErrNoTopic
	}
	if err != nil {
		return nil, err
	}
	slices.Sort(ids)
	for _, id := range ids {
		l.parts = append(l.parts, partition{id: id})
	}
	return l, l.look()
}

// look reads the group's offsets, and then the beginning and the end of each partition. In this order no offset that another process
// commits meanwhile is beyond the end.
func (l *Topic) look() error {
	if err := l.readHandled(); err != nil {
		return err
	}
	l.expired = 0
	for i := range l.parts {
		p := &l.parts[i]
		var err error
		if p.first, err = l.client.GetOffset(l.topic, p.id, sarama.OffsetOldest); err == nil {
			p.end, err = l.client.GetOffset(l.topic, p.id, sarama.OffsetNewest)
		}
		if err != nil {
			return fmt.Errorf("find where partition %d begins and ends: %w", p.id, err)
		}
		if p.next > p.end { // the topic was recreated: its offsets started again at 0
			p.handled, p.committed = handled{}, false
		}
		if p.committed {
			l.expired += p.openBefore(p.first)
		}
		p.add(0, p.first-1)
	}
	return nil
}

// permissions are those that a Topic needs.
func (l *Topic) permissions() string {
	return fmt.Sprintf("Read and Describe on topic %s and on group %s", l.topic, l.group)
}

// Expired returns how many dead letters Kafka has deleted before they were handled, as far as the group's offsets tell.
func (l *Topic) Expired() int64 { return l.expired }

// Read calls fn with each dead letter, partition by partition in the order of the offsets: with all of them, or from the first one
// that is not handled. An error of fn or the end of ctx ends it.
func (l *Topic) Read(ctx context.Context, all bool, fn func(*Letter) error) error {
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

func (l *Topic) read(ctx context.Context, p *partition, from int64, fn func(*Letter) error) error {
	for tries := 0; from < p.end; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		batches, err := l.fetch(p.id, from)
		switch {
		case errors.Is(err, sarama.ErrOffsetOutOfRange): // Kafka has deleted the record meanwhile
			if p.first, err = l.client.GetOffset(l.topic, p.id, sarama.OffsetOldest); err == nil && p.first > from {
				from = p.first
				continue
			}
		case err == nil && len(batches) > 0:
			tries = 0
		}
		if err != nil || len(batches) == 0 {
			if tries++; tries > maxRetries {
				err = cmp.Or(err, errors.New("the broker sends nothing, although there is more"))
				return kafka.Failure(fmt.Sprintf("read partition %d of topic %s at offset %d", p.id, l.topic, from), l.topic, l.permissions(), err)
			}
			l.client.Pause(100 * time.Millisecond)
			if err != nil {
				_ = l.client.RefreshMetadata(l.topic) // the leader may have changed
			}
			continue
		}
		for _, b := range batches {
			if from, err = p.deliver(ctx, b, from, fn); err != nil {
				return err
			}
		}
	}
	return nil
}

// deliver calls fn with the dead letters of a batch from an offset on, and returns the offset after the batch.
func (p *partition) deliver(ctx context.Context, b *sarama.RecordBatch, from int64, fn func(*Letter) error) (int64, error) {
	for _, r := range b.Records {
		offset := b.FirstOffset + r.OffsetDelta
		if b.Control || offset < from || offset >= p.end {
			continue
		}
		if ctx.Err() != nil {
			return from, context.Cause(ctx)
		}
		p.skip(from, offset-1)
		letter := &Letter{Partition: p.id, Offset: offset, Time: b.FirstTimestamp.Add(r.TimestampDelta), Key: r.Key, Value: r.Value, Handled: p.has(offset)}
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
	p.skip(from, min(b.LastOffset(), p.end-1))
	return max(from, b.LastOffset()+1), nil
}

// fetch asks the partition's leader for the batches from offset on.
func (l *Topic) fetch(id int32, offset int64) ([]*sarama.RecordBatch, error) {
	leader, err := l.client.Leader(l.topic, id)
	if err != nil {
		return nil, err
	}
	batches, err := kafka.FetchBatches(leader, l.topic, id, offset, 500*time.Millisecond)
	var code sarama.KError
	if err != nil && !errors.As(err, &code) {
		_ = leader.Close() // sarama opens it again for the next request
	}
	return batches, err
}

// CanMark reports whether MarkHandled can record one more dead letter. It always can for the oldest that is open.
func (l *Topic) CanMark(letter *Letter) bool { return l.part(letter).room(letter.Offset) }

// MarkHandled records that a dead letter was retried or dropped. Commit stores it.
func (l *Topic) MarkHandled(letter *Letter) { l.part(letter).add(letter.Offset, letter.Offset) }

// Skip is MarkHandled for a dead letter that does not concern the caller. It has no effect if there is an open one before it.
func (l *Topic) Skip(letter *Letter) { l.part(letter).skip(letter.Offset, letter.Offset) }

func (l *Topic) part(letter *Letter) *partition {
	i := slices.IndexFunc(l.parts, func(p partition) bool { return p.id == letter.Partition })
	return &l.parts[i]
}

// Close leaves the group and cuts all connections.
func (l *Topic) Close() {
	if l.client != nil {
		l.release()
		_ = l.client.Close()
	}
}
