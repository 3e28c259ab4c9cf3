package fromdebezium

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/internal/config"
)

const router = "connector.class=io.debezium.connector.postgresql.PostgresConnector\ntransforms.outbox.type=io.debezium.transforms.outbox.EventRouter\n"

// TestRegexRouter converts a RegexRouter after the event router to route.topic or route.replace.
func TestRegexRouter(t *testing.T) {
	const regex = "transforms=outbox,rename\ntransforms.rename.type=org.apache.kafka.connect.transforms.RegexRouter\n"
	for _, c := range []struct {
		text string
		want config.Replace
		keep bool // each type is renamed
	}{
		{"transforms.rename.regex=outbox\\\\.event\\\\.(.*)\ntransforms.rename.replacement=shop.$1", config.Replace{Regex: "(.*)", With: "shop.${1}"}, true},
		{"transforms.rename.regex=^outbox.event.(.*)$\ntransforms.rename.replacement=$1", config.Replace{Regex: "(.*)", With: "${1}"}, true},
		{"transforms.rename.regex=(.*)\ntransforms.rename.replacement=prod.$1", config.Replace{Regex: "(.*)", With: "prod.outbox.event.${1}"}, true},
		{
			"transforms.outbox.route.topic.replacement=a.${routedByValue}.b\ntransforms.rename.regex=(.*)\ntransforms.rename.replacement=x.$1",
			config.Replace{Regex: "(.*)", With: "x.a.${1}.b"},
			true,
		},
		{
			"transforms.outbox.route.topic.replacement=a.${routedByValue}.b\ntransforms.rename.regex=a.(.*)\\\\.b\ntransforms.rename.replacement=$1",
			config.Replace{Regex: "(.*)", With: "${1}"},
			true,
		},
		{"transforms.rename.regex=.*\ntransforms.rename.replacement=all", config.Replace{}, false},
		{"transforms.rename.regex=outbox.event.*\ntransforms.rename.replacement=all", config.Replace{}, false},
		{"transforms.rename.regex=outbox.event.[(]a|b\ntransforms.rename.replacement=x", config.Replace{}, false},
		{"transforms.rename.regex=outbox.event.a|b\ntransforms.rename.replacement=x", config.Replace{}, false},
		{"transforms.rename.regex=(outbox).event.(.*)\ntransforms.rename.replacement=$1.$2", config.Replace{}, false},
		{"transforms.rename.regex=outbox.event.(a|b)\ntransforms.rename.replacement=$2", config.Replace{}, false},
		{"transforms.rename.regex=outbox.event.(order|item)\ntransforms.rename.replacement=$1s", config.Replace{Regex: "(order|item)", With: "${1}s"}, false},
		{
			"transforms.outbox.route.topic.replacement=shop.${routedByValue}\ntransforms.rename.regex=shop\\\\.(.*)\ntransforms.rename.replacement=$1",
			config.Replace{Regex: "(.*)", With: "${1}"},
			true,
		},
	} {
		if c.want.Regex == "" {
			if _, err := converted(router+regex+c.text, Options{}); err == nil || !strings.Contains(err.Error(), "transforms.rename.regex") {
				t.Errorf("%s: %v", c.text, err)
			}
			continue
		}
		_, got := convert(t, router+regex+c.text)
		unmatched := "poison"
		if c.keep {
			unmatched = "keep"
		}
		if got.Route.Replace != c.want || got.Route.Topic != "{aggregate_type}" || got.Route.Unmatched != unmatched {
			t.Errorf("%s: %+v, topic %q, unmatched %q", c.text, got.Route.Replace, got.Route.Topic, got.Route.Unmatched)
		}
		sameTopics(t, c.text, got.Route.Replace)
	}
	if r, c := convert(t, strings.Replace(router+regex, "outbox,rename", "rename,outbox", 1)+"transforms.rename.regex=(.*)\ntransforms.rename.replacement=x"); c.Route.Topic != "outbox.event.{aggregate_type}" ||
		!noted(r, "transforms.rename.type", "the event router sets the topic after it") {
		t.Errorf("before the router: topic %q, notes %v", c.Route.Topic, r.Notes)
	}
}

