package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// counts are the errors found in Kafka after a run; a run with any of them is void.
type counts struct {
	Lost       int `json:"lost"`
	Repeated   int `json:"repeated"`
	Disordered int `json:"out_of_order"`
}

// count reads all records of a run with a client that shares no code with the sink.
func count(ctx context.Context, brokers []string, l *load, topics []string) (c counts, err error) {
	stored, err := openStored(brokers, topics, l.Partitions)
	if err != nil {
		return c, err
	}
	defer stored.close()
	left, err := stored.records(ctx)
	if err != nil {
		return c, err
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topics...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return c, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	seen := make([]uint8, l.Rows)
	last := map[string]int{} // row, by key
	for left > 0 {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			return c, fmt.Errorf("%d records are left to read: %w", left, ctx.Err())
		}
		for _, r := range fetches.Records() {
			left--
			n, err := rowOf(r)
			if err != nil || n >= l.Rows {
				return c, fmt.Errorf("topic %s, partition %d, offset %d: no row of this load: %w", r.Topic, r.Partition, r.Offset, err)
			}
			if seen[n]++; seen[n] > 1 {
				c.Repeated++
				continue
			}
			key := r.Topic + "/" + string(r.Key)
			if before, ok := last[key]; ok && before > n {
				c.Disordered++
			}
			last[key] = n
		}
	}
	for _, n := range seen {
		if n == 0 {
			c.Lost++
		}
	}
	return c, nil
}

// rowOf returns the number of the row, which is the record's id.
func rowOf(r *kgo.Record) (int, error) {
	for _, h := range r.Headers {
		if h.Key == "id" && len(h.Value) == 36 {
			n, err := strconv.ParseUint(string(h.Value[24:]), 16, 48)
			return int(n), err
		}
	}
	return 0, fmt.Errorf("the record has no header id")
}

// stored counts the records in some topics, with one request.
type stored struct {
	client *kgo.Client
	req    *kmsg.ListOffsetsRequest
}

func openStored(brokers, topics []string, partitions int) (*stored, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		return nil, err
	}
	req := kmsg.NewPtrListOffsetsRequest()
	for _, name := range topics {
		t := kmsg.NewListOffsetsRequestTopic()
		t.Topic = name
		for p := range partitions {
			part := kmsg.NewListOffsetsRequestTopicPartition()
			part.Partition, part.Timestamp = int32(p), -1 // the end offset
			t.Partitions = append(t.Partitions, part)
		}
		req.Topics = append(req.Topics, t)
	}
	return &stored{client, req}, nil
}

func (s *stored) records(ctx context.Context) (total int64, err error) {
	resp, err := s.req.RequestWith(ctx, s.client)
	if err != nil {
		return 0, err
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return 0, fmt.Errorf("end of topic %s, partition %d: %w", t.Topic, p.Partition, err)
			}
			total += p.Offset
		}
	}
	return total, nil
}

func (s *stored) close() { s.client.Close() }
