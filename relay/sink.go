package relay

import (
	"context"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/router"
)

// Sink is Kafka, for one session. Deduplicated delivery alone needs the position store and the ends of partitions (docs: docs/delivery.md,
// ADR 18 and 21).
type Sink interface {
	Producer
	PositionStore
	PartitionEnds
}

// Producer delivers the records of one session. One goroutine calls Ready, Check and Send. Nothing in it blocks for long.
type Producer interface {
	// Ready reports whether records may be sent to the topic. False: it is being looked up, or missing and looked for
	// again and again; Callbacks.Wake says when to ask again.
	Ready(topic string) (bool, error)
	// Missing reports that Kafka answers and has no such topic, or none for us.
	Missing(topic string) bool
	// Check recognises a record that Kafka would refuse before it is sent. alone asks for it to be sent with nothing
	// else in flight.
	Check(rec *router.Record) (alone bool, poison *router.Poison)
	// Send hands a record over under its event number. It copies what it keeps. Per partition, acknowledgements come
	// in the order of Send without holes, or the session has failed.
	Send(rec *router.Record, n uint64) error
	// Flush says that no more is coming for now: what was sent need not wait for company. Any goroutine may call it.
	Flush()
	// Healthy returns nil when Kafka has answered lately.
	Healthy() error
	// Waiting lists topics that are looked for.
	Waiting() []string
	// Close ends the sending, waits until no request is open or ctx ends, then cuts; no callback runs after it.
	Close(ctx context.Context) error
}

// PositionStore keeps the slot's position record.
type PositionStore interface {
	// ProducerID is what Kafka marks every batch of this process with.
	ProducerID() int64
	// LoadPosition reads the slot's newest position record; nil: there is none. The error is a [checkpoint.Unusable] when there can be
	// none. Other errors are temporary.
	LoadPosition(ctx context.Context) (*checkpoint.PositionRecord, error)
	// SavePosition stores one, later and in the order of the calls; done is called once, from another goroutine.
	SavePosition(s checkpoint.PositionRecord, done func(error))
	// Topics are those that records were sent to.
	Topics() []string
	// Renew notes that the slot was this session's at the time seen. Requests leave while that was recent, and wait otherwise.
	Renew(seen time.Time)
	// Unanswered, after Close: Kafka may still store something that was sent, because its answer never came.
	Unanswered() bool
}

// PartitionEnds finds records of earlier sessions at the ends of partitions.
type PartitionEnds interface {
	// ReadEnds begins to read the ends of partitions, not earlier than notBefore. It is called once, and allows EndsRead.
	ReadEnds(q checkpoint.Search, notBefore time.Time)
	// EndsRead reports whether the ends of all partitions of the topics of ReadEnds have been read, and those of topic unless
	// it is "". False: they are being read, and Callbacks.Wake says when to ask again.
	EndsRead(topic string) bool
}

// Callbacks is what a sink reports, from goroutines of its own.
type Callbacks struct {
	Acked  func(n uint64)  // event n is in Kafka
	Failed func(err error) // the first error: the session is over
	Wake   func()          // Ready may answer differently now
}

// Kafka opens sinks.
type Kafka interface {
	Open(ctx context.Context, cb Callbacks) (Sink, error)
	// Probe returns nil when just that would work now which the last session waited for.
	Probe(ctx context.Context) error
}
