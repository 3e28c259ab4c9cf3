package config

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// AtLeastOnce is the delivery.mode in which a crash repeats what was in flight.
const AtLeastOnce = "at_least_once"

// Deduplicated reports whether a crash is to repeat nothing that Kafka has.
func (c *Config) Deduplicated() bool { return c.Delivery.Mode == "deduplicated" }

// maxLookBack bounds the memory and the time that one partition may cost at the start.
const maxLookBack = 1_000_000

// shortFenceWait leaves a catalog check, of which there are four in it, time enough to be answered.
const shortFenceWait = 500 * time.Millisecond

func (v *validation) delivery(d *Delivery) {
	v.report("delivery.position_topic", checkTopic(d.PositionTopic))
	if d.PositionTopic == v.c.Poison.Topic {
		v.report("poison.topic", quote(d.PositionTopic)+" takes no dead letters, because it holds position records; name another topic, or set delivery.position_topic to another")
	}
	if !v.c.Deduplicated() {
		return
	}
	for _, s := range v.c.Sources() {
		if !s.Route.PositionHeader {
			v.report("delivery.mode", "deduplicated (the default) needs route.position_header: true: the next start knows by this header what Kafka has; "+
				"write delivery.mode: at_least_once to do without")
			return
		}
	}
}

// EventSources is a fingerprint of the settings that decide which changes of a transaction are events, and with that which
// ordinal each event has.
func (c *Config) EventSources() string {
	tables := []string{}
	for _, s := range c.Sources() {
		schema, name := s.Name()
		tables = append(tables, schema+"."+name)
	}
	slices.Sort(tables)
	text, err := json.Marshal([]any{c.Postgres.Publication, tables, c.Messages.Prefix})
	if err != nil {
		panic(fmt.Sprintf("settings that are no JSON: %v", err))
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}
