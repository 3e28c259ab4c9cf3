package config

import (
	"strings"
	"testing"
)

// TestNATSSink: every format is valid, several servers are, and what NATS does not have is refused.
func TestNATSSink(t *testing.T) {
	const settings = `
sink: nats
receiver: {url: "nats://u:Geh3im@a.example:4222", stream: EVENTS}
delivery: {mode: at_least_once}
`
	read := func(more string) (*Config, error) {
		return load([]source{{"a.yaml", []byte(settings)}, {"b.yaml", []byte(more)}}, nil)
	}
	for _, more := range []string{
		"", "route: {format: envelope}", "preset: debezium\nroute: {position_header: true}", "receiver: {secret_file: /nope}", "receiver: {url: 'tls://Geh3im@a.example'}",
		"receiver: {url: 'tls://u:Geh3im@a.example:4222,tls://u:Geh3im@b.example:4222, nats://u:Geh3im@c.example/'}", "receiver: {url: 'nats://a.example,nats://u:Geh3im@b.example'}",
	} {
		c, err := read(more)
		if err != nil {
			t.Errorf("%s: %v", more, err)
		} else if text := c.String(); strings.Contains(text, "Geh3im") {
			t.Error(text)
		}
	}
	for more, want := range map[string]string{
		"delivery: {mode: deduplicated}":                 "delivery.mode: deduplicated (the default) reads in Kafka",
		"route: {position_header: false}":                "route.position_header: is false, but sink: nats",
		"preset: debezium":                               "route.position_header: is false, but sink: nats",
		"receiver: {stream: ''}":                         `receiver.stream: "" is no name of a stream`,
		"receiver: {stream: 'EVENTS.a'}":                 `receiver.stream: "EVENTS.a" is no name of a stream`,
		"receiver: {secret: Geh3im}":                     "receiver.secret: is set, but sink is nats",
		"receiver: {batch: 2}":                           "receiver.batch: is set, but sink is nats",
		"receiver: {max_length: 2}":                      "receiver.max_length: is set, but sink is nats",
		"receiver: {url: 'http://u:Geh3im@h'}":           "begins with nats:// or tls://",
		"receiver: {url: 'nats://u:Geh3im@h,Geh3im'}":    "begins with nats:// or tls://",
		"receiver: {url: 'nats://u:Geh3im@h,'}":          "begins with nats:// or tls://",
		"receiver: {url: 'nats://u:Geh3im@h/{topic}'}":   "more than a host and a port",
		"receiver: {url: 'nats://h?password=Geh3im'}":    "more than a host and a port",
		"receiver: {url: 'nats://h,nats://u@h/#Geh3im'}": "a part after #",
		"sink: redis\nreceiver: {url: 'redis://h'}":      "receiver.stream: is set, but sink is redis",
	} {
		if _, err := read(more); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "Geh3im") {
			t.Errorf("%s: %v", more, err)
		}
	}
}
