package config

import (
	"strings"
	"testing"
)

// TestRedisSink: every format is valid, and what Redis does not have is refused.
func TestRedisSink(t *testing.T) {
	const settings = `
sink: redis
receiver: {url: "rediss://u:Geh3im@redis.example:6380/3", max_length: 100000, wait_replicas: 1}
delivery: {mode: at_least_once}
`
	read := func(more string) (*Config, error) {
		return load([]source{{"a.yaml", []byte(settings)}, {"b.yaml", []byte(more)}}, nil)
	}
	for _, more := range []string{
		"", "route: {format: envelope}", "preset: debezium\nroute: {position_header: true}", "receiver: {url: 'redis://redis.example'}", "receiver: {url: 'redis://redis.example/'}",
	} {
		if c, err := read(more); err != nil || strings.Contains(c.String(), "Geh3im") {
			t.Errorf("%s: %v", more, err)
		}
	}
	for more, want := range map[string]string{
		"delivery: {mode: deduplicated}":                 "delivery.mode: deduplicated (the default) reads in Kafka",
		"route: {position_header: false}":                "route.position_header: is false, but sink: redis",
		"preset: debezium":                               "route.position_header: is false, but sink: redis",
		"route: {partition: p}":                          "route.partition: a receiver has no partitions",
		"route: {timestamp: commit}":                     "route.timestamp: a request has no timestamp",
		"receiver: {batch: 2}":                           "receiver.batch: is set, but sink is redis",
		"receiver: {secret: Geh3im}":                     "receiver.secret: is set, but sink is redis",
		"receiver: {max_length: -1}":                     "receiver.max_length: -1 is negative",
		"receiver: {wait_replicas: -1}":                  "receiver.wait_replicas: -1 is negative",
		"receiver: {url: 'http://u:Geh3im@h'}":           "begins with redis:// or rediss://",
		"receiver: {url: 'redis://u:Geh3im@h/{topic}'}":  "more than a host, a port and the number of a database",
		"receiver: {url: 'redis://h/0?password=Geh3im'}": "more than a host, a port and the number of a database",
		"receiver: {url: 'redis://h/Geh3im'}":            "more than a host, a port and the number of a database",
		"sink: http\nroute: {format: cloudevents_structured, fields: {source: //s}}\nreceiver: {url: 'http://h'}": "receiver.max_length: is set, but sink is http",
	} {
		if _, err := read(more); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "Geh3im") {
			t.Errorf("%s: %v", more, err)
		}
	}
}
