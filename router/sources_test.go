package router

import (
	"errors"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/decoder"
)

// inTable makes a row one of another table.
func inTable(source int, name string, ev *decoder.Event) *decoder.Event {
	ev.Relation.Source, ev.Relation.Name, ev.Relation.OID = source, name, uint32(10+source)
	return ev
}

func newSources(t *testing.T, changes ...func(*Config)) *Router {
	t.Helper()
	var all []Config
	for _, change := range changes {
		c := DefaultConfig()
		c.PositionHeader = false
		change(&c)
		all = append(all, c)
	}
	r, err := New(all...)
	must(t, err)
	return r
}

// Each table has its own mapping, for any order of rows and any state of the caches.
func TestSources(t *testing.T) {
	r := newSources(t,
		func(c *Config) {
			c.Topic, c.Replace, c.Unmatched = "a.{aggregate_type}", Replace{"(.*)_v1", "$1"}, UnmatchedKeep
		},
		func(c *Config) {
			c.Topic, c.Replace, c.NullPayload = "b.{table}.{aggregate_type}", Replace{"(.*)", "x$1"}, NullPayloadEmpty
			c.Columns = Columns{ID: "no", AggregateType: "kind", AggregateID: "who", Payload: "body"}
			c.Key, c.ID = "{who}/{kind}", "{table}:{no}"
		},
		func(c *Config) { c.Format, c.UpdateIsPoison = FormatEnvelope, true },
	)
	a := inTable(0, "orders", outbox("aggregate_type", "order_v1", "payload", "p"))
	b := inTable(1, "users", row("body:3802", nil, "who", "w", "kind", "order_v1", "no:20", "7"))
	c := inTable(2, "third", outbox())
	const id = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
	var rec Record
	for range 3 {
		for _, want := range []struct {
			ev   *decoder.Event
			text string
		}{
			{a, `a.order key="42" by="42" value="p" id="` + id + `" type="OrderPlaced"`},
			{b, `b.users.xorder_v1 key="w/order_v1" by="w/order_v1" value="" id="users:7"`},
			{a, `a.order key="42" by="42" value="p" id="` + id + `" type="OrderPlaced"`},
			{c, `"eventId\":\"` + id},
			{b, `b.users.xorder_v1 key="w/order_v1" by="w/order_v1" value="" id="users:7"`},
		} {
			must(t, r.Route(want.ev, testPos, &rec))
			if got := show(&rec); !strings.Contains(got, want.text) {
				t.Errorf("%s: %s\nwant %s", want.ev.Relation, got, want.text)
			}
		}
	}
	// Each table has its own policy for updates.
	for _, ev := range []*decoder.Event{a, b, c} {
		ev.Update = true
		if got, want := r.Skips(ev), ev != c; got != want {
			t.Errorf("an update of %s is skipped: %v, want %v", ev.Relation, got, want)
		}
		var p *Poison
		if err := r.Route(ev, testPos, &rec); !errors.As(err, &p) || p.Cause != Update {
			t.Errorf("an update of %s is %v", ev.Relation, err)
		}
	}
	if _, err := New(); err == nil {
		t.Error("a router without a source")
	}
}

