package outbox

import (
	"fmt"
	"reflect"
)

// Kind is a type of events whose payloads are values of P. Create it with [Define].
type Kind[P any] struct {
	aggregateType, eventType string
	schemaVersion            int
}

// KindOption is an option of [Define].
type KindOption func(*kindOptions)

type kindOptions struct{ schemaVersion int }

// SchemaVersion sets Event.SchemaVersion of all events of a kind.
func SchemaVersion(v int) KindOption { return func(o *kindOptions) { o.schemaVersion = v } }

// Define defines a kind of events. It is meant for package variables, so it panics if a name is empty or cannot be
// written, if the aggregate type has a character that is not allowed in the name of a topic, or if the schema version
// is not positive.
func Define[P any](aggregateType, eventType string, options ...KindOption) Kind[P] {
	refuse := func(what, name, why string) {
		if why != "" {
			panic(fmt.Sprintf("outbox.Define(%q, %q): the %s %q %s", aggregateType, eventType, what, name, why))
		}
	}
	refuse("aggregate type", aggregateType, badName(aggregateType))
	refuse("aggregate type", aggregateType, badTopic(defaultPrefix, aggregateType))
	refuse("event type", eventType, badName(eventType))
	if hasControl(eventType) {
		refuse("event type", eventType, "has a control character")
	}
	var o kindOptions
	for _, option := range options {
		if option(&o); o.schemaVersion <= 0 {
			panic(fmt.Sprintf("outbox.Define(%q, %q): the schema version %d is not positive", aggregateType, eventType, o.schemaVersion))
		}
	}
	return Kind[P]{aggregateType: aggregateType, eventType: eventType, schemaVersion: o.schemaVersion}
}

// Event returns an event with the payload, which is encoded now: later changes of p do not change the event. The
// caller may set further fields. An error is an [*EventError].
func (k Kind[P]) Event(aggregateID string, p P) (Event, error) {
	e := Event{AggregateType: k.aggregateType, AggregateID: aggregateID, Type: k.eventType, SchemaVersion: k.schemaVersion}
	b, problem := encodePayload(p)
	if problem != nil {
		return Event{}, problem
	}
	e.Payload = b
	return e, nil
}

// AggregateType returns the aggregate type of the events.
func (k Kind[P]) AggregateType() string { return k.aggregateType }

// EventType returns the type of the events.
func (k Kind[P]) EventType() string { return k.eventType }

// SchemaVersion returns the schema version of the events, or 0.
func (k Kind[P]) SchemaVersion() int { return k.schemaVersion }

// PayloadType returns the type P.
func (k Kind[P]) PayloadType() reflect.Type { return reflect.TypeFor[P]() }
