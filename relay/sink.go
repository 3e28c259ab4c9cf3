package relay

import (
	"context"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	contract "github.com/outboxcdc/outboxcdc/sink"
)

// Sink is where events are delivered, for one session. Only deduplicated delivery uses the position store and the ends
// of partitions, and only Kafka has them, so these two interfaces have Kafka's words (docs/delivery.md, ADR 18 and 21).
type Sink interface {
	Producer
	PositionStore
	PartitionEnds
}

// Producer and Callbacks are the contract of every sink.
type (
	Producer  = contract.Producer
	Callbacks = contract.Callbacks
)

// AtLeastOnce makes a Sink of a producer that delivers at least once. Without [Deduplication] the relay uses nothing
// else of a sink.
func AtLeastOnce(p Producer) Sink {
	return struct {
		Producer
		PositionStore
		PartitionEnds
	}{Producer: p}
}

// PositionStore keeps the slot's position record.
type PositionStore interface {
	// ProducerID returns the producer id in every batch of the session.
	ProducerID() int64
	// RenewProducer gives the next session another producer id.
	RenewProducer()
	// LoadPosition reads the slot's newest position record; nil: there is none. The error is a [checkpoint.Unusable] if
	// position records cannot be used. Other errors are temporary.
	LoadPosition(ctx context.Context) (*checkpoint.PositionRecord, error)
	// SavePosition stores a record asynchronously, in the order of the calls. done is called once, from another goroutine.
	SavePosition(s checkpoint.PositionRecord, done func(error))
	// Topics returns the topics that events with this number or a higher one were sent to.
	Topics(from uint64) []string
	// Renew renews the lease: this session had the slot at the time seen. Requests wait while there is no lease.
	Renew(seen time.Time)
	// Unanswered reports, after Close, whether Kafka may still store records because a request got no answer.
	Unanswered() bool
}

// PartitionEnds finds records of earlier sessions at the ends of partitions.
type PartitionEnds interface {
	// ReadEnds begins to read the ends of partitions, not earlier than notBefore. It is called once, before EndsRead.
	ReadEnds(q checkpoint.Search, notBefore time.Time)
	// EndsRead reports whether the ends of all partitions of the topics of ReadEnds have been read, and of topic unless
	// it is "". If not, they are being read, and Callbacks.Wake is called when the answer may have changed.
	EndsRead(topic string) bool
	// EndsProgress returns how much this process has read of the ends of partitions and of the position topic. What was
	// counted is not read again by a later session.
	EndsProgress() int64
}

// Sinks opens a sink for each session.
type Sinks interface {
	Open(ctx context.Context, cb Callbacks) (Sink, error)
	// Probe returns nil if the receiver, such as Kafka, can do now what the last session waited for.
	Probe(ctx context.Context) error
}
