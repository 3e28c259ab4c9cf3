package inbox

import "fmt"

// Event is what the headers of a record tell about it.
type Event struct {
	ID       string   // the header id; empty: none
	Position Position // zero: none, or the record was sent by a command
	Command  string   // the header of a record that a command has sent, for example outboxcdc-replayed; empty: the daemon has sent it
}

// The headers of records that a person has sent with a command. These records are outside the order of their partition.
const (
	Recovered = "outboxcdc-recovered" // by recover or backfill: an event that Kafka did not have
	Replayed  = "outboxcdc-replayed"  // by replay: an event that Kafka may have already
	Retried   = "outboxcdc-retried"   // by dlq retry: an event that was a dead letter
)

// ReadHeaders reads the headers of a record. The function get returns the value of a header, and whether the record
// has it.
//
// A record that a command has sent gets no position: recover sends a position before the slot's, which can be before
// the position of an earlier record of the partition.
func ReadHeaders(get func(key string) (value string, ok bool)) (Event, error) {
	var e Event
	e.ID, _ = get("id")
	for _, key := range []string{Recovered, Replayed, Retried} {
		if _, ok := get(key); ok {
			e.Command = key
			return e, nil
		}
	}
	text, ok := get("outboxcdc-position")
	if !ok {
		return e, nil
	}
	var err error
	if e.Position, err = ParsePosition(text); err != nil {
		return Event{}, fmt.Errorf("record with id %q: %w", e.ID, err)
	}
	return e, nil
}
