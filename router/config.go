package router

import (
	"errors"
	"fmt"
)

// Config says how a row becomes a record.
type Config struct {
	// Topic is a template: {name} stands for a role (id, aggregate_type, aggregate_id, event_type) that Columns gives a
	// column, else for the column of that name.
	Topic       string
	Columns     Columns
	NullKey     NullKeyPolicy
	NullPayload NullPayloadPolicy
	// PositionHeader adds the header outboxcdc-position. Without it a consumer can still de-duplicate by id, but nobody can
	// tell a replay from a second event.
	PositionHeader bool
}

// Columns names the column of each role; "" means that the table has none. ID, AggregateID and Payload are required. A
// column that is named must exist, also an optional one: a header that is silently left out is a fault found too late.
type Columns struct {
	ID, AggregateType, AggregateID, EventType, Payload, Headers string
}

// NullKeyPolicy says what becomes of a row whose aggregate_id is NULL.
type NullKeyPolicy string

// The policies for a NULL key.
const (
	NullKeyPoison NullKeyPolicy = "poison"
	NullKeyAllow  NullKeyPolicy = "allow" // no key; partitioned by the id, so that a replay lands on the same partition
)

// NullPayloadPolicy says what becomes of a row whose payload is NULL.
type NullPayloadPolicy string

// The policies for a NULL payload.
const (
	NullPayloadTombstone NullPayloadPolicy = "tombstone" // Kafka's null
	NullPayloadEmpty     NullPayloadPolicy = "empty"     // a value of no bytes
	NullPayloadPoison    NullPayloadPolicy = "poison"
)

// DefaultConfig is the bundled layout of the outbox table.
func DefaultConfig() Config {
	return Config{
		Topic: "outbox.event.{aggregate_type}",
		Columns: Columns{
			ID: "id", AggregateType: "aggregate_type", AggregateID: "aggregate_id", EventType: "event_type",
			Payload: "payload", Headers: "headers",
		},
		NullKey:        NullKeyPoison,
		NullPayload:    NullPayloadTombstone,
		PositionHeader: true,
	}
}

// Validate says everything that is wrong with c.
func (c Config) Validate() error {
	var errs []error
	if _, err := parseTemplate(c.Topic); err != nil {
		errs = append(errs, fmt.Errorf("topic: %w", err))
	}
	for _, required := range []struct{ role, column string }{
		{"id", c.Columns.ID}, {"aggregate_id", c.Columns.AggregateID}, {"payload", c.Columns.Payload},
	} {
		if required.column == "" {
			errs = append(errs, fmt.Errorf("columns.%s: a column is required", required.role))
		}
	}
	switch c.NullKey {
	case NullKeyPoison, NullKeyAllow:
	default:
		errs = append(errs, fmt.Errorf("null_key: %q is none of poison, allow", c.NullKey))
	}
	switch c.NullPayload {
	case NullPayloadTombstone, NullPayloadEmpty, NullPayloadPoison:
	default:
		errs = append(errs, fmt.Errorf("null_payload: %q is none of tombstone, empty, poison", c.NullPayload))
	}
	return errors.Join(errs...)
}

// templateColumn is the column that {name} stands for. A role without a column is no role: the name then means a column.
func (c *Columns) templateColumn(name string) string {
	var column string
	switch name {
	case "id":
		column = c.ID
	case "aggregate_type":
		column = c.AggregateType
	case "aggregate_id":
		column = c.AggregateID
	case "event_type":
		column = c.EventType
	}
	if column == "" {
		return name
	}
	return column
}
