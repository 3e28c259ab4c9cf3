package config

import (
	"reflect"
	"strings"
	"testing"
)

const twoTables = `preset: debezium
outbox:
  columns: {payload: body}
route: {topic: "all.{aggregate_type}", headers: [tenant], topics: {a: b}}
outboxes:
- table: sales.orders
- table: '"My Schema".events'
  columns: {id: "no", headers: meta}
  route:
    topic: "events.{table}"
    id: "{table}:{no}"
    topics: {x: y}
    replace: {regex: "(.*)_v1", with: $1}
    null_payload: poison
`

// TestOutboxes checks that settings that an entry omits come from outbox.columns and route, from any source; a list or
// a map as a whole.
func TestOutboxes(t *testing.T) {
	c, err := loadText(twoTables, "OUTBOXCDC_ROUTE_KEY={who}", "OUTBOXCDC_ROUTE_PARTITIONS=all.x=3")
	must(t, err)
	sources := c.Sources()
	if len(sources) != 2 || c.Outbox.Table != "" {
		t.Fatalf("%d sources, outbox.table %q", len(sources), c.Outbox.Table)
	}
	a, b := sources[0], sources[1]
	if schema, name := a.Name(); schema != "sales" || name != "orders" {
		t.Errorf("%s %s", schema, name)
	}
	if schema, name := b.Name(); schema != "My Schema" || name != "events" {
		t.Errorf("%s %s", schema, name)
	}
	inherited := Columns{ID: "id", AggregateType: "aggregatetype", AggregateID: "aggregateid", Payload: "body", CreatedAt: "created_at"}
	if a.Columns != inherited || !reflect.DeepEqual(a.Route, c.Route) {
		t.Errorf("the first entry is %+v", a)
	}
	inherited.ID, inherited.Headers = "no", "meta"
	want := c.Route.clone()
	want.Topic, want.ID, want.Topics, want.Replace, want.NullPayload = "events.{table}", "{table}:{no}", map[string]string{"x": "y"}, Replace{"(.*)_v1", "$1"}, "poison"
	if b.Columns != inherited || !reflect.DeepEqual(b.Route, want) {
		t.Errorf("the second entry is %+v\nwant %+v", b, want)
	}
	if want.Key != "{who}" || want.NullKey != "allow" || want.Headers[0] != "tenant" {
		t.Errorf("%+v", want)
	}
	// The printed form is one line and loads again with the same settings.
	again, err := loadText(c.String())
	if err != nil {
		t.Fatalf("%v\n%s", err, c)
	}
	if c.origins, again.origins = nil, nil; !reflect.DeepEqual(c, again) {
		t.Errorf("printed\n%s\nit loads to\n%s", c, again)
	}
	// Entries do not share inherited maps.
	a.Route.Topics["a"] = "changed"
	if c.Route.Topics["a"] != "b" || b.Route.Topics["a"] != "" {
		t.Error("maps are shared")
	}
	if c.Redacted().Outboxes[0].Route.Topics["a"] = "again"; a.Route.Topics["a"] != "changed" {
		t.Error("a redacted copy shares its maps")
	}
}

func TestOneSourceOrNone(t *testing.T) {
	c := Default()
	if s := c.Sources(); len(s) != 1 || s[0].Table != "public.outbox" || !reflect.DeepEqual(s[0].Route, c.Route) {
		t.Errorf("%+v", s)
	}
	for yaml, n := range map[string]int{
		"outboxes: []\n": 1, "messages: {prefix: x}\n": 1, "messages: {prefix: x}\noutbox: {table: \"\"}\n": 0,
		"outboxes: [{table: a.b}]\nmessages: {prefix: x}\n": 1, "outbox: {table: ''}\noutboxes: [{table: a.b}]\n": 1,
	} {
		if c, err := loadText(yaml); err != nil || len(c.Sources()) != n {
			t.Errorf("%q: %v", yaml, err)
		}
	}
}

