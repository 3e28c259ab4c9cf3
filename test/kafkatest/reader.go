package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/test/check"
)

// Record is one record as a consumer sees it. A null key, value or header value
// is nil; an empty one is empty and not nil.
type Record struct {
	Topic     string
	Partition int32
	Offset    int64
	Key       []byte
	Value     []byte
	Headers   []Header
	Timestamp time.Time
	Producer  int64 // producer id given by Kafka
}

// Check is the record for the checker.
func (r *Record) Check() check.Record {
	c := check.Record{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Key: r.Key, Value: r.Value}
	for _, h := range r.Headers {
		c.Headers = append(c.Headers, check.Header{Name: h.Key, Value: h.Value})
	}
	return c
}

// Header is one header of a record, in the order in which they were sent.
type Header struct {
	Key   string
	Value []byte
}

func toRecord(r *kgo.Record) Record {
	rec := Record{
		Topic:     r.Topic,
		Partition: r.Partition,
		Offset:    r.Offset,
		Key:       r.Key,
		Value:     r.Value,
		Timestamp: r.Timestamp,
		Producer:  r.ProducerID,
	}
	for _, h := range r.Headers {
		rec.Headers = append(rec.Headers, Header(h))
	}
	return rec
}

// ReadAll reads every partition of the topics from its beginning to its end at the time of the call, and returns the
// records sorted by topic (as given), partition and offset. It reads committed records only: none of an aborted or open
// transaction. A topic that does not exist is an error.
func ReadAll(ctx context.Context, brokers []string, topics ...string) ([]Record, error) {
	client, err := newClient(brokers)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var todo []*partition
	for _, topic := range topics {
		parts, err := bounds(ctx, client, topic)
		// A leader election is slow on a busy machine.
		for (errors.Is(err, kerr.LeaderNotAvailable) || errors.Is(err, kerr.NotLeaderForPartition)) && ctx.Err() == nil {
			time.Sleep(50 * time.Millisecond)
			parts, err = bounds(ctx, client, topic)
		}
		if err != nil {
			return nil, fmt.Errorf("find the offsets of topic %s: %w", topic, err)
		}
		todo = append(todo, parts...)
	}
	if err := readTo(ctx, brokers, todo); err != nil {
		return nil, err
	}
	var all []Record
	for _, p := range todo {
		all = append(all, p.records...)
	}
	return all, nil
}

// partition is the reading state of one partition, and its end.
type partition struct {
	topic     string
	number    int32
	next, end int64
	records   []Record
}

// bounds returns the first and the end offset of each partition of a topic.
func bounds(ctx context.Context, client *kgo.Client, topic string) ([]*partition, error) {
	count, err := partitionsOf(ctx, client, topic)
	if err != nil {
		return nil, err
	}
	parts := make([]*partition, count)
	for i := range parts {
		parts[i] = &partition{topic: topic, number: int32(i)}
	}
	const earliest, latest = -2, -1
	for _, which := range []int64{earliest, latest} {
		offsets, err := listOffsets(ctx, client, topic, count, which)
		if err != nil {
			return nil, err
		}
		for _, p := range parts {
			if which == earliest {
				p.next = offsets[p.number]
			} else {
				p.end = offsets[p.number]
			}
		}
	}
	return parts, nil
}

func listOffsets(ctx context.Context, client *kgo.Client, topic string, count int, timestamp int64) (map[int32]int64, error) {
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = topic
	for i := range count {
		p := kmsg.NewListOffsetsRequestTopicPartition()
		p.Partition, p.Timestamp = int32(i), timestamp
		t.Partitions = append(t.Partitions, p)
	}
	req := kmsg.NewPtrListOffsetsRequest()
	req.IsolationLevel = 1 // read committed: the end is before an open transaction
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return nil, err
	}
	offsets := make(map[int32]int64)
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return nil, fmt.Errorf("partition %d: %w", p.Partition, err)
			}
			offsets[p.Partition] = p.Offset
		}
	}
	if len(offsets) != count {
		return nil, fmt.Errorf("asked about %d partitions, got an answer about %d", count, len(offsets))
	}
	return offsets, nil
}

// readTo reads each partition up to its end.
func readTo(ctx context.Context, brokers []string, todo []*partition) error {
	from := make(map[string]map[int32]kgo.Offset)
	open := make(map[string]map[int32]*partition)
	left := 0
	for _, p := range todo {
		if p.next >= p.end {
			continue
		}
		if from[p.topic] == nil {
			from[p.topic] = make(map[int32]kgo.Offset)
			open[p.topic] = make(map[int32]*partition)
		}
		from[p.topic][p.number] = kgo.NewOffset().At(p.next)
		open[p.topic][p.number] = p
		left++
	}
	if left == 0 {
		return nil
	}
	client, err := newClient(brokers,
		kgo.ConsumePartitions(from),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.FetchMaxWait(500*time.Millisecond),
		// The markers of transactions have offsets too, maybe the last one.
		kgo.KeepControlRecords())
	if err != nil {
		return err
	}
	defer client.Close()
	for left > 0 {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			return unreadError(todo, ctx.Err())
		}
		for _, f := range fetches.Errors() {
			return fmt.Errorf("read partition %d of topic %s: %w", f.Partition, f.Topic, f.Err)
		}
		fetches.EachPartition(func(f kgo.FetchTopicPartition) {
			p := open[f.Topic][f.Partition]
			if p == nil || p.next >= p.end {
				return
			}
			p.take(f.Records)
			if p.next >= p.end {
				left--
				client.PauseFetchPartitions(map[string][]int32{p.topic: {p.number}})
			}
		})
	}
	return nil
}

func (p *partition) take(records []*kgo.Record) {
	for _, r := range records {
		if r.Offset >= p.end {
			p.next = p.end
			return
		}
		if !r.Attrs.IsControl() {
			p.records = append(p.records, toRecord(r))
		}
		p.next = r.Offset + 1
	}
}

// unreadError describes how far reading got before the time-out.
func unreadError(todo []*partition, err error) error {
	for _, p := range todo {
		if p.next < p.end {
			return fmt.Errorf("read partition %d of topic %s: at offset %d of %d: %w", p.number, p.topic, p.next, p.end, err)
		}
	}
	return err
}

// Follow calls fn for every record of the topics, from each partition's beginning and then as they arrive, until ctx is
// done; it returns nil then. Topics and partitions may be created later; brokers may be away for a while. fn is called
// from one goroutine at a time, for each partition in the order of its offsets. After a topic was recreated or a broker
// lost data, delivered offsets come again: fn can tell by the offset.
func Follow(ctx context.Context, brokers []string, fn func(Record), topics ...string) error {
	client, err := newClient(brokers,
		kgo.ConsumeTopics(slices.Clone(topics)...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.FetchMaxWait(500*time.Millisecond))
	if err != nil {
		return err
	}
	defer client.Close()
	for {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if fetches.IsClientClosed() {
			return errors.New("follow topics: the client was closed")
		}
		// Every other error is temporary: a topic not created yet, a broker that is away. The client retries by itself.
		fetches.EachRecord(func(r *kgo.Record) { fn(toRecord(r)) })
	}
}
