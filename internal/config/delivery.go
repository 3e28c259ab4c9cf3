package config

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// AtLeastOnce is the delivery.mode in which a crash repeats events in flight.
const AtLeastOnce = "at_least_once"

// Deduplicated reports whether delivery.mode is deduplicated.
func (c *Config) Deduplicated() bool { return c.Delivery.Mode == "deduplicated" }

// minFenceWait leaves enough time for each of the four catalog checks during that time.
const minFenceWait = 500 * time.Millisecond

func (v *validation) delivery(d *Delivery) {
	v.report("delivery.position_topic", checkTopic(d.PositionTopic))
	if d.PositionTopic == v.c.Poison.Topic {
		v.report("poison.topic", quote(d.PositionTopic)+" cannot be the dead-letter topic, because it contains position records; set poison.topic or delivery.position_topic to another topic")
	}
	if !v.c.Deduplicated() {
		return
	}
	for _, s := range v.c.Sources() {
		if !s.Route.PositionHeader {
			v.report("delivery.mode", "deduplicated (the default) needs route.position_header: true, because the next start finds by this header what Kafka has; "+
				"otherwise write delivery.mode: at_least_once")
			return
		}
	}
}

// EventSources is a fingerprint of the settings that decide which changes of a transaction are events, and so the
// ordinals of events.
func (c *Config) EventSources() string {
	tables := []string{}
	for _, s := range c.Sources() {
		schema, name := s.Name()
		tables = append(tables, schema+"."+name)
	}
	slices.Sort(tables)
	text, err := json.Marshal([]any{c.Postgres.Publication, tables, c.Messages.Prefix})
	if err != nil {
		panic(fmt.Sprintf("settings cannot be written as JSON: %v", err))
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}
