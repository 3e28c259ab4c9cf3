// Package deadletter reads a dead-letter topic for the dlq commands, and records which dead letters are handled.
//
// The handled offsets are the committed offsets of a consumer group and their metadata ([handled]). group.go holds
// the group, topic.go reads the topic.
package deadletter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/IBM/sarama"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/kafka"
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

// Topic is a dead-letter topic and the handled offsets of its partitions, which are stored as the offsets of a
// consumer group. The group only stores offsets: no consumer uses it, and only its single member commits (Hold). A
// Topic is for one goroutine.
type Topic struct {
	client  *kafka.Client
	topic   string
	group   string
	id      sarama.Uuid // zero: not known, or brokers that give no ids
	parts   []partition
	expired int64
	hold    *hold // nil: handled offsets can only be read
}

// partition is one partition of the topic.
type partition struct {
	id         int32
	first, end int64   // of its log, when it was last looked up
	committed  bool    // the group has an offset for it
	handled            // what is not read again: recorded, and what Kafka has deleted
	recorded   handled // the group's offset, and what was marked since: what Commit stores
}

// ErrNoTopic means that the dead-letter topic does not exist, so there are no dead letters.
var ErrNoTopic = errors.New("the topic does not exist: create it; until then the daemon waits for it, with hold_key at its first event, otherwise at its first dead letter")

// Open connects, reads the group's offsets, and finds the beginning and the end of each partition of the topic.
// Records that are produced later are not read.
func Open(ctx context.Context, cluster *kafka.Cluster, topic, group string) (*Topic, error) {
	l, err := connect(ctx, cluster, topic, group)
	if err == nil {
		if err = l.readState(ctx); err == nil {
			return l, nil
		}
		l.Close()
	}
	return nil, kafka.Failure("open dead-letter topic "+topic, topic, l.permissions(), err)
}

// connect connects. Nothing is known about the topic yet.
func connect(ctx context.Context, cluster *kafka.Cluster, topic, group string) (l *Topic, err error) {
	l = &Topic{topic: topic, group: group}
	l.client, err = cluster.NewClient(ctx)
	return l, err
}

// readState reads the group's offsets, and then the beginning and the end of each partition. In this order no offset
// that another process commits meanwhile is beyond the end. It reads again if the topic has got partitions, and for
// some seconds if an end is before a handled letter, because a leader may have fallen behind.
func (l *Topic) readState(ctx context.Context) error {
	defer context.AfterFunc(ctx, l.client.Cut)()
	for tries := 0; ; tries++ {
		if err := l.readHandled(); err != nil {
			return err
		}
		spans, missing, err := l.client.Spans(ctx, []string{l.topic}, time.Time{})
		if err != nil {
			return err
		}
		if len(missing) > 0 {
			return ErrNoTopic
		}
		known, err := l.apply(spans, tries >= maxRetries)
		if known || err != nil {
			return err
		}
	}
}

// apply notes where the partitions begin and end. It reports whether all of them were known before, and no end is
// before a handled letter. With believe, such a topic was created again, so its offsets have started again at 0.
func (l *Topic) apply(spans []kafka.Span, believe bool) (known bool, err error) {
	known, l.expired = true, 0
	for i := range l.parts {
		if id := l.parts[i].id; !slices.ContainsFunc(spans, func(s kafka.Span) bool { return s.Partition == id }) {
			return false, fmt.Errorf("partition %d: %w", id, sarama.ErrUnknownTopicOrPartition)
		}
	}
	for _, s := range spans {
		i := slices.IndexFunc(l.parts, func(p partition) bool { return p.id == s.Partition })
		if i < 0 {
			known, l.parts = false, append(l.parts, partition{id: s.Partition})
			continue
		}
		p := &l.parts[i]
		l.id, p.first, p.end = s.TopicID, s.First, s.End
		if p.next > p.end {
			if !believe {
				l.client.Pause(pauseBetween)
				return false, nil
			}
			p.handled, p.recorded, p.committed = handled{}, handled{}, false
		}
		if p.committed {
			l.expired += p.openBefore(p.first)
		}
		p.add(0, p.first-1)
	}
	return known, nil
}

// permissions are those that a Topic needs.
func (l *Topic) permissions() string {
	return fmt.Sprintf("Read and Describe on topic %s and on group %s", l.topic, l.group)
}

// Expired returns how many dead letters Kafka has deleted before they were handled, as far as the group's offsets tell.
func (l *Topic) Expired() int64 { return l.expired }

// Read calls fn with each dead letter, partition by partition in the order of the offsets: with all of them, or from
// the first one that is not handled. An error of fn or the end of ctx ends it.
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

// read calls fn with the dead letters of one partition from an offset on.
func (l *Topic) read(ctx context.Context, p *partition, from int64, fn func(*Letter) error) error {
	s := kafka.Span{Topic: l.topic, Partition: p.id, First: p.first, From: from, End: p.end}
	next := from // after the last dead letter: offsets without one are skipped
	err := l.client.ReadSpan(ctx, &s, func(r *kafka.Record) error {
		p.noLetters(max(next, s.First), r.Offset-1)
		next = r.Offset + 1
		return fn(&Letter{
			Partition: p.id, Offset: r.Offset, Time: r.Time, Key: r.Key, Value: r.Value, Handled: p.has(r.Offset),
			Headers: append([]router.Header(nil), r.Headers...),
		})
	})
	if err == nil {
		p.noLetters(max(next, s.First), p.end-1)
	}
	return err
}

// noLetters notes that no offset from first to last has a dead letter of the caller.
func (p *partition) noLetters(first, last int64) {
	p.skip(first, last)
	p.recorded.skip(first, last)
}

// CanMark reports whether MarkHandled can record one more dead letter. It always can for the oldest that is open.
func (l *Topic) CanMark(letter *Letter) bool { return l.part(letter).recorded.hasRoom(letter.Offset) }

// MarkHandled records that a dead letter was retried or dropped. Commit stores it.
func (l *Topic) MarkHandled(letter *Letter) {
	p := l.part(letter)
	p.add(letter.Offset, letter.Offset)
	p.recorded.add(letter.Offset, letter.Offset)
}

// Forget lets Commit record letters as handled that Kafka has deleted, before an offset of each partition. Without it
// they stay open: a daemon whose keys they hold finds out by that, and does not free the keys silently.
func (l *Topic) Forget(before func(partition int32) int64) {
	for i := range l.parts {
		p := &l.parts[i]
		p.recorded.add(0, min(p.first, before(p.id))-1)
	}
}

// Skip is MarkHandled for a dead letter that does not concern the caller. It has no effect if there is an open one
// before it.
func (l *Topic) Skip(letter *Letter) { l.part(letter).noLetters(letter.Offset, letter.Offset) }

func (l *Topic) part(letter *Letter) *partition {
	i := slices.IndexFunc(l.parts, func(p partition) bool { return p.id == letter.Partition })
	return &l.parts[i]
}

// Close leaves the group and cuts all connections.
func (l *Topic) Close() {
	if l.client != nil {
		l.release()
		l.client.Close()
	}
}
