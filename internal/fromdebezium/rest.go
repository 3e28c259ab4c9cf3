package fromdebezium

import (
	"maps"
	"slices"
	"strings"
)

// sameBytes are converters that write the same bytes as outboxcdc.
var sameBytes = map[string]string{
	"org.apache.kafka.connect.storage.StringConverter":       "",
	"org.apache.kafka.connect.converters.ByteArrayConverter": "",
	"io.debezium.converters.BinaryDataConverter":             "",
}

// needless are options without a meaning in outboxcdc, by name or prefix, with the text of the note, if any.
var needless = map[string]string{
	"name": "", "tasks.max": "", "topic.prefix": "", "database.server.name": "", "connector.class": "",
	"snapshot.":      "there are no snapshots: rows that were committed before the slot was created are not delivered",
	"heartbeat.":     "no heartbeat is needed: keepalives of the server advance the slot of an idle outbox",
	"offset.":        "the slot is the only position",
	"max.batch.size": "", "max.queue.": "", "poll.interval.ms": "", "tombstones.on.delete": "", "schema.name.adjustment.mode": "", "schema.refresh.mode": "",
	"statistics.": "", "extended.headers.enabled": "",
	"slot.drop.on.stop": "the slot is never dropped by the daemon",
	"slot.":             "", "lsn.flush.mode": "", "flush.lsn.source": "", "retriable.": "", "errors.": "an event that cannot be delivered stops the daemon (poison.policy)",
	"skipped.operations": "", "include.": "",
	"column.":                     "columns are neither masked nor excluded",
	"producer.override.security.": toSecurity, "producer.override.sasl.": toSecurity, "producer.override.ssl.": toSecurity,
	"binary.handling.mode":  "bytea is sent as bytes",
	"decimal.handling.mode": "values are sent as Postgres prints them", "time.precision.mode": "values are sent as Postgres prints them",
	"provide.transaction.metadata": "there is no topic with transactions", "notification.": "there are no notifications: metrics and the log show the state",
	"signal.": "there are no signals, and no snapshots on demand", "topic.creation.": "only the topic.creation.default options are converted",
	"message.prefix.":  "logical messages, which Debezium sends to PREFIX.message, are not delivered unless messages.prefix makes them events",
	"header.converter": "headers are text",
	"predicates":       "",
}

const toSecurity = "not converted: set kafka.tls and kafka.sasl (docs/security.md)"

// rest notes the options that no other step has read.
func (c *conversion) rest() {
	for _, side := range []string{"key.converter", "value.converter"} {
		class := c.get(side)
		if delegate := c.get(side + ".delegate.converter.type"); simpleName(class) == "BinaryDataConverter" && delegate != "" {
			c.note(side, "bytea is sent as bytes, as by Debezium; other types, which %s writes differently, are sent as Postgres prints them", delegate)
			continue
		}
		if _, same := sameBytes[class]; class == "" {
			c.note(side, "not in the configuration of the connector but in that of the Connect worker; with JsonConverter, or another converter that frames or quotes, the bytes will differ")
		} else if !same {
			c.note(side, "the bytes will differ: outboxcdc sends key and payload unchanged, without a schema, a frame or quotes; consumers have to be changed")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.props)) {
		if c.used[name] || strings.HasPrefix(name, "key.converter.") || strings.HasPrefix(name, "value.converter.") || strings.HasPrefix(name, "transforms.") && !strings.HasPrefix(name, c.smt) {
			continue
		}
		why, known := "", false
		for prefix, text := range needless {
			if name == prefix || strings.HasSuffix(prefix, ".") && strings.HasPrefix(name, prefix) {
				why, known = text, true
				if name == prefix {
					break
				}
			}
		}
		switch {
		case !known:
			c.note(name, "there is no counterpart")
		case why != "":
			c.note(name, "%s", why)
		}
	}
}
