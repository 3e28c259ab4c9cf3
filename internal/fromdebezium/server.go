package fromdebezium

import (
	"fmt"
	"strings"
)

// isServer: these are the options of Debezium Server (application.properties).
func isServer(props map[string]string) bool {
	return props["debezium.source.connector.class"] != "" || props["debezium.sink.type"] != ""
}

// formats are the converters that Debezium Server has for its debezium.format options, by their short names.
var formats = map[string]string{
	"json": "org.apache.kafka.connect.json.JsonConverter", "simplestring": "org.apache.kafka.connect.storage.StringConverter",
	"binary": "io.debezium.converters.BinaryDataConverter",
}

// fromServer turns the options of Debezium Server into those of a connector. Its configuration layer takes $$ for $.
func fromServer(props map[string]string) (map[string]string, error) {
	if sink := props["debezium.sink.type"]; sink != "kafka" {
		return nil, fmt.Errorf("debezium.sink.type is %q: outboxcdc delivers to Kafka only", sink)
	}
	out := map[string]string{}
	for name, value := range props {
		value = strings.ReplaceAll(value, "$$", "$")
		switch {
		case strings.HasPrefix(name, "debezium.source."):
			out[strings.TrimPrefix(name, "debezium.source.")] = value
		case strings.HasPrefix(name, "debezium.transforms"), strings.HasPrefix(name, "debezium.predicates"):
			out[strings.TrimPrefix(name, "debezium.")] = value
		case name == "debezium.sink.kafka.producer.bootstrap.servers":
			out["bootstrap.servers"] = value
		case strings.HasPrefix(name, "debezium.sink.kafka.producer."):
			if !strings.HasSuffix(name, ".serializer") {
				out["producer.override."+strings.TrimPrefix(name, "debezium.sink.kafka.producer.")] = value
			}
		}
	}
	for _, side := range []string{"key", "value"} {
		format := props["debezium.format."+side]
		if format == "" {
			format = "json"
		}
		if class, known := formats[format]; known {
			format = class
		}
		out[side+".converter"] = format
	}
	return out, nil
}

// server notes what Debezium Server's records have beside what a connector's have.
func (c *conversion) server() {
	c.note("debezium.sink.type", "headers are plain text here; Debezium Server writes each as a JSON document, unless debezium.format.header is clientprovided")
	if column := c.props[c.smt+"table.field.event.timestamp"]; column != "" {
		c.note(c.smt+"table.field.event.timestamp", "records have the time of this column here; Debezium Server drops it, and records have the time of sending")
	}
	if strings.Contains(c.props[c.smt+"table.fields.additional.placement"], "partition") {
		c.note(c.smt+"table.fields.additional.placement", "records go to the partition of the column here; Debezium Server drops it")
	}
}
