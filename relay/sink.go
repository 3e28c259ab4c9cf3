package relay

import (
	"context"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/router"
)

// Sink is Kafka, for one session. Only deduplicated delivery uses the position store and the ends of partitions
// (docs: docs/delivery.md, ADR 18 and 21).
type Sink interface {
	Producer
	PositionStore
	PartitionEnds
}

// Producer delivers the records of one session. One goroutine calls Ready, Check and Send. No method but Close blocks
// for long.
type Producer interface {
	// Ready reports whether records may be sent to the topic. If not, the producer looks the topic up, repeatedly while
	// it is missing, and calls Callbacks.Wake when the answer may have changed.
	Ready(topic string) (bool, error)
	// Missing reports that Kafka answers, and the topic is missing or access to it is denied.
	Missing(topic string) bool
	// Why says why records may not be sent to the topic yet, such as what Kafka answered when it was to be created; "":
	// that is not known.
	Why(topic string) string
	// Check recognises, before it is sent, a record that Kafka would refuse. alone means that the record must be sent with
	// nothing else in flight.
	Check(rec *router.Record) (alone bool, poison *router.Poison)
	// Recount has the topic looked up again, which is not ready until then, because it may have a partition that Check
	// did not know.
	Recount(topic string)
	// Send sends a record with its event number. It copies the record. In each partition, acknowledgements arrive in the
	// order of Send and without gaps, or the session has failed.
	Send(rec *router.Record, n uint64) error
	// Partition returns the partition to which Send sends the record. The topic is ready.
	Partition(rec *router.Record) int32
	// Flush means that no further record follows for now, so batches need not wait to be filled. Any goroutine may call
	// it.
	Flush()
	// Healthy returns nil if Kafka has answered lately.
	Healthy() error
	// Waiting returns the topics that are being looked up.
	Waiting() []string
	// Close stops sending, waits until no request is open or ctx ends, and closes the connections. No callback runs
	// after it.
	Close(ctx context.Context) error
}

// PositionStore keeps the slot's position record.
type PositionStore interface {
	// ProducerID returns the producer id in every batch of this process.
	ProducerID() int64
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

// Callbacks are called by a sink, from goroutines of its own, one at a time.
type Callbacks struct {
	Acked  func(events []uint64) // Kafka has acknowledged these events; the slice is valid during the call
	Failed func(err error)       // the session has failed with its first error
	Wake   func()                // the answer of Ready or EndsRead may have changed
}

// Kafka opens sinks.
type Kafka interface {
	Open(ctx context.Context, cb Callbacks) (Sink, error)
	// Probe returns nil if Kafka can do now what the last session waited for.
	Probe(ctx context.Context) error
}
