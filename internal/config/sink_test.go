package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// httpSettings are valid settings of a daemon that delivers to a receiver.
const httpSettings = `
sink: http
receiver: {url: "https://u:Geh3im@shop.example/Geh3im/{topic}?key=Geh3im"}
delivery: {mode: at_least_once}
route: {format: cloudevents_structured, fields: {source: //shop.example}}
`

func TestHTTPSink(t *testing.T) {
	read := func(more string) (*Config, error) {
		return load([]source{{"a.yaml", []byte(httpSettings)}, {"b.yaml", []byte(more)}}, nil)
	}
	c, err := read("")
	if err != nil {
		t.Fatal(err)
	}
	if url, err := c.ReceiverURL(); err != nil || !strings.Contains(url, "Geh3im") {
		t.Errorf("%s, %v", url, err)
	}
	if c.Poison.Policy != "stop" || c.Origin("poison.policy") != "sink: "+c.Sink {
		t.Errorf("poison.policy %s by %s: dead letters need Kafka", c.Poison.Policy, c.Origin("poison.policy"))
	}
	if text := c.String(); strings.Contains(text, "Geh3im") || !strings.Contains(text, `url: "https://shop.example/xxxxx"`) {
		t.Error(text)
	}
	if _, err := read("sink: kafka"); err == nil || !strings.Contains(err.Error(), "receiver.url: is set, but sink is kafka") {
		t.Error(err)
	}
	for more, want := range map[string]string{
		"delivery: {mode: deduplicated}":                             "delivery.mode: deduplicated (the default) reads in Kafka",
		"poison: {policy: dead_letter}":                              "poison.policy: dead letters (dead_letter, hold_key) need Kafka",
		"poison: {causes: {rejected: dead_letter}}":                  "poison.causes: dead letters (dead_letter, hold_key) need Kafka",
		"poison: {policy: hold_key}":                                 "poison.policy: dead letters (dead_letter, hold_key) need Kafka",
		"poison: {causes: {rejected: hold_key}}":                     "poison.causes: dead letters (dead_letter, hold_key) need Kafka",
		"poison: {decisions: {x: dead_letter}}":                      "poison.decisions: dead letters (dead_letter, hold_key) need Kafka",
		"route: {missing_topic: 5m}":                                 "route.missing_topic: a receiver cannot be asked",
		"route: {format: raw, fields: {}}":                           "route.format: is raw",
		"route: {partition: p}":                                      "route.partition: a receiver has no partitions",
		"route: {partitions: {t: 3}}":                                "route.partitions: a receiver has no partitions",
		"route: {timestamp: commit}":                                 "route.timestamp: a request has no timestamp",
		`kafka: {brokers: ["other:9092"]}`:                           "kafka.brokers: is set, but sink is http",
		"kafka: {compression: none}":                                 "kafka.compression: is set, but sink is http",
		"receiver: {url: ''}":                                        "receiver.url: is empty",
		"receiver: {url: 'shop.example/Geh3im'}":                     "receiver.url: the value (not shown) is not a URL with a host that begins with http:// or https://",
		"receiver: {url: 'https://{topic}.example/Geh3im'}":          "has {topic} in its host",
		"receiver: {url: 'https://h/#Geh3im'}":                       "has a part after #",
		"receiver: {url_file: /nope}":                                "receiver.url_file: receiver.url is set too",
		"receiver: {secret: Geh3im, secret_file: /nope}":             "receiver.secret_file: receiver.secret is set too",
		"receiver: {lanes: 0}":                                       "receiver.lanes: 0 is out of range",
		"receiver: {batch: 1001}":                                    "receiver.batch: 1001 is out of range",
		"receiver: {timeout: 1ms}":                                   "receiver.timeout: 1ms is too short",
		"tls: {enabled: true}":                                       "tls.enabled: is set, but sink is http",
		"tls: {cert_file: /nope}":                                    "tls.key_file: is empty",
		"outboxes: [{table: a.b, route: {format: raw, fields: {}}}]": "format: is raw",
	} {
		if _, err := read(more); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "Geh3im") {
			t.Errorf("%s: %v", more, err)
		}
	}
}

// TestRabbitMQSink: any format can be sent, and settings that only HTTP has are refused.
func TestRabbitMQSink(t *testing.T) {
	const settings = "sink: rabbitmq\nreceiver: {url: 'amqps://u:Geh3im@mq.example/shop'}\ndelivery: {mode: at_least_once}\n"
	read := func(more string) (*Config, error) {
		return load([]source{{"a.yaml", []byte(settings)}, {"b.yaml", []byte(more)}}, nil)
	}
	c, err := read("")
	if err != nil {
		t.Fatal(err)
	}
	if c.Poison.Policy != "stop" || c.Origin("poison.policy") != "sink: "+c.Sink {
		t.Errorf("poison.policy %s by %s: dead letters need Kafka", c.Poison.Policy, c.Origin("poison.policy"))
	}
	if text := c.String(); strings.Contains(text, "Geh3im") || !strings.Contains(text, `url: "amqps://mq.example/xxxxx"`) {
		t.Error(text)
	}
	for _, format := range []string{"envelope", "cloudevents_binary, fields: {source: //x}", "cloudevents_structured, fields: {source: //x}"} {
		if _, err := read("route: {format: " + format + "}"); err != nil {
			t.Error(err)
		}
	}
	for more, want := range map[string]string{
		"delivery: {mode: deduplicated}":                 "delivery.mode: deduplicated (the default) reads in Kafka",
		"poison: {policy: dead_letter}":                  "poison.policy: dead letters (dead_letter, hold_key) need Kafka",
		"route: {missing_topic: 5m}":                     "route.missing_topic: a receiver cannot be asked",
		"route: {partition: p}":                          "route.partition: a receiver has no partitions",
		"route: {timestamp: commit}":                     "route.timestamp: a request has no timestamp",
		"receiver: {url: ''}":                            "receiver.url: is empty; write the address of the receiver, e.g. amqp://user:password@host",
		"receiver: {url: 'https://u:Geh3im@h/'}":         "not a URL with a host that begins with amqp:// or amqps://",
		"receiver: {url: 'amqp://u:Geh3im@h/{topic}'}":   "has {topic}, which only sink: http has",
		"receiver: {url: 'amqp://u:Geh3im@h/?certfile'}": "has a part after ?",
		"receiver: {lanes: 7}":                           "receiver.lanes: is set, but sink is rabbitmq",
		"receiver: {batch: 7}":                           "receiver.batch: is set, but sink is rabbitmq",
		"receiver: {secret: Geh3im}":                     "receiver.secret: is set, but sink is rabbitmq",
	} {
		if _, err := read(more); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "Geh3im") {
			t.Errorf("%s: %v", more, err)
		}
	}
}

// TestReceiverFiles: a rotated secret is read again, and an empty file is no secret.
func TestReceiverFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	c := Default()
	c.Sink = SinkHTTP
	c.Receiver.URLFile, c.Receiver.SecretFile = file, file
	for _, text := range []string{"https://a.example/x\n", "https://b.example/x"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		url, err := c.ReceiverURL()
		secret, err2 := c.ReceiverSecret()
		if want := strings.TrimSpace(text); url != want || secret != want || err != nil || err2 != nil {
			t.Errorf("%q, %q, %v, %v", url, secret, err, err2)
		}
	}
	for text, want := range map[string]string{" \n": "is empty", "Geh3im": "is not a URL with a host"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := c.ReceiverURL(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "Geh3im") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