func TestOutboxesRefused(t *testing.T) {
	for _, c := range []struct{ yaml, env, want string }{
		{yaml: "outbox: {table: a.b}\noutboxes:\n- table: c.d\n", want: "outboxes: outbox.table is set too (t.yaml:1:17); name all tables in outboxes, or only one in outbox"},
		{yaml: "outboxes:\n- table: c.d\n", env: "OUTBOXCDC_OUTBOX_TABLE=a.b", want: "outbox.table is set too (OUTBOXCDC_OUTBOX_TABLE)"},
		{yaml: "outboxes:\n- table: c.d\n- table: a.b\n- table: C.d\n", want: `t.yaml:4:10: outboxes[2].table: "C.d" is also the table of outboxes[0]`},
		{yaml: "outboxes:\n- columns: {id: x}\n", want: "outboxes[0].table: is missing"},
		{yaml: "outboxes:\n- table: x\n", want: `t.yaml:2:10: outboxes[0].table: "x" has no schema`},
		{yaml: "outboxes:\n- table: a.b\n  colums: {id: x}\n", want: `t.yaml:3:3: outboxes[0]: unknown key "colums"; did you mean "columns"?`},
		{yaml: "outboxes:\n- table: a.b\n- table: a.c\n  route: {topc: x}\n", want: `t.yaml:4:11: outboxes[1]: unknown key "topc"; did you mean "topic"?`},
		{yaml: "outboxes:\n- table: a.b\n  topic: x\n", want: `unknown key "topic"; did you mean "topic", under "route"?`},
		{yaml: "outboxes:\n- table: a.b\n  postgres: x\n", want: `known at the top level of the entry: table, columns, order, route`},
		{yaml: "outboxes:\n- table: a.b\n  route: {partitions: {x: 1}}\n", want: "t.yaml:3:23: outboxes[0].route.partitions: applies to all tables; set it at the top level, under route"},
		{yaml: "outboxes:\n- table: a.b\n  route: {missing_topic: poison}\n", want: "outboxes[0].route.missing_topic: applies to all tables"},
		{yaml: "outboxes:\n- table: a.b\n  route: {format: xml}\n", want: `outboxes[0].route.format: "xml" is unknown`},
		{yaml: "outboxes:\n- table: a.b\n  route: {topic: \"a b\"}\n", want: `t.yaml:3:18: outboxes[0].route.topic: "a b" has`},
		{yaml: "outboxes:\n- table: a.b\n  columns: {id: \"\"}\n", want: "t.yaml:3:17: outboxes[0].columns.id: is empty"},
		{yaml: "outboxes:\n- a.b\n", want: "t.yaml:2:3: outboxes[0]: must have keys and values: table, columns, order, route"},
		{yaml: "outboxes: {table: a.b}\n", want: "outboxes: must be a list of tables"},
		{yaml: "outboxes: a.b\n", want: "outboxes: a list of tables cannot be written as text"},
		{env: "OUTBOXCDC_OUTBOXES=a.b", want: "OUTBOXCDC_OUTBOXES: outboxes: a list of tables cannot be written as text; write it in a file"},
		{yaml: "outbox: {table: \"\"}\n", want: "outbox.table"},
		{yaml: "messages: {prefix: \"a\\0b\"}\n", want: "messages.prefix: contains a NUL"},
	} {
		var environ []string
		if c.env != "" {
			environ = []string{c.env}
		}
		if _, err := loadText(c.yaml, environ...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v\nwant %s", c.yaml, err, c.want)
		}
	}
	// An error in an inherited setting is reported once.
	_, err := loadText("route: {topic: \"a b\"}\noutboxes:\n- table: a.b\n- table: a.c\n")
	if err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
}

func TestSourceProblem(t *testing.T) {
	c, err := loadText(twoTables)
	must(t, err)
	for _, want := range []struct {
		i       int
		setting string
		text    string
	}{
		{1, "route.topic", "t.yaml:10:12: outboxes[1].route.topic: no"},
		{0, "route.topic", "t.yaml:4:16: route.topic: no (it applies to outboxes[0], which does not set route.topic)"},
		{0, "columns.payload", "t.yaml:3:22: outbox.columns.payload: no (it applies to outboxes[0], which does not set columns.payload)"},
		{1, "columns.id", "t.yaml:8:17: outboxes[1].columns.id: no"},
	} {
		if got := c.SourceProblem(want.i, want.setting, "no").Error(); got != want.text {
			t.Errorf("%s\nwant %s", got, want.text)
		}
	}
	if got := Default().SourceProblem(0, "columns.id", "no").Error(); got != "outbox.columns.id: no" {
		t.Error(got)
	}
}