// sameTopics compares the converted expression with the event router and the RegexRouter, one after the other.
func sameTopics(t *testing.T, text string, ours config.Replace) {
	t.Helper()
	props, err := readProperties(text)
	if err != nil {
		t.Fatal(err)
	}
	with, err := replacement(props["transforms.rename.replacement"])
	if err != nil {
		t.Fatal(err)
	}
	router := cmp.Or(props["transforms.outbox.route.topic.replacement"], "outbox.event.${routedByValue}")
	apply := func(regex, with, s string) string {
		re := regexp.MustCompile("^(?:" + regex + ")$")
		if m := re.FindStringSubmatchIndex(s); m != nil {
			return string(re.ExpandString(nil, with, s, m))
		}
		return "unmatched"
	}
	for _, typ := range []string{"order", "item", "a", "b", "order.v2"} {
		theirs := apply(props["transforms.rename.regex"], with, strings.Replace(router, "${routedByValue}", typ, 1))
		if got := apply(ours.Regex, ours.With, typ); got != theirs {
			t.Errorf("%s: the type %s goes to %q, want %q", text, typ, got, theirs)
		}
	}
}

func noted(r *Result, option, text string) bool {
	return slices.ContainsFunc(r.Notes, func(n Note) bool { return n.Option == option && strings.Contains(n.Text, text) })
}

// TestOtherTransforms checks that a transformation without a counterpart is an error, unless ignored.
func TestOtherTransforms(t *testing.T) {
	for _, class := range []string{
		"io.debezium.transforms.Filter", "org.apache.kafka.connect.transforms.Filter", "org.apache.kafka.connect.transforms.InsertField$Value", "com.example.Mine",
	} {
		text := router + "transforms=a,outbox\ntransforms.a.type=" + class + "\ntransforms.a.condition=x"
		if _, err := converted(text, Options{}); err == nil || !strings.Contains(err.Error(), "a ("+class+")") || !strings.Contains(err.Error(), "--ignore-transforms") {
			t.Errorf("%s: %v", class, err)
		}
		r, err := converted(text, Options{IgnoreTransforms: true})
		if err != nil || !noted(r, "transforms.a.type", "ignored") {
			t.Errorf("%s, ignored: %v", class, err)
		}
	}
	if _, err := converted(router+"transforms=outbox\ntransforms.outbox.route.topic.replacement=a.$2", Options{}); err == nil || !strings.Contains(err.Error(), "names the group 2") {
		t.Errorf("a group that there is not: %v", err)
	}
}

