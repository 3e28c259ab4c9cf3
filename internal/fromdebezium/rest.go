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
	"io.debezium.converters.ByteBufferConverter":             "", // its former name
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
	"slot.":             "", "lsn.flush.mode": "", "flush.lsn.source": "", "retriable.": "", "errors.": "", "errors.deadletterqueue.": "Connect has a dead-letter queue for sinks only; poison.policy: dead_letter has one (docs/poison.md)",
	"skipped.operations": "", "include.": "",
	"column.":                     "columns are neither masked nor excluded",
	"producer.override.security.": toSecurity, "producer.override.sasl.": toSecurity, "producer.override.ssl.": toSecurity,
	"binary.handling.mode":  "bytea is sent as bytes",
	"decimal.handling.mode": "values are sent as Postgres prints them", "time.precision.mode": "values are sent as Postgres prints them",
	"provide.transaction.metadata": "there is no topic with transactions", "notification.": "there are no notifications: metrics and the log show the state",
	"signal.": "there are no signals, and no snapshots on demand", "topic.creation.": "only the topic.creation.default options are converted",
	"message.prefix.":                      "logical messages, which Debezium sends to PREFIX.message, are not delivered unless messages.prefix makes them events",
	"header.converter":                     "headers are text",
	"predicates":                           "", // see predicate
	"predicates.":                          "",
	"producer.override.enable.idempotence": "", "producer.override.retries": "", "producer.override.max.in.flight.requests.per.connection": "",
	"kafka.auth.mode": toSecurity, "kafka.api.": toSecurity, "kafka.service.account.id": toSecurity, "kafka.endpoint": "", "output.data.format": "", "output.key.format": "",
}

// predicate notes a predicate of the event router, unless it chooses tables: outboxcdc reads the outbox alone.
func (c *conversion) predicate() {
	c.router("negate")
	name := c.router("predicate")
	kind := simpleName(c.props["predicates."+name+".type"])
	if name != "" && kind != "TopicNameMatches" && kind != "RecordIsTombstone" {
		c.note(c.smt+"predicate", "there is no counterpart: all rows of the outbox are events")
	}
}

// acks notes a producer that waits for less.
func (c *conversion) acks() {
	if acks := c.get("producer.override.acks"); acks != "" && acks != "all" && acks != "-1" {
		c.note("producer.override.acks", "always all")
	}
}

const toSecurity = "not converted: set tls and kafka.sasl (docs/security.md)"

// rest notes the options that no other step has read.
func (c *conversion) rest() {
	c.predicate()
	c.acks()
	for _, side := range []string{"key.converter", "value.converter"} {
		class := c.get(side)
		if delegate := c.get(side + ".delegate.converter.type"); sameBytes[class] == "" && class != "" && strings.HasPrefix(class, "io.debezium.converters.B") && delegate != "" {
			c.note(side, "bytea is sent as bytes, as by Debezium; other types, which %s writes differently, are sent as Postgres prints them", delegate)
			continue
		}
		format := map[string]string{"key.converter": "output.key.format", "value.converter": "output.data.format"}[side]
		if _, same := sameBytes[class]; class == "" && c.props[format] != "" {
			c.note(format, "the bytes will differ unless it is STRING or BYTES: outboxcdc sends key and payload unchanged, without a schema, a frame or quotes")
		} else if class == "" {
			c.note(side, "not in the configuration of the connector but in that of the Connect worker; with JsonConverter, or another converter that frames or quotes, the bytes will differ")
		} else if !same {
			c.note(side, "the bytes will differ: outboxcdc sends key and payload unchanged, without a schema, a frame or quotes; consumers have to be changed")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.props)) {
		if c.used[name] || strings.HasPrefix(name, "key.converter.") || strings.HasPrefix(name, "value.converter.") || strings.HasPrefix(name, "transforms.") && !strings.HasPrefix(name, c.smt) {
			continue
		}
		why, known, longest := "", false, 0
		for prefix, text := range needless {
			if len(prefix) > longest && (name == prefix || strings.HasSuffix(prefix, ".") && strings.HasPrefix(name, prefix)) {
				why, known, longest = text, true, len(prefix)
			}
		}
		switch {
		case !known && strings.ContainsAny(name, `"':{}`):
			c.note(name, "this is no name of an option: a quote, a colon or a brace is in the wrong place, and Debezium ignores it as well")
		case !known:
			c.note(name, "there is no counterpart")
		case why != "":
			c.note(name, "%s", why)
		}
	}
}
