package audit

import (
	"context"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/kafka"
)

// KafkaMargin is how much earlier than the rows Kafka is read: clocks differ, and created_at may be a little later
// than the record's time.
const KafkaMargin = 10 * time.Minute

// localMargin is KafkaMargin for a created_at without a time zone: it is taken as UTC, and can be local time.
const localMargin = 24 * time.Hour

// readKafka adds the records of all topics.
func (r *run) readKafka(ctx context.Context) (err error) {
	for _, t := range r.Topics {
		r.topics[t] = true
	}
	dead := r.Poison.Topic
	if dead != "" {
		r.topics[dead] = true
	}
	names := make([]string, 0, len(r.topics))
	for t := range r.topics {
		names = append(names, t)
	}
	slices.Sort(names)
	select {
	case <-time.After(time.Until(r.NotBefore)):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	// Before the letters are read: one that is retried meanwhile counts as held, unless its record is read.
	if r.Letters != nil && dead != "" {
		if r.isOpen, err = r.Letters(ctx); err != nil {
			return err
		}
	}
	spans, missing, err := r.log.Spans(ctx, names, r.since())
	if err != nil {
		return err
	}
	if err := r.readSettings(ctx, names); err != nil {
		return err
	}
	for _, t := range missing {
		if t != dead {
			r.Note("topic " + t + " does not exist")
		}
	}
	r.res.Spans = spans
	total, done := int64(0), int64(0)
	for i := range spans {
		s := &spans[i]
		total += s.End - s.From
		// Whether there is a gap before the first record that is read is not known, unless it is the first one of the log.
		r.topicLog(s.Topic).part(s.Partition).next = s.First
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(max(2, runtime.GOMAXPROCS(0)))
	for i := range spans {
		s := &spans[i]
		group.Go(func() error {
			return r.log.ReadSpan(groupCtx, s, func(rec *kafka.Record) error {
				r.mu.Lock()
				defer r.mu.Unlock()
				if done++; done%progressEvery == 0 {
					r.Progress("records", done, total)
				}
				return r.addRecord(s, rec, s.Topic == dead)
			})
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	r.Progress("records", done, done)
	for i := range spans {
		s := &spans[i]
		p := r.topicLog(s.Topic).part(s.Partition)
		if p.moving = s.Deleted > 0; p.next < s.End {
			p.gap = endOfTime
		}
		if s.Gap {
			p.hole = endOfTime
		}
	}
	return r.limits(ctx, names, dead)
}

// margin is how much later than the time of its record the time of a row may be.
func (r *run) margin() time.Duration {
	for i := range r.Tables {
		if !r.snapshot.Zoned(i) {
			return localMargin
		}
	}
	return KafkaMargin
}

// limits notes of which rows Kafka may have deleted the records. It is called after Kafka was read, because Kafka can
// delete records meanwhile.
func (r *run) limits(ctx context.Context, topics []string, dead string) error {
	r.readAt = time.Now()
	spans, _, err := r.log.Spans(ctx, topics, time.Time{})
	if err != nil {
		return err
	}
	for i := range spans {
		r.noteDeleted(&spans[i])
	}
	for _, name := range topics {
		switch t := r.topicLog(name); {
		case name == dead || !r.topicExists(name):
		case !t.isKnown:
			r.Note("the settings of topic " + name + " may not be read (DescribeConfigs is not allowed): rows of which Kafka may have deleted the records, by " +
				"retention or compaction, are not judged")
		case t.Compact:
			r.Note("topic " + name + " is compacted: Kafka deletes a record when a later one has its key, so rows without a record are not judged if there is such a record")
		}
	}
	return nil
}

// topicExists reports whether Kafka has the topic.
func (r *run) topicExists(topic string) bool {
	return slices.ContainsFunc(r.res.Spans, func(s kafka.Span) bool { return s.Topic == topic })
}

// addRecord adds a record. Records without the header id are not of an outbox, except for dead letters.
func (r *run) addRecord(s *kafka.Span, rec *kafka.Record, dead bool) error {
	t := r.topicLog(s.Topic)
	if t.noteOffset(s.Partition, rec.Offset, rec.Time); rec.Gap {
		t.part(s.Partition).hole = rec.Time
	}
	if t.mayCompact() && rec.Key != nil && !dead {
		if err := r.c.NoteKey(s.Topic, rec.Key, rec.Time); err != nil {
			return err
		}
	}
	out := &Record{Topic: s.Topic, Partition: s.Partition, Offset: rec.Offset, Key: rec.Key, Time: rec.Time, Uncommitted: rec.Uncommitted}
	for _, h := range rec.Headers {
		switch h.Name {
		case router.HeaderID:
			if out.ID == nil {
				out.ID = h.Value
			}
		case router.HeaderPosition:
			if p, from, err := checkpoint.ParseHeader(string(h.Value)); err == nil {
				out.Position, out.Origin = p, from
			}
		case relay.HeaderError:
			if dead {
				out.Dead = string(h.Value)
			}
		case relay.HeaderHeldBy:
			out.Held = dead && r.isOpen != nil && r.isOpen(s.Partition, rec.Offset)
		case relay.HeaderTruncated:
			out.Cut = dead
		case relay.HeaderSlot:
			if dead && string(h.Value) != r.Slot {
				return nil // another daemon shares the topic
			}
		case HeaderRetried, HeaderRecovered, HeaderReplayed:
			out.Resent = true
		}
	}
	switch {
	case dead && out.Dead == "": // the dead letter of an event without an id has none
		return nil
	case out.ID == nil && !dead && t.mayCompact(): // another producer has written the state of the key
		return r.c.noteLater(laterDelivered, s.Topic, rec.Key, rec.Time)
	case out.ID == nil && !dead:
		return nil
	}
	if p := out.Position; p.CommitLSN == r.Count && p.SystemID == r.Lineage.SystemID {
		r.res.Ordinals = max(r.res.Ordinals, p.Ordinal+1)
	}
	r.noteUse(out)
	out.Value = Hash(r.Router, rec.Value)
	out.Content = r.content(s.Topic, rec.Key, rec.Value, func(yield func(string, []byte) bool) {
		for i := range rec.Headers {
			if h := &rec.Headers[i]; !yield(h.Name, h.Value) {
				return
			}
		}
	})
	return r.c.AddRecord(out)
}
