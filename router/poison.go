package router

import (
	"fmt"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/decoder"
)

// Cause says why an event is poison. The set is closed; it is also the label of metrics and the value of the header
// outboxcdc-error.
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
	BadPayload   Cause = "bad_payload" // not Rejected, which the relay takes to be Kafka's own verdict
	Update       Cause = "update"
)

// Causes are all of them.
var Causes = []Cause{
	TooLarge, Rejected, NoRoute, IllegalTopic, NullID, NullKey, NullPayload, BadHeaders, BadPartition, BadTimestamp, MissingTopic, BadPayload, Update,
}

// updated says what is wrong with an update, and which values a dead letter of it does not have.
func updated(ev *decoder.Event) string {
	why := "the row was updated, and an event is only what is inserted"
	for i := range ev.Values {
		if ev.Values[i].Unchanged {
			why += ", column " + quoted(ev.Relation, i) + " is large, unchanged and not in the stream"
		}
	}
	return why
}

// Poison is an event that no retry can deliver. As an error it names the event, the cause and the position, which is
// what an operator needs to decide.
type Poison struct {
	Cause    Cause
	Message  string // what exactly is wrong, without the payload
	ID       string // the event's id, "" if it has none
	Topic    string // as far as it was known
	Position checkpoint.Position
}

func (p *Poison) Error() string {
	return fmt.Sprintf("poison event id=%q position=%s cause=%s: %s", p.ID, p.Position, p.Cause, p.Message)
}
