package fromdebezium

import (
	"fmt"
	"strings"
)

// isServer reports whether these are options of Debezium Server (application.properties).
func isServer(props map[string]string) bool {
	return props["debezium.source.connector.class"] != "" || props["debezium.sink.type"] != ""
}

// formats are the converters of Debezium Server, by their names in debezium.format options.
var formats = map[string]string{
	"json": "org.apache.kafka.connect.json.JsonConverter", "simplestring": "org.apache.kafka.connect.storage.StringConverter",
	"binary": "io.debezium.converters.BinaryDataConverter",
}

// fromServer converts the options of Debezium Server to those of a connector. In its configuration, $$ means $.
func fromServer(props map[string]string) (map[string]string, error) {
	if sink := props["debezium.sink.type"]; sink != "kafka" {
		return nil, fmt.Errorf("debezium.sink.type is %q: only the sink kafka can be converted; outboxcdc has others (docs/sinks.md)", sink)
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

// server notes how records of Debezium Server differ from those of a connector.
func (c *conversion) server() {
	c.note("debezium.sink.type", "outboxcdc sends headers as plain text; Debezium Server writes each one as a JSON document, unless debezium.format.header is clientprovided")
	if column := c.props[c.smt+"table.field.event.timestamp"]; column != "" {
		c.note(c.smt+"table.field.event.timestamp", "the timestamp of records is this column; Debezium Server drops the column and uses the time of sending")
	}
	if strings.Contains(c.props[c.smt+"table.fields.additional.placement"], "partition") {
		c.note(c.smt+"table.fields.additional.placement", "records are sent to the partition of the column; Debezium Server drops the column")
	}
}
