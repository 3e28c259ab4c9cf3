// Package sink is the contract between the relay and what it delivers to: Kafka (package kafka), or a receiver (the
// packages beside it, over package lane). Package sink/sinktest is the contract as a test that every sink passes.
//
// A sink delivers records to targets, and in lanes. A target is what a record's topic names. A lane is a part of a
// target, or of all targets, in which order holds: the receiver stores its records in the order of Send. Records with
// the same Record.PartitionBy are in the same lane while the process lives. Kafka's lane is a partition of a topic.
//
// An acknowledgement means that the receiver itself has answered that it has stored the record durably. A cut
// connection, an answer that never comes and an error are no acknowledgement: the record is sent again, before later
// ones of its lane, so a receiver may have a record twice, and never later ones without an earlier one.
//
// The session fails with its first error that is not a matter of time. What the error means is said by its methods, so
// that the relay need not know the type:
//
//   - Reason() string is a short name from a closed set, for metrics. All errors of a sink have it.
//   - PermissionDenied() bool: the receiver refuses the daemon itself. A permission may be granted later.
//   - Refused() ([]uint64, bool): the receiver refuses the content of one of these records, and no retry of them can
//     succeed. The relay sends them one by one to find out which one it is, and applies the policy for poison events.
//
// A target that is missing is a matter of time. A sink that can look a target up before it sends says so by Ready and
// Missing. A sink that cannot is always ready; it holds the records in their lanes until the target exists, and
// Waiting names it.
package sink

import (
	"context"

	"github.com/outboxcdc/outboxcdc/router"
)

// Producer delivers the records of one session. One goroutine calls Ready, Check and Send. No method but Close blocks
// for long.
type Producer interface {
	// Ready reports whether records may be sent to the topic. If not, the producer looks the topic up, repeatedly while
	// it is missing, and calls Callbacks.Wake when the answer may have changed.
	Ready(topic string) (bool, error)
	// Missing reports that the receiver answers, and the topic is missing or access to it is denied.
	Missing(topic string) bool
	// Why says why records may not be sent to the topic yet, such as what the receiver answered when it was to be
	// created; "": that is not known.
	Why(topic string) string
	// Check recognises, before it is sent, a record that the receiver would refuse. alone means that the record must be
	// sent with nothing else in flight.
	Check(rec *router.Record) (alone bool, poison *router.Poison)
	// LookAgain has the topic looked up again, which is not ready until then: it may have got what Check did not know,
	// such as a partition of Kafka.
	LookAgain(topic string)
	// Send sends a record with its event number. It copies the record. In each lane, acknowledgements arrive in the
	// order of Send and without gaps, or the session has failed.
	Send(rec *router.Record, n uint64) error
	// Lane returns the lane in which Send sends the record, a number that is unique within its topic. The topic is
	// ready.
	Lane(rec *router.Record) int32
	// Flush means that no further record follows for now, so batches need not wait to be filled. Any goroutine may call
	// it.
	Flush()
	// Healthy returns nil if the receiver has answered lately.
	Healthy() error
	// Waiting returns the topics that are being looked up, or that records wait for because they are missing.
	Waiting() []string
	// Close stops sending, waits until no request is open or ctx ends, and closes the connections. No callback runs
	// after it. The error says how many records are not acknowledged.
	Close(ctx context.Context) error
}

// Callbacks are called by a producer, from goroutines of its own, one at a time. They return at once.
type Callbacks struct {
	Acked  func(events []uint64) // the receiver has acknowledged these events; the slice is valid during the call
	Failed func(err error)       // the session has failed with its first error
	Wake   func()                // the answer of Ready may have changed
}