// Ids that may be equal in two tables are refused if records of both tables may be in the same topic.
func TestConflictingIDs(t *testing.T) {
	idle := func(*Config) {}
	for _, c := range []struct {
		name    string
		a, b    func(*Config)
		aID     string // column and type; default: id:20
		bID     string
		refused bool
	}{
		{name: "bigint and one topic template", a: idle, b: idle, refused: true},
		{name: "text", aID: "id:25", bID: "id:25", a: idle, b: idle, refused: true},
		{name: "one is uuid", aID: "id:2950", a: idle, b: idle},
		{name: "both are uuid", aID: "id:2950", bID: "id:2950", a: idle, b: idle},
		{name: "the table in one id is not enough", a: func(c *Config) { c.ID = "{table}:{id}" }, b: idle, refused: true},
		{name: "the table in both", a: func(c *Config) { c.ID = "{table}:{id}" }, b: func(c *Config) { c.ID = "{table}:{id}" }},
		{name: "the table behind", a: func(c *Config) { c.ID = "{id}:{table}" }, b: func(c *Config) { c.ID = "{id}:{table}" }},
		{name: "the same constant", a: func(c *Config) { c.ID = "x{id}" }, b: func(c *Config) { c.ID = "x{id}" }, refused: true},
		{name: "one constant begins the other", a: func(c *Config) { c.ID = "x{id}" }, b: func(c *Config) { c.ID = "xy{id}" }, refused: true},
		{name: "other topics", a: func(c *Config) { c.Topic = "a.{aggregate_type}" }, b: func(c *Config) { c.Topic = "b.{aggregate_type}" }},
		{name: "other ends of topics", a: func(c *Config) { c.Topic = "{aggregate_type}.a" }, b: func(c *Config) { c.Topic = "{aggregate_type}.b" }},
		{name: "other topics, and one for the rest", a: func(c *Config) {
			c.Topic, c.Topics, c.Unmatched = "", map[string]string{"x": "a"}, "rest"
		}, b: func(c *Config) { c.Topic, c.Topics, c.Unmatched = "", map[string]string{"x": "b"}, "rest" }, refused: true},
		{name: "maps", a: func(c *Config) { c.Topic, c.Topics = "", map[string]string{"x": "a"} }, b: func(c *Config) { c.Topic, c.Topics = "", map[string]string{"x": "b"} }},
		{name: "a map into the other's template", a: func(c *Config) {
			c.Topic, c.Topics = "a.{aggregate_type}", map[string]string{"x": "b.x"}
		}, b: func(c *Config) { c.Topic = "b.{aggregate_type}" }, refused: true},
		{name: "kept as it is", a: func(c *Config) { c.Topic, c.Topics, c.Unmatched = "", map[string]string{"x": "a"}, UnmatchedKeep }, b: func(c *Config) { c.Topic = "b" }, refused: true},
		{name: "one fixed topic", a: func(c *Config) { c.Topic = "all" }, b: func(c *Config) { c.Topic = "all" }, refused: true},
		{name: "two fixed topics", a: func(c *Config) { c.Topic = "all" }, b: func(c *Config) { c.Topic = "more" }},
	} {
		for _, way := range []string{"relation", "catalog", "order"} {
			r := newSources(t, c.a, c.b)
			column := func(s string) string {
				if s == "" {
					return "id:20"
				}
				return s
			}
			a := inTable(0, "orders", outbox(column(c.aID), "1")).Relation
			b := inTable(1, "users", outbox(column(c.bID), "1")).Relation
			look := r.Bind
			switch way {
			case "catalog":
				look = r.Fits
			case "order":
				a, b = b, a
			}
			if err := look(a); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			err := look(b)
			var e *MissingColumnError
			if errors.As(err, &e) != c.refused {
				t.Errorf("%s, %s: %v", c.name, way, err)
			}
			if c.refused && (!strings.Contains(err.Error(), "public.orders") || !strings.Contains(err.Error(), "public.users") || !strings.Contains(err.Error(), "{table}:{id}")) {
				t.Errorf("%s: %v", c.name, err)
			}
		}
	}
}

// Unsuitable types are refused by Bind and by Fits. Fits accepts a missing column.
func TestTypesOfRoles(t *testing.T) {
	for _, c := range []struct {
		column string
		change func(*Config)
		want   string // "": suitable
	}{
		{"id:17", nil, `column "id" (named by route.id) is bytea`},
		{"aggregate_type:17", nil, `column "aggregate_type" (named by route.topic) is bytea`},
		{"aggregate_type:17", func(c *Config) { c.Topic, c.Unmatched = "", UnmatchedKeep }, `"aggregate_type" (named by outbox.columns.aggregate_type) is bytea`},
		{"event_type:17", nil, `column "event_type" (named by outbox.columns.event_type) is bytea`},
		{"headers:17", nil, `"headers" (named by outbox.columns.headers) is bytea, but has to be jsonb`},
		{"headers:23", nil, `has to be jsonb`},
		{"headers:114", nil, ""},
		{"headers:25", nil, ""},
		{"headers:16500", nil, ""}, // a domain
		{"id:20", nil, ""},
		{"id:1043", nil, ""},
		{"aggregate_type:16500", nil, ""}, // an enum
		{"aggregate_id:17", nil, ""},
		{"payload:17", nil, ""},
	} {
		r := newRouter(t, c.change)
		rel := outbox(c.column, "x").Relation
		for how, err := range map[string]error{"catalog": r.Fits(rel), "relation": r.Bind(rel)} {
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s, %s: %v, want %q", c.column, how, err, c.want)
			}
		}
	}
	r := newRouter(t, nil)
	rel := outbox("headers:17", "x").Relation
	rel.Columns[0].Name = "renamed"
	if err := r.Bind(rel); err == nil || !strings.Contains(err.Error(), `has no column "id"`) {
		t.Error(err)
	}
	if err := r.Fits(rel); err == nil || !strings.Contains(err.Error(), "headers") {
		t.Errorf("beside a column that is missing: %v", err)
	}
	rel.Columns[5].TypeOID = jsonbOID
	if err := r.Fits(rel); err != nil {
		t.Errorf("a column is missing: %v", err)
	}
}
