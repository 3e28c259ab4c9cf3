package router

import (
	"fmt"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/decoder"
)

// Cause is why an event is poison. It is a label of metrics and the value of the header outboxcdc-error, so the set
// is closed.
type Cause string

// The causes. docs/poison.md and poison.causes have the same list.
const (
	TooLarge     Cause = "too_large"
	Rejected     Cause = "rejected"
	NoRoute      Cause = "no_route"
	IllegalTopic Cause = "illegal_topic"
	NullID       Cause = "null_id"
	NullKey      Cause = "null_key"
	NullPayload  Cause = "null_payload"
	BadHeaders   Cause = "bad_headers"
	BadPartition Cause = "bad_partition"
	BadTimestamp Cause = "bad_timestamp"
	MissingTopic Cause = "missing_topic"
	BadPayload   Cause = "bad_payload" // found by the router; Rejected is found by Kafka
	Update       Cause = "update"
)

// Causes are all causes.
var Causes = []Cause{
	TooLarge, Rejected, NoRoute, IllegalTopic, NullID, NullKey, NullPayload, BadHeaders, BadPartition, BadTimestamp, MissingTopic, BadPayload, Update,
}

// updateProblem returns why an update is poison, and which values are missing in its dead letter.
func updateProblem(ev *decoder.Event) string {
	why := "the row was updated, and only inserts are events"
	for i := range ev.Values {
		if ev.Values[i].Unchanged {
			why += ", column " + quoteColumn(ev.Relation, i) + " is large, unchanged and not in the stream"
		}
	}
	return why
}

// Poison is an event that no retry can deliver.
type Poison struct {
	Cause    Cause
	Message  string // what is wrong, without the payload
	ID       string // the event's id, "" if it has none
	Topic    string // "" if it is not known
	Position checkpoint.Position
	Remedy   string // how an operator lets the daemon continue after the event has stopped it; "": not decided yet
}

func (p *Poison) Error() string {
	return fmt.Sprintf("poison event id=%q position=%s cause=%s: %s", p.ID, p.Position, p.Cause, p.Message)
}
