package config

import (
	"strings"
	"testing"
	"time"
)

func TestValidate(t *testing.T) {
	long := strings.Repeat("x", 64)
	tests := []struct {
		change func(*Config)
		want   string // "" = valid
	}{
		{func(c *Config) { c.Postgres.Slot = "a_9" }, ""},
		{func(c *Config) { c.Postgres.Slot = "pg_conflict_detection" }, `postgres.slot: "pg_conflict_detection" is reserved`},
		{func(c *Config) { c.Postgres.Slot = "My-Slot" }, `postgres.slot: "My-Slot" is not a slot name; use 1–63`},
		{func(c *Config) { c.Postgres.Slot = "" }, `postgres.slot: ""`},
		{func(c *Config) { c.Postgres.Slot = "orders_recovery" }, `postgres.slot: "orders_recovery" ends as the slots do that recover`},
		{func(c *Config) { c.Postgres.Slot = long }, `postgres.slot`},
		{func(c *Config) { c.Postgres.Publication = "Odd name; drop" }, ""},
		{func(c *Config) { c.Postgres.Publication = "" }, `postgres.publication: is empty`},
		{func(c *Config) { c.Postgres.Publication = long }, `postgres.publication`},
		{func(c *Config) { c.Postgres.Publication = "a\x00b" }, `NUL`},
		{func(c *Config) { c.Postgres.Publication = "a\xff" }, `UTF-8`},
		{func(c *Config) { c.Postgres.URL = "postgresql://h/d" }, ""},
		{func(c *Config) { c.Postgres.URL = "host=h user=u" }, ""},
		{func(c *Config) { c.Postgres.URL = "mysql://s3cr3t@h?a=b" }, `postgres.url: the value (not shown)`},
		{func(c *Config) { c.Postgres.URL = "s3cr3t" }, `postgres.url: the value (not shown)`},
		{func(c *Config) { c.Postgres.Standbys = []string{"auto"} }, ""},
		{func(c *Config) {
			c.Postgres.Standbys = []string{"host=b password=s3cr3t", "postgres://u:s3cr3t@c:5433/d"}
		}, ""},
		{func(c *Config) { c.Postgres.Standbys = []string{"host=b target_session_attrs=standby"} }, ""},
		{func(c *Config) { c.Postgres.Standbys = []string{"auto", "host=b"} }, `postgres.standbys: entry 1: auto means the hosts of postgres.url`},
		{func(c *Config) { c.Postgres.Standbys = []string{"host=b", ""} }, `postgres.standbys: entry 2: is empty`},
		{func(c *Config) { c.Postgres.Standbys = []string{"s3cr3t"} }, `postgres.standbys: entry 1: the value (not shown) is not a connection string`},
		{func(c *Config) { c.Postgres.Standbys = []string{"postgres://u:s3cr3t/x@b/d"} }, `postgres.standbys: entry 1: the value (not shown) has an @`},
		{func(c *Config) { c.Postgres.Standbys = []string{"user=u password=s3cr3t"} }, `postgres.standbys: entry 1: names no host`},
		{func(c *Config) { c.Postgres.Standbys = []string{"postgres://u:s3cr3t@/d"} }, `postgres.standbys: entry 1: names no host`},
		{func(c *Config) { c.Postgres.URL, c.Postgres.URLFile = "host=h", "/f" }, `postgres.url_file: postgres.url is set too`},
		{func(c *Config) { c.Tuning.StatusInterval = 9 * time.Millisecond }, `tuning.status_interval: 9ms is too short; write at least 10ms`},
		{func(c *Config) { c.Tuning.ParkAfter = 999 * time.Millisecond }, `tuning.park_after`},
		{func(c *Config) { c.Tuning.WALSenderTimeout = 0 }, `tuning.wal_sender_timeout: 0s`},
		{func(c *Config) { c.Tuning.WALSenderTimeout = 600 * time.Hour }, `tuning.wal_sender_timeout: 600h is more`},
		{func(c *Config) { c.ShutdownTimeout = -1 }, `shutdown_timeout`},
		{func(c *Config) { c.Outbox.Columns.ID = "" }, `outbox.columns.id: is empty`},
		{func(c *Config) { c.Outbox.Columns.AggregateType, c.Outbox.Columns.AggregateID = "", "" }, ""}, // the router knows whether templates need them
		{func(c *Config) { c.Outbox.Columns.AggregateType = long }, `outbox.columns.aggregate_type`},
		{func(c *Config) { c.Outbox.Columns.AggregateID = long }, `outbox.columns.aggregate_id`},
		{func(c *Config) { c.Outbox.Columns.Payload = "" }, `outbox.columns.payload`},
		{func(c *Config) { c.Outbox.Columns.EventType, c.Outbox.Columns.Headers = "", "" }, ""},
		{func(c *Config) { c.Outbox.Columns.Headers = long }, `outbox.columns.headers`},
		{func(c *Config) { c.Route.Topic = "" }, ""}, // the router knows whether anything else routes
		{func(c *Config) { c.Route.Partitions = map[string]int{"a": 0} }, `route.partitions: 0 partitions of topic "a"`},
		{func(c *Config) { c.Route.Partition = long }, `route.partition`},
		{func(c *Config) { c.Route.Timestamp = long }, `route.timestamp`},
		{func(c *Config) { c.Route.TraceContext = long }, `route.trace_context`},
		{func(c *Config) { c.Route.NullKey = "maybe" }, `route.null_key: "maybe" is unknown; write poison | allow`},
		{func(c *Config) { c.Poison.OnStop = "stay" }, `poison.on_stop: "stay" is unknown; write exit | hold`},
		{func(c *Config) { c.Poison.Causes = map[string]string{"to_large": "skip"} }, `poison.causes: the cause "to_large" is unknown; write too_large`},
		{func(c *Config) { c.Poison.Causes = map[string]string{"update": "skip"} }, ""},
		{func(c *Config) { c.Poison.Causes = map[string]string{"too_large": "drop"} }, `poison.causes: the policy "drop" of "too_large" is unknown; write stop`},
		{func(c *Config) { c.Poison.Decisions = map[string]string{"17": "no"} }, `poison.decisions: the policy "no" of "17"`},
		{func(c *Config) { c.Poison.Topic = "a b" }, `poison.topic: "a b" has ' '`},
		{func(c *Config) { c.Poison.Topic = "dead.{id}" }, `poison.topic: "dead.{id}" contains a column`},
		{func(c *Config) { c.Poison.Topic = "" }, `poison.topic: is empty`},
		{func(c *Config) { c.Poison.Topic = c.Delivery.PositionTopic }, `poison.topic: "outboxcdc.positions" cannot be the dead-letter topic`},
		{func(c *Config) { c.Kafka.Brokers = nil }, `kafka.brokers: is empty`},
		{func(c *Config) { c.Kafka.Brokers = []string{"a:1", "b"} }, `kafka.brokers: "b" is not host:port`},
		{func(c *Config) { c.Kafka.Brokers = []string{":9092"} }, `kafka.brokers`},
		{func(c *Config) { c.Kafka.Brokers = []string{"a:0"} }, `kafka.brokers`},
		{func(c *Config) { c.Kafka.Brokers = []string{"kafka://a:1"} }, `kafka.brokers`},
		{func(c *Config) { c.Kafka.Brokers = []string{"[::1]:9092"} }, ""},
		{func(c *Config) { c.Kafka.Compression = "brotli" }, `kafka.compression: "brotli" is unknown; write none | gzip | snappy | lz4 | zstd`},
		{func(c *Config) { c.Route.MissingTopic = "1s" }, ""},
		{func(c *Config) { c.Poison.Causes = map[string]string{"missing_topic": "skip"} }, ""},
		{func(c *Config) { c.Route.MissingTopic = "skip" }, `route.missing_topic: "skip" is neither wait nor a duration, e.g. 5m`},
		{func(c *Config) { c.Route.MissingTopic = "999ms" }, `route.missing_topic: 999ms is too short; write at least 1s`},
		{func(c *Config) { c.Tuning.RequestsPerBroker = 0 }, `tuning.requests_per_broker: 0 is out of range; write 1 to 5`},
		{func(c *Config) { c.Tuning.RequestsPerBroker = 6 }, `tuning.requests_per_broker: 6 is out of range`},
		{func(c *Config) { c.Tuning.MaxInFlight.Records = 0 }, `tuning.max_in_flight.records: 0`},
		{func(c *Config) { c.Tuning.FenceWait = 499 * time.Millisecond }, `tuning.fence_wait: 499ms is too short; write at least 500ms`},
		{func(c *Config) { c.Tuning.MaxInFlight.Bytes = 65535 }, `tuning.max_in_flight.bytes: 65535B is too small; write at least 64KiB`},
		{func(c *Config) { c.HTTP.Listen = "" }, ""},
		{func(c *Config) { c.HTTP.Listen = "127.0.0.1:0" }, ""},
		{func(c *Config) { c.HTTP.Listen = "9464" }, `http.listen: "9464"`},
	}
	for i, test := range tests {
		c := Default()
		test.change(c)
		err := c.Validate()
		switch {
		case test.want == "" && err != nil:
			t.Errorf("#%d: %v", i, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("#%d: got %v, want %s", i, err, test.want)
		case err != nil && strings.Contains(err.Error(), "s3cr3t"):
			t.Errorf("#%d shows the secret: %v", i, err)
		}
	}
}

func TestTable(t *testing.T) {
	for text, want := range map[string][2]string{
		"public.outbox":                {"public", "outbox"},
		"Public.OutBox":                {"public", "outbox"},
		`"My Schema"."Outbox"`:         {"My Schema", "Outbox"},
		`"a.b"."c""d"`:                 {"a.b", `c"d`},
		`shop."Outbox"`:                {"shop", "Outbox"},
		"_x.a$1":                       {"_x", "a$1"},
		"schéma.tablÉ":                 {"schéma", "tablÉ"},
		"outbox":                       {},
		`"outbox"`:                     {},
		"db.public.outbox":             {},
		"public.":                      {},
		".outbox":                      {},
		"public..outbox":               {},
		"public.1x":                    {},
		"public.out-box":               {},
		"public. outbox":               {},
		`public."outbox`:               {},
		`public."out"box`:              {},
		`public.""`:                    {},
		"public.\"a\x00b\"":            {},
		"":                             {},
		"public.a;drop table x":        {},
		"p." + strings.Repeat("x", 64): {},
	} {
		c := Default()
		c.Outbox.Table = text
		schema, name := (&Source{Table: c.Outbox.Table}).Name()
		if schema != want[0] || name != want[1] {
			t.Errorf("%q: %q, %q; want %q", text, schema, name, want)
		}
		if err := c.Validate(); (err == nil) != (name != "") {
			t.Errorf("%q: Validate: %v", text, err)
		}
	}
	c := Default()
	c.Outbox.Table = "outbox"
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), `"outbox" has no schema; write e.g. public.outbox`) {
		t.Errorf("bare name: %v", err)
	}
}

