package fromdebezium

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml/parser"

	"github.com/outboxcdc/outboxcdc/internal/config"
)

const connector = `
# the shop's
name=outbox
connector.class=io.debezium.connector.postgresql.PostgresConnector
plugin.name=pgoutput
database.hostname=db.internal
database.port=5433
database.user=debezium
database.password=s3cr3t
database.dbname=shop
database.sslmode=verify_full
slot.name=outbox_slot
publication.name : outbox_pub
publication.autocreate.mode=disabled
table.include.list=sales.outbox_event
tombstones.on.delete=false
snapshot.mode=no_data
heartbeat.interval.ms=10000
status.update.interval.ms=5000
value.converter=org.apache.kafka.connect.storage.StringConverter
key.converter=org.apache.kafka.connect.storage.StringConverter
producer.override.bootstrap.servers=k1:9092,k2:9092
producer.override.compression.type=zstd
errors.tolerance=all
some.new.option=7
producer.override.sasl.client.secret=s3cr3t
transforms=outbox
transforms.outbox.type=io.debezium.transforms.outbox.EventRouter
transforms.outbox.table.field.event.key=customer
transforms.outbox.table.field.event.timestamp=created
transforms.outbox.table.fields.additional.placement=type:header:eventType, tenant:header, \
    shard:partition,version:envelope
transforms.outbox.route.topic.regex=(.*)_v(?<n>\\d)
transforms.outbox.route.topic.replacement=$1s.v${n}\\$
transforms.outbox.route.tombstone.on.empty.payload=true
transforms.outbox.table.expand.json.payload=true
`

// converted reads and converts the only outbox connector of a file.
func converted(text string, o Options) (*Result, error) {
	all, err := Read([]byte(text))
	if err != nil {
		return nil, err
	}
	one, err := Choose(all, "")
	if err != nil {
		return nil, err
	}
	return Convert(one, o)
}

func convert(t *testing.T, text string, environment ...string) (*Result, *config.Config) {
	t.Helper()
	r, err := converted(text, Options{})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "outboxcdc.yaml")
	if err := os.WriteFile(file, []byte(r.YAML), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load([]string{file}, environment)
	if err != nil {
		t.Fatalf("what it writes does not load: %v\n%s", err, r.YAML)
	}
	return r, c
}

func TestConvert(t *testing.T) {
	r, c := convert(t, connector)
	url, _ := c.PostgresAddress()
	if want := "postgres://debezium@db.internal:5433/shop?sslmode=verify-full"; url != want {
		t.Errorf("url %q, want %q", url, want)
	}
	if strings.Contains(r.YAML, "s3cr3t") {
		t.Error("the password is printed")
	}
	if c.Postgres.Slot != "outbox_slot" || c.Postgres.Publication != "outbox_pub" || c.Tuning.StatusInterval.String() != "5s" {
		t.Errorf("postgres %+v", c.Postgres)
	}
	if want := (config.Columns{ID: "id", AggregateType: "aggregatetype", AggregateID: "customer", Payload: "payload", CreatedAt: "created_at"}); c.Outbox.Table != "sales.outbox_event" || c.Outbox.Columns != want {
		t.Errorf("outbox %+v", c.Outbox)
	}
	want := config.Route{
		Topic: "{aggregate_type}", Topics: map[string]string{}, Replace: config.Replace{Regex: `(.*)_v(?<n>\d)`, With: "${1}s.v${n}$$"}, Unmatched: "keep",
		MissingTopic: "wait",
		Key:          "{aggregate_id}", ID: "{id}", Headers: []string{"type:eventType", "tenant"}, Partition: "shard", Partitions: map[string]int{}, Timestamp: "created",
		MissingColumns: "stop", NullKey: "allow", NullPayload: "tombstone", BlankPayload: "null", Format: "envelope", Fields: map[string]string{
			"version": "{version}", "payload": "{payload}", "data": "", "eventId": "", "schemaVersion": "", "occurredAt": "", "traceId": "", "aggregateType": "", "aggregateId": "",
		},
	}
	if !reflect.DeepEqual(c.Route, want) {
		t.Errorf("route %+v\nwant  %+v", c.Route, want)
	}
	if !slices.Equal(c.Kafka.Brokers, []string{"k1:9092", "k2:9092"}) || c.Kafka.Compression != "zstd" {
		t.Errorf("kafka %+v", c.Kafka)
	}
	var noted []string
	for _, n := range r.Notes {
		noted = append(noted, strings.TrimPrefix(n.Option, "transforms.outbox."))
		if n.Value == "s3cr3t" {
			t.Error("the password is in a note")
		}
	}
	if want := []string{
		"database.password", "errors.tolerance", "heartbeat.interval.ms", "producer.override.sasl.client.secret", "snapshot.mode", "some.new.option",
		"table.expand.json.payload", "table.fields.additional.placement",
	}; !slices.Equal(noted, want) {
		t.Errorf("notes about %q\nwant %q", noted, want)
	}
}