// TestForms reads the formats of a connector's configuration.
func TestForms(t *testing.T) {
	const options = `"connector.class": "PostgresConnector", "database.hostname": "db", "transforms": "o", "transforms.o.type": "EventRouter"`
	for name, text := range map[string]string{
		"byte order mark": "\ufeff" + router + "database.hostname=db\ntransforms=outbox",
		"aliases":         `{` + options + `}`,
		"array":           `[{"name": "x", "config": {"connector.class": "x.MySqlConnector"}}, {"name": "a", "config": {` + options + `}}]`,
		"expand=info":     `{"x": {"info": {"name": "x", "config": {}}}, "a": {"info": {"name": "a", "config": {` + options + `}, "tasks": []}, "status": {}}}`,
		"Debezium Server": "debezium.sink.type=kafka\ndebezium.sink.kafka.producer.bootstrap.servers=k:1\ndebezium.source.connector.class=io.debezium.connector.postgresql.PostgresConnector\ndebezium.source.database.hostname=db\ndebezium.transforms=o\ndebezium.transforms.o.type=io.debezium.transforms.outbox.EventRouter\ndebezium.transforms.o.route.topic.replacement=outbox.event.$${routedByValue}\nquarkus.log.level=INFO",
	} {
		r, c := convert(t, text)
		if url, _ := c.PostgresAddress(); !strings.HasPrefix(url, "postgres://db/") || c.Route.Topic != "outbox.event.{aggregate_type}" {
			t.Errorf("%s: %s, topic %q", name, url, c.Route.Topic)
		}
		if name == "Debezium Server" && (c.Kafka.Brokers[0] != "k:1" || !noted(r, "debezium.sink.type", "JSON document") || !noted(r, "value.converter", "bytes will differ")) {
			t.Errorf("%s: brokers %v, notes %v", name, c.Kafka.Brokers, r.Notes)
		}
	}
	two := `[{"name": "a", "config": {` + options + `}}, {"name": "b", "config": {` + options + `, "slot.name": "second"}}]`
	if _, err := converted(two, Options{}); err == nil || !strings.Contains(err.Error(), "choose one of a, b with --connector") {
		t.Errorf("two relays: %v", err)
	}
	all, err := Read([]byte(two))
	if err != nil {
		t.Fatal(err)
	}
	if one, err := Choose(all, "b"); err != nil || one.Props["slot.name"] != "second" {
		t.Errorf("b: %v, %v", one, err)
	}
	for text, want := range map[string]string{
		"{\n  \"a\": 1,\n  b\n}":         "line 3, column 3",
		"{\"a\": ":                       "line 1, column 5",
		"debezium.sink.type=redis\n":     `debezium.sink.type is "redis"`,
		"[]":                             "no connector",
		`[{"name": "a"}, {"name": "b"}]`: "none of the connectors a, b",
	} {
		if _, err := converted(text, Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestCounterparts checks that options with a counterpart are converted, and that differences have a note.
func TestCounterparts(t *testing.T) {
	const head = router + "transforms=outbox\n"
	_, c := convert(t, head+"topic.creation.default.partitions=3\ntopic.creation.default.replication.factor=2\ntopic.creation.default.cleanup.policy=compact\nerrors.tolerance=all")
	if k := c.Kafka.CreateTopics; k.Partitions != 3 || k.ReplicationFactor != 2 || k.Config["cleanup.policy"] != "compact" || c.Poison.Policy != "skip" {
		t.Errorf("%+v, policy %s", k, c.Poison.Policy)
	}
	r, c := convert(t, head+"topic.creation.default.partitions=-1\ntopic.creation.default.replication.factor=-1")
	if c.Kafka.CreateTopics.Partitions != 6 || !noted(r, "topic.creation.default.partitions", "broker's default") {
		t.Errorf("%+v, notes %v", c.Kafka.CreateTopics, r.Notes)
	}
	if _, c = convert(t, head+"table.include.list=^public.outbox$"); c.Outbox.Table != "public.outbox" {
		t.Errorf("table %q", c.Outbox.Table)
	}
	for _, line := range []string{"table.field.additional.missing=ignore", "table.fields.additional.error.on.missing=false"} {
		if _, c = convert(t, head+"transforms.outbox."+line); c.Route.MissingColumns != "ignore" {
			t.Errorf("%s: missing columns: %s", line, c.Route.MissingColumns)
		}
	}
	r, c = convert(t, head+"transforms.outbox.table.fields.additional.placement=a:header:x,b:header:x,c:header:id,d:header:type")
	if !slices.Equal(c.Route.Headers, []string{"a:x", "d:type"}) || !noted(r, "transforms.outbox.table.fields.additional.placement", "only one header id") {
		t.Errorf("headers %q, notes %v", c.Route.Headers, r.Notes)
	}
	r, c = convert(t, head+"database.hostname=${file:/secrets:host}\ndatabase.port=${env:DB_PORT}\ndatabase.user=${secrets:x:user}\ndatabase.dbname=shop-${env:SLOT}\nslot.name=${env:SLOT}", "DB_PORT=6432", "SLOT=second")
	if url, _ := c.PostgresAddress(); url != "postgres://user.invalid@hostname.invalid:6432/shop-second" || c.Postgres.Slot != "second" {
		t.Errorf("url %q, slot %q", url, c.Postgres.Slot)
	}
	r2, c2 := convert(t, head+"database.hostname=db-${env:SLOT}.${file:/x:y}")
	if url, _ := c2.PostgresAddress(); url != "postgres://hostname.invalid/" || !noted(r2, "database.hostname", "${file:/x:y} stands for a value that is not in the file") {
		t.Errorf("a mixed value: %q, %v", url, r2.Notes)
	}
	for option, text := range map[string]string{
		"database.hostname": "not in the file", "database.port": "environment of outboxcdc", "database.user": "not in the file", "slot.name": "environment of outboxcdc",
	} {
		if !noted(r, option, text) {
			t.Errorf("no note of %s: %v", option, r.Notes)
		}
	}
	r, _ = convert(t, head+"value.converter=io.debezium.converters.BinaryDataConverter\nvalue.converter.delegate.converter.type=org.apache.kafka.connect.json.JsonConverter")
	if !noted(r, "value.converter", "JsonConverter") {
		t.Errorf("a delegate: %v", r.Notes)
	}
}
