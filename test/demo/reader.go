package main

import (
	"context"
	"fmt"
	"time"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// follow reads the topics as any consumer would and passes the records to the tally, until ctx is done. It is an
// independent witness: another Kafka client than the relay's.
func follow(ctx context.Context, brokers []string, t *tally) error {
	return kafkatest.Follow(ctx, brokers, func(r kafkatest.Record) { t.addRead(r.Check(), time.Now()) }, topics...)
}

// countAll returns how many records the topics hold, after the reader had time to read as many. It is called when all
// writing has ended: it would miss a phantom or a repeat at the very end otherwise.
func (d *demo) countAll(ctx context.Context) (int, error) {
	all, err := kafkatest.ReadAll(ctx, d.kafka.Brokers(), topics...)
	if err != nil {
		return 0, fmt.Errorf("count what Kafka holds: %w", err)
	}
	for range 100 {
		if d.tally.recordsRead() >= len(all) {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	return len(all), nil // the verdict reports a reader that has not caught up
}