// TestConvertDefaults converts a minimal connector, as JSON of Connect's REST interface.
func TestConvertDefaults(t *testing.T) {
	r, c := convert(t, `{"name": "x", "config": {"connector.class": "io.debezium.connector.postgresql.PostgresConnector", "tasks.max": 1,
		"database.hostname": "db", "database.dbname": "shop", "table.include.list": "public.outbox", "transforms": "outbox",
		"transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter", "transforms.outbox.route.topic.replacement": "shop.${routedByValue}",
		"value.converter": "org.apache.kafka.connect.json.JsonConverter", "value.converter.schemas.enable": false}}`)
	if c.Postgres.Slot != "debezium" || c.Postgres.Publication != "dbz_publication" || c.Route.Topic != "shop.{aggregate_type}" || c.Route.Replace.Regex != "" {
		t.Errorf("%s", c)
	}
	var noted []string
	for _, n := range r.Notes {
		noted = append(noted, n.Option)
		if n.Option == "key.converter" && !strings.Contains(n.Text, "worker") { // there is none in the file
			t.Errorf("key.converter: %s", n.Text)
		}
	}
	if want := []string{"bootstrap.servers", "key.converter", "plugin.name", "publication.autocreate.mode", "value.converter"}; !slices.Equal(noted, want) {
		t.Errorf("notes about %q\nwant %q", noted, want)
	}
}

// TestConvertUpdates checks table.op.invalid.behavior: with warn and error the connector skips an update and logs it,
// with fatal it stops.
func TestConvertUpdates(t *testing.T) {
	for behaviour, want := range map[string]string{"": "", "warn": "", "error": "", "fatal": "stop"} {
		for _, option := range []string{"table", "debezium"} { // the former name
			_, c := convert(t, "connector.class=io.debezium.connector.postgresql.PostgresConnector\ntransforms=outbox\n"+
				"transforms.outbox.type=io.debezium.transforms.outbox.EventRouter\ntransforms.outbox."+option+".op.invalid.behavior="+behaviour)
			if got := c.Poison.Causes["update"]; got != want {
				t.Errorf("%s %q: the policy for updates is %q, want %q", option, behaviour, got, want)
			}
		}
	}
}

// TestConvertEnvelope checks the notes about a column with the name of a role, and about a payload that is not
// expanded.
func TestConvertEnvelope(t *testing.T) {
	const head = "connector.class=io.debezium.connector.postgresql.PostgresConnector\ntransforms=outbox\n" +
		"transforms.outbox.type=io.debezium.transforms.outbox.EventRouter\ntransforms.outbox.table.fields.additional.placement="
	notes := func(text string) (string, *config.Config) {
		r, c := convert(t, head+text)
		all := ""
		for _, n := range r.Notes {
			if strings.HasSuffix(n.Option, ".placement") {
				all += n.Text + "\n"
			}
		}
		return all, c
	}
	said, c := notes("type:envelope:a b,aggregateid:Envelope\ntransforms.outbox.table.expand.json.payload=true")
	if c.Route.NullPayload != "empty" || c.Route.Fields["a b"] != "{type}" || c.Route.Fields["aggregateid"] != "{aggregateid}" || c.Route.Fields["payload"] != "{payload}" {
		t.Errorf("route %+v", c.Route)
	}
	if strings.Contains(said, "quotes") || strings.Contains(said, "role") || !strings.Contains(said, "payload last") {
		t.Errorf("notes: %s", said)
	}
	said, _ = notes("id:envelope,payload:envelope\ntransforms.outbox.table.field.event.id=event_id\ntransforms.outbox.table.field.event.payload=body")
	if strings.Count(said, "the column with that role") != 2 || !strings.Contains(said, "a quoted string") {
		t.Errorf("notes: %s", said)
	}
	if _, c = notes("a:partition,b:partition"); c.Route.Partition != "b" {
		t.Errorf("partition %q, want the last one", c.Route.Partition)
	}
	if said, _ = notes("a:nowhere,b"); !strings.Contains(said, "no such placement") || !strings.Contains(said, `"b" has no placement`) {
		t.Errorf("notes: %s", said)
	}
}

func TestConvertSeveralTables(t *testing.T) {
	r, c := convert(t, "connector.class=io.debezium.connector.postgresql.PostgresConnector\ntransforms=outbox\n"+
		"transforms.outbox.type=io.debezium.transforms.outbox.EventRouter\ntransforms.outbox.table.field.event.key=who\ntable.include.list=sales\\\\.outbox,billing.outbox")
	s := c.Sources()
	if len(s) != 2 || s[0].Table != "sales.outbox" || s[1].Table != "billing.outbox" || s[1].Columns.AggregateID != "who" || s[1].Columns.AggregateType != "aggregatetype" {
		t.Errorf("%+v\n%s", s, r.YAML)
	}
	if !slices.ContainsFunc(r.Notes, func(n Note) bool {
		return n.Option == "table.include.list" && strings.Contains(n.Text, "several tables")
	}) {
		t.Errorf("notes %v", r.Notes)
	}
}