func TestTopicTemplate(t *testing.T) {
	for template, want := range map[string]string{
		"orders": "", "outbox.event.{aggregate_type}": "", "{a}{b}": "", "{My Column}": "", "{a}-x_Y.9": "",
		"a{b": "unbalanced", "a}b": "unbalanced", "{a{b}}": "unbalanced", "{a{b}": "unbalanced", "{a}}": "unbalanced",
		"x.{}": "empty braces", "x.{ }": "empty braces", "{ a}": "spaces inside",
		"a b": "not allowed in a topic name", "a/{b}": "not allowed in a topic name", "{b}é": `'é'`,
		".": "not allowed as a topic name", "..": "not allowed as a topic name", strings.Repeat("x", 250): "249",
		"{" + strings.Repeat("x", 64) + "}": "63",
	} {
		got := checkTopicTemplate(template)
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", template, got, want)
		}
	}
}

func TestByteSize(t *testing.T) {
	for text, want := range map[string]ByteSize{
		"0": 0, "7": 7, "7B": 7, "64KiB": 65536, "16MiB": 16 << 20, "2 GiB": 2 << 30, "1kB": 1000, "1KB": 1000, "3MB": 3e6, "1GB": 1e9, "-1MiB": -1 << 20,
	} {
		got, err := ParseByteSize(text)
		if err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
		if back, err := ParseByteSize(got.String()); err != nil || back != got {
			t.Errorf("%d prints as %s", got, got)
		}
	}
	for _, text := range []string{"", "MiB", "1.5MiB", "1MiBx", "1 000", "0x10", "8589934592GiB", "99999999999999999999"} {
		if got, err := ParseByteSize(text); err == nil {
			t.Errorf("%q: accepted as %d", text, got)
		}
	}
}
