package config

import (
	"strings"
	"testing"
)

// TestAWSSinks: names of FIFO queues and topics are valid, and what SQS and SNS do not have is refused.
func TestAWSSinks(t *testing.T) {
	for _, sink := range []string{SinkSQS, SinkSNS} {
		t.Run(sink, func(t *testing.T) { awsSink(t, sink) })
	}
}

func awsSink(t *testing.T, sink string) {
	settings := `
sink: ` + sink + `
receiver: {url: "https://` + sink + `.eu-central-1.amazonaws.com/123456789012"}
delivery: {mode: at_least_once}
route: {topic: "{aggregate_type}.fifo"}
`
	what := map[string]string{SinkSQS: "queue", SinkSNS: "topic of SNS"}[sink]
	read := func(more string) (*Config, error) {
		return load([]source{{"a.yaml", []byte(settings)}, {"b.yaml", []byte(more)}}, nil)
	}
	for _, more := range []string{
		"", "route: {format: envelope}", "receiver: {url: 'http://127.0.0.1:9324/000000000000/'}", "route: {topic: 'shop-{aggregate_type}_v1.fifo'}",
		"route: {topic: '', topics: {order: a.fifo}, unmatched: poison}", "route: {topic: '', topics: {order: a.fifo}, unmatched: rest.fifo}",
	} {
		if _, err := read(more); err != nil {
			t.Errorf("%s: %v", more, err)
		}
	}
	for more, want := range map[string]string{
		"delivery: {mode: deduplicated}":                            "delivery.mode: deduplicated (the default) reads in Kafka",
		"route: {position_header: false}":                           "route.position_header: is false, but sink: " + sink,
		"route: {topic: 'outbox.event.{aggregate_type}'}":           "is no name of a FIFO " + what,
		"route: {topic: 'outbox.{aggregate_type}.fifo'}":            "is no name of a FIFO " + what,
		"route: {topic: '{aggregate_type}'}":                        "is no name of a FIFO " + what,
		"route: {topic: '', topics: {order: a}, unmatched: poison}": "route.topics",
		"route: {topic: '', topics: {order: a.fifo}, unmatched: b}": "route.unmatched",
		"receiver: {batch: 2}":                                      "receiver.batch: is set, but sink is " + sink,
		"receiver: {url: 'nats://h'}":                               "begins with https:// or http://",
		"receiver: {url: 'https://h'}":                              "the number of an account",
		"receiver: {url: 'https://h/12'}":                           "the number of an account",
		"receiver: {url: 'https://u:Geh3im@h/000000000000'}":        "without user and password",
		"receiver: {url: 'https://h/000000000000?Geh3im'}":          "the number of an account",
		"receiver: {url: 'https://h/000000000000/orders.fifo'}":     "the number of an account",
	} {
		if _, err := read(more); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "Geh3im") {
			t.Errorf("%s: %v", more, err)
		}
	}
}