func TestConvertTracing(t *testing.T) {
	r, c := convert(t, "connector.class=io.debezium.connector.postgresql.PostgresConnector\ntransforms=outbox\n"+
		"transforms.outbox.type=io.debezium.transforms.outbox.EventRouter\ntransforms.outbox.tracing.span.context.field=trace")
	if c.Route.TraceContext != "trace" {
		t.Errorf("%s", c)
	}
	if !slices.ContainsFunc(r.Notes, func(n Note) bool { return strings.HasSuffix(n.Option, ".tracing.span.context.field") }) {
		t.Errorf("no note that no span is made: %v", r.Notes)
	}
}

func TestRefused(t *testing.T) {
	for text, want := range map[string]string{
		"connector.class=io.debezium.connector.mysql.MySqlConnector":                             "only Debezium's connector for PostgreSQL",
		"transforms=unwrap\ntransforms.unwrap.type=io.debezium.transforms.ExtractNewRecordState": "does not use the outbox event router",
		`{"transforms": ["a"]}`: "not a list",
		`{`:                     "read the JSON",
		`a=\u12`:                "escape",
		`a=\ud83d\udd11`:        "write it as UTF-8",
		"a=\xff":                "UTF-8",
	} {
		_, err := converted(text, Options{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// TestConvertNotes checks that options that are not converted have a note, above all those that protect data, and that
// no note contains a secret.
func TestConvertNotes(t *testing.T) {
	const head = "connector.class=io.debezium.connector.postgresql.PostgresConnector\ntransforms=outbox\n" +
		"transforms.outbox.type=io.debezium.transforms.outbox.EventRouter\ntransforms.outbox."
	for text, want := range map[string]string{
		"x=1\ncolumn.mask.with.10.chars=public.outbox.payload":                      "column.mask.with.10.chars=public.outbox.payload neither masked",
		"x=1\nschema.include.list=sales":                                            "schema.include.list=sales no counterpart",
		"x=1\nproducer.override.security.protocol=SASL_SSL":                         "producer.override.security.protocol=SASL_SSL tls and kafka.sasl",
		"x=1\nproducer.override.sasl.jaas.config=s3cr3t":                            "producer.override.sasl.jaas.config= tls and kafka.sasl",
		"x=1\nsome.passphrase=s3cr3t":                                               "some.passphrase= no counterpart",
		"x=1\nsignal.data.collection=public.signals":                                "signal.data.collection=public.signals no signals",
		"x=1\nprovide.transaction.metadata=true":                                    "provide.transaction.metadata=true no topic",
		"route.topic.regex=(?<routedByValue>a(?=b).*)\nx=1":                         "transforms.outbox.route.topic.regex=(?<routedByValue>a(?=b).*) RE2 does not support it",
		"route.topic.regex=(?<routedByValue>[a-z&&[^b]]*)\nx=1":                     "transforms.outbox.route.topic.regex=(?<routedByValue>[a-z&&[^b]]*) intersection",
		"x=1\ntable.include.list=public.Outbox":                                     `table.include.list=public.Outbox without quotes the name is outbox`,
		"route.topic.regex=(?<routedByValue>.*)\\\\1\nx=1":                          "transforms.outbox.route.topic.regex=(?<routedByValue>.*)\\1 RE2 does not support it",
		"x=1\ndatabase.hostname=::1\ntable.include.list=public.a-b,public.outbox_2": "table.include.list=public.a-b,public.outbox_2 several tables",
	} {
		r, err := converted(head+text, Options{})
		if err != nil {
			t.Fatal(err)
		}
		option, words, _ := strings.Cut(want, " ")
		if !slices.ContainsFunc(r.Notes, func(n Note) bool { return n.Option+"="+n.Value == option && strings.Contains(n.Text, words) }) {
			t.Errorf("no note %q: %q", want, r.Notes)
		}
	}
	_, c := convert(t, head+"x=1\ndatabase.hostname=::1\ndatabase.port=6432\ndatabase.dbname=shop\ntable.include.list=Sales.a-b,public.outbox_2")
	schema, name := c.Sources()[0].Name()
	if url, _ := c.PostgresAddress(); schema != "Sales" || name != "a-b" || c.Sources()[1].Table != "public.outbox_2" || url != "postgres://[::1]:6432/shop" {
		t.Errorf("%s %s %s", schema, name, url)
	}
}

// TestProperties reads Java's properties format.
func TestProperties(t *testing.T) {
	got, err := readProperties("a = b\n ! no\nc:d e\\\n   f\ng\nh\\ i=\\u00e9\\t\\\\\nlast=x\\\\\n k\\=l m\n\\")
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{"a": "b", "c": "d ef", "g": "", "h i": "é\t\\", "last": `x\`, "k=l": "m", `\`: ""}; !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// FuzzConvert checks that no input panics, and that the output is YAML.
func FuzzConvert(f *testing.F) {
	f.Add(connector)
	f.Fuzz(func(t *testing.T, text string) {
		r, err := converted(text, Options{})
		if err != nil {
			return
		}
		if _, err := parser.ParseBytes([]byte(r.YAML), 0); err != nil {
			t.Errorf("%v\n%s", err, r.YAML)
		}
	})
}
