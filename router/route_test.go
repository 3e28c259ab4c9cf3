package router

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/decoder"
)

// TestTopics: Topics, then regular expression and template, then the policy Unmatched.
func TestTopics(t *testing.T) {
	const order = `^([a-z]+)_v(?P<version>\d)`
	tests := []struct {
		name   string
		change func(*Config)
		typ    any // of the row
		want   string
		poison Cause
	}{
		{name: "map", change: func(c *Config) { c.Topics = map[string]string{"order": "orders"} }, typ: "order", want: "orders"},
		{name: "not in the map", change: func(c *Config) { c.Topics = map[string]string{"order": "orders"} }, typ: "user", want: "outbox.event.user"},
		{name: "map alone", change: func(c *Config) { c.Topic, c.Topics = "", map[string]string{"order": "orders"} }, typ: "user", poison: NoRoute},
		{name: "map alone, NULL", change: func(c *Config) { c.Topic, c.Topics = "", map[string]string{"order": "orders"} }, typ: nil, poison: NoRoute},
		{name: "map alone, keep", change: func(c *Config) { c.Topic, c.Unmatched = "", UnmatchedKeep }, typ: "user", want: "user"},
		{name: "map alone, a topic", change: func(c *Config) { c.Topic, c.Unmatched = "", "rest" }, typ: "user", want: "rest"},
		{name: "regex", change: func(c *Config) { c.Replace = Replace{order, "$1.${version}"} }, typ: "order_v2", want: "outbox.event.order.2"},
		{name: "regex makes all of it", change: func(c *Config) { c.Topic, c.Replace = "{aggregate_type}", Replace{"(.*)", "shop.$1"} }, typ: "order", want: "shop.order"},
		{name: "regex and map", change: func(c *Config) {
			c.Topics, c.Replace = map[string]string{"order_v2": "orders"}, Replace{order, "$1"}
		}, typ: "order_v2", want: "orders"},
		{name: "a part matches", change: func(c *Config) { c.Replace = Replace{"ord", "x"} }, typ: "order", poison: NoRoute},
		{name: "no match, keep", change: func(c *Config) { c.Replace, c.Unmatched = Replace{"x", "y"}, UnmatchedKeep }, typ: "order", want: "order"},
		{name: "no match, keep, illegal", change: func(c *Config) { c.Replace, c.Unmatched = Replace{"x", "y"}, UnmatchedKeep }, typ: "or der", poison: IllegalTopic},
		{name: "no match, a topic", change: func(c *Config) { c.Replace, c.Unmatched = Replace{"x", "y"}, "rest" }, typ: "order", want: "rest"},
		{name: "regex, NULL", change: func(c *Config) { c.Replace = Replace{"x", "y"} }, typ: nil, poison: NoRoute},
		{name: "replaced by nothing", change: func(c *Config) { c.Topic, c.Replace = "{aggregate_type}", Replace{".*", ""} }, typ: "order", poison: IllegalTopic},
		{name: "the position topic", change: func(c *Config) { c.Topic, c.PositionTopic = "{aggregate_type}", "positions" }, typ: "positions", poison: IllegalTopic},
		{name: "the position topic, replaced", change: func(c *Config) {
			c.Topic, c.PositionTopic, c.Replace = "{aggregate_type}", "positions", Replace{"x(.*)", "$1"}
		}, typ: "xpositions", poison: IllegalTopic},
		{name: "the position topic, keep", change: func(c *Config) {
			c.Replace, c.Unmatched, c.PositionTopic = Replace{"x", "y"}, UnmatchedKeep, "positions"
		}, typ: "positions", poison: IllegalTopic},
		{name: "the dead-letter topic", change: func(c *Config) { c.Topic, c.DeadLetterTopic = "{aggregate_type}", "dead" }, typ: "dead", poison: IllegalTopic},
		{name: "a topic of Kafka's", change: func(c *Config) { c.Topic = "{aggregate_type}" }, typ: "__consumer_offsets", poison: IllegalTopic},
		{name: "one underscore", change: func(c *Config) { c.Topic = "{aggregate_type}" }, typ: "_order", want: "_order"},
		{name: "further columns", change: func(c *Config) { c.Topic = "{table}.{event_type}" }, typ: "order", want: "outbox.OrderPlaced"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newRouter(t, test.change)
			for range 2 { // the second time from the caches
				var rec Record
				err := r.Route(outbox("aggregate_type", test.typ), testPos, &rec)
				if p, _ := errors.AsType[*Poison](err); (p == nil) != (test.poison == "") || p != nil && p.Cause != test.poison || err != nil && p == nil {
					t.Fatalf("got %v, want %q", err, test.poison)
				}
				if rec.Topic != test.want {
					t.Fatalf("topic %q, want %q", rec.Topic, test.want)
				}
			}
		})
	}
}

// TestKeyAndID: templates over any column.
func TestKeyAndID(t *testing.T) {
	ev := func(more ...any) *decoder.Event {
		return row(append([]any{"id:20", "7", "tenant", "eu", "aggregate_type", "order", "aggregate_id", "42", "event_type", "x", "payload", "p", "headers", nil, "raw:17", `\x00ff`}, more...)...)
	}
	tests := []struct {
		key, id string
		ev      *decoder.Event
		want    string
		poison  Cause
	}{
		{key: "{tenant}:{aggregate_id}", ev: ev(), want: `key="eu:42" by="eu:42" id="7"`},
		{key: "all", ev: ev(), want: `key="all" by="all" id="7"`},
		{key: "{raw}", ev: ev(), want: `key="\x00\xff" by="\x00\xff" id="7"`},
		{id: "{table}:{id}", ev: ev(), want: `key="42" by="42" id="outbox:7"`},
		{id: "{table}:{id}", ev: ev("table", "t"), want: `key="42" by="42" id="t:7"`}, // the table has a column of that name
		{key: "{tenant}{gone}", ev: ev("gone", nil), want: `key=nil by="7" id="7"`, poison: NullKey},
		{id: "{gone}/{id}", ev: ev("gone", nil), want: `key="42" by="42" id=nil`, poison: NullID},
		{id: "{table}:{gone}", ev: ev("gone", ""), want: `key="42" by="42" id=nil`, poison: NullID},
		{id: "{gone}:{id}", ev: ev("gone", ""), want: `key="42" by="42" id=":7"`},
	}
	for _, test := range tests {
		r := newRouter(t, func(c *Config) { c.Key, c.ID, c.PositionHeader = test.key, test.id, false; c.Columns.EventType = "" })
		var rec Record
		err := r.Route(test.ev, testPos, &rec)
		if p, _ := errors.AsType[*Poison](err); (p == nil) != (test.poison == "") || p != nil && p.Cause != test.poison || err != nil && p == nil {
			t.Errorf("key %q, id %q: %v, want %q", test.key, test.id, err, test.poison)
		}
		text := func(b []byte) string {
			if b == nil {
				return "nil"
			}
			return fmt.Sprintf("%q", b)
		}
		if got := fmt.Sprintf("key=%s by=%s id=%s", text(rec.Key), text(rec.PartitionBy), text(rec.ID)); got != test.want {
			t.Errorf("key %q, id %q: %s, want %s", test.key, test.id, got, test.want)
		}
	}
}

// TestExtraHeaders: additional columns as headers, also with another name, replace members of the headers column.
func TestExtraHeaders(t *testing.T) {
	r := newRouter(t, func(c *Config) { c.Headers, c.PositionHeader = []string{"tenant", "created:createdAt", "gone"}, false })
	ev := outbox("headers", `{"a": "1", "tenant": "no", "createdAt": 2, "tenant": "neither"}`, "payload", "p")
	for name, v := range map[string]decoder.Value{"tenant": {Data: []byte("eu")}, "created": {Data: []byte("now")}, "gone": {Null: true}} {
		ev.Relation.Columns = append(ev.Relation.Columns, decoder.Column{Name: name, TypeOID: textOID})
		ev.Values = append(ev.Values, v)
	}
	var rec Record
	must(t, r.Route(ev, testPos, &rec))
	_, headers, _ := strings.Cut(show(&rec), ` type=`)
	if want := `"OrderPlaced" a="1" tenant="eu" createdAt="now" gone=nil`; headers != want {
		t.Errorf("%s, want %s", headers, want)
	}
}

// TestPartitionAndTimestamp: valid and invalid partitions and timestamps, from columns and from the commit.
func TestPartitionAndTimestamp(t *testing.T) {
	day := time.Date(2026, 11, 21, 11, 12, 13, 0, time.UTC).UnixMilli()
	tests := []struct {
		oid       int
		value     any
		partition int32
		timestamp int64
		poison    [2]Cause // as partition, as timestamp
	}{
		{oid: int4OID, value: "0", partition: 0, timestamp: 0},
		{oid: int8OID, value: "2147483647", partition: 2147483647, timestamp: 2147483647000},
		{oid: int8OID, value: "2147483648", partition: -1, timestamp: 2147483648000, poison: [2]Cause{BadPartition, ""}},
		{oid: int8OID, value: "-1", partition: -1, poison: [2]Cause{BadPartition, BadTimestamp}},
		{oid: int8OID, value: nil, partition: -1},
		{oid: int8OID, value: fmt.Sprint(day / 1000), partition: 1795259533, timestamp: day},
		{oid: int8OID, value: fmt.Sprint(day), partition: -1, timestamp: day, poison: [2]Cause{BadPartition, ""}},
		{oid: int8OID, value: fmt.Sprint(day*1000 + 999), partition: -1, timestamp: day, poison: [2]Cause{BadPartition, ""}},
		{oid: int8OID, value: fmt.Sprint(day * 1_000_000), partition: -1, poison: [2]Cause{BadPartition, BadTimestamp}},
		{oid: numericOID, value: "1795259533.000999", timestamp: day},
		{oid: numericOID, value: "1700000000.001", timestamp: 1700000000001},
		{oid: numericOID, value: "1795259533", timestamp: day},
		{oid: numericOID, value: fmt.Sprint(day) + ".999", timestamp: day},
		{oid: numericOID, value: fmt.Sprint(day) + "999.5", timestamp: day},
		{oid: numericOID, value: "-0.5", poison: [2]Cause{"", BadTimestamp}},
		{oid: numericOID, value: "1" + strings.Repeat("0", 30) + ".0", poison: [2]Cause{"", BadTimestamp}},
		{oid: numericOID, value: "NaN", poison: [2]Cause{"", BadTimestamp}},
		{oid: timestamptzOID, value: "2026-11-21 11:12:13+00", timestamp: day},
		{oid: timestamptzOID, value: "2026-11-21 11:12:13.000999+00", timestamp: day},
		{oid: timestampOID, value: "2026-11-21 11:12:13.5", timestamp: day + 500},
		{oid: timestampOID, value: "infinity", poison: [2]Cause{"", BadTimestamp}},
		{oid: timestampOID, value: "2261-12-31 23:59:59.999", timestamp: 9214646399999},
		{oid: timestampOID, value: "2262-01-01 00:00:00", poison: [2]Cause{"", BadTimestamp}},
		{oid: timestamptzOID, value: "9999-12-31 00:00:00+00", poison: [2]Cause{"", BadTimestamp}},
		{oid: numericOID, value: "9214646400", poison: [2]Cause{"", BadTimestamp}},
		{oid: timestampOID, value: "1969-12-31 23:59:59.999", poison: [2]Cause{"", BadTimestamp}},
		{oid: timestampOID, value: "0044-03-15 12:00:00 BC", poison: [2]Cause{"", BadTimestamp}},
		{oid: timestamptzOID, value: "12026-11-21 11:12:13+00", poison: [2]Cause{"", BadTimestamp}},
	}
	for n, test := range slices.Concat(tests, tests) {
		for i, set := range []func(*Config){func(c *Config) { c.Partition = "x" }, func(c *Config) { c.Timestamp = "x" }} {
			ev := outbox()
			column := decoder.Column{Name: "x", TypeOID: uint32(test.oid)}
			if n >= len(tests) { // a domain
				column.TypeOID, ev.Relation.BaseTypes = 16400, map[uint32]uint32{16400: uint32(test.oid)}
			}
			ev.Relation.Columns = append(ev.Relation.Columns, column)
			v := decoder.Value{Null: true}
			if s, ok := test.value.(string); ok {
				v = decoder.Value{Data: []byte(s)}
			}
			ev.Values = append(ev.Values, v)
			integer := test.oid == int4OID || test.oid == int8OID
			r := newRouter(t, set)
			if i == 0 && !integer {
				if err := r.Bind(ev.Relation); err == nil || !strings.Contains(err.Error(), `column "x" (named by route.partition) is `) {
					t.Errorf("%d as partition: %v", test.oid, err)
				}
				continue
			}
			var rec Record
			err := r.Route(ev, testPos, &rec)
			if p, _ := errors.AsType[*Poison](err); (p == nil) != (test.poison[i] == "") || p != nil && p.Cause != test.poison[i] {
				t.Errorf("%v of type %d: %v, want %q", test.value, test.oid, err, test.poison[i])
			}
			got := rec.Partition
			if !rec.OwnPartition {
				got = -1
			}
			if i == 0 && got != test.partition || i == 1 && rec.Timestamp != test.timestamp {
				t.Errorf("%v of type %d: partition %d, timestamp %d", test.value, test.oid, rec.Partition, rec.Timestamp)
			}
		}
	}
	var rec Record
	ev := outbox()
	ev.Begin.CommitTime = time.UnixMilli(day)
	if err := newRouter(t, func(c *Config) { c.Timestamp = TimestampCommit }).Route(ev, testPos, &rec); err != nil || rec.Timestamp != day {
		t.Errorf("commit: %v, %d", err, rec.Timestamp)
	}
	if err := newRouter(t, nil).Route(ev, testPos, &rec); err != nil || rec.Timestamp != 0 || rec.OwnPartition {
		t.Errorf("produce: %v, %d, partition %d", err, rec.Timestamp, rec.Partition)
	}
}

// TestUnusableTypes: unsuitable columns are refused when the relation is announced.
func TestUnusableTypes(t *testing.T) {
	for want, change := range map[string]func(*Config){
		`column "event_type" (named by route.timestamp) is text, but has to be timestamptz`: func(c *Config) { c.Timestamp = "event_type" },
		`column "payload" (named by route.key) is bytea`:                                    func(c *Config) { c.Key = "{aggregate_id}:{payload}" },
		`has no column "nope" (named by route.headers)`:                                     func(c *Config) { c.Headers = []string{"nope:x"} },
		`has no column "nope" (named by route.id)`:                                          func(c *Config) { c.ID = "{nope}" },
	} {
		if err := newRouter(t, change).Bind(outbox("payload:17", `\x`).Relation); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestBlankIsNull: a payload that is empty or only white space is a tombstone, as in Debezium.
func TestBlankIsNull(t *testing.T) {
	r := newRouter(t, func(c *Config) { c.BlankIsNull = true })
	for value, null := range map[string]bool{"": true, " \t\n": true, " x": false, "{}": false, "\u00a0": false} {
		var rec Record
		if err := r.Route(outbox("payload:25", value), testPos, &rec); err != nil || (rec.Value == nil) != null {
			t.Errorf("%q: %v, %q", value, err, rec.Value)
		}
	}
	var rec Record
	if err := r.Route(outbox("payload:17", `\x`), testPos, &rec); err != nil || rec.Value == nil {
		t.Errorf("empty bytea: %v, %q", err, rec.Value)
	}
}

// FuzzRoute: for any row there is no panic, the topic is legal, and reserved header names occur once.
func FuzzRoute(f *testing.F) {
	f.Add("order_v1", "k", `{"a": 1}`, "2026-11-21 11:12:13+00", "3")
	f.Add("", "", `{"tenant": null}`, "infinity", "-1")
	r, err := New(Config{
		Topic: "{aggregate_type}.{event_type}", Topics: map[string]string{"a": "b"}, Replace: Replace{`([a-z]+)(?P<v>_v\d)?`, "${1}x$v"}, Unmatched: UnmatchedKeep,
		Columns: DefaultConfig().Columns, Key: "{aggregate_id}-{event_type}", ID: "{table}:{id}", Headers: []string{"tenant"}, Partition: "part", Timestamp: "at",
		NullKey: NullKeyPoison, NullPayload: NullPayloadTombstone, PositionHeader: true,
	})
	must(f, err)
	f.Fuzz(func(t *testing.T, typ, key, headers, at, part string) {
		ev := outbox("aggregate_type", typ, "aggregate_id", key, "headers", headers)
		for _, c := range []struct {
			name, value string
			oid         uint32
		}{{"tenant", key, textOID}, {"at", at, timestamptzOID}, {"part", part, int8OID}} {
			ev.Relation.Columns = append(ev.Relation.Columns, decoder.Column{Name: c.name, TypeOID: c.oid})
			ev.Values = append(ev.Values, decoder.Value{Data: []byte(c.value)})
		}
		var rec Record
		err := r.Route(ev, testPos, &rec)
		if _, poison := errors.AsType[*Poison](err); err != nil && !poison {
			t.Fatal(err)
		}
		if rec.Topic != "" && checkTopic([]byte(rec.Topic)) != "" {
			t.Fatalf("topic %q", rec.Topic)
		}
		count := map[string]int{}
		for _, h := range rec.Headers {
			count[h.Name]++
		}
		for _, name := range []string{"id", "type", "tenant", headerPosition} {
			if count[name] != 1 {
				t.Fatalf("%d headers %s", count[name], name)
			}
		}
		if rec.Timestamp < 0 || rec.Partition < 0 {
			t.Fatalf("timestamp %d, partition %d", rec.Timestamp, rec.Partition)
		}
	})
}

// With IgnoreMissing, columns of headers, envelope and partition may be missing. Columns of roles must exist.
func TestIgnoreMissing(t *testing.T) {
	c := DefaultConfig()
	c.IgnoreMissing, c.PositionHeader, c.Partition = true, false, "shard"
	c.Headers = []string{"tenant", "region:where"}
	r, err := New(c)
	must(t, err)
	route := func(ev *decoder.Event) string {
		t.Helper()
		var rec Record
		must(t, r.Route(ev, testPos, &rec))
		return show(&rec)
	}
	bare := route(outbox("headers", nil))
	if strings.Contains(bare, "tenant") || strings.Contains(bare, "where") {
		t.Errorf("headers of columns that are missing: %s", bare)
	}
	ev := outbox("headers", nil)
	with := row("tenant", "a", "region", "b", "shard:23", "3")
	ev.Relation.Columns, ev.Values = append(ev.Relation.Columns, with.Relation.Columns...), append(ev.Values, with.Values...)
	if got := route(ev); !strings.Contains(got, `tenant="a" where="b"`) || got == bare {
		t.Errorf("with the columns: %s", got)
	}
	if needs := strings.Join(c.Needs(), " "); needs != "aggregate_id aggregate_type event_type headers id payload" {
		t.Errorf("it needs %s", needs)
	}

	c.Format, c.Headers, c.Partition = FormatEnvelope, nil, ""
	c.Fields = map[string]string{"aggregateId": "{region}-{aggregate_id}", "aggregateType": "{tenant}", "eventId": "", "occurredAt": "", "traceId": "", "eventType": ""}
	if r, err = New(c); err != nil {
		t.Fatal(err)
	}
	var rec Record
	if err := r.Route(outbox("payload", "1"), testPos, &rec); err != nil || string(rec.Value) != `{"schemaVersion":1,"data":1}` {
		t.Errorf("%v: %s", err, rec.Value)
	}

	c.IgnoreMissing = false
	if r, err = New(c); err != nil {
		t.Fatal(err)
	}
	if err := r.Bind(outbox().Relation); err == nil {
		t.Error("without the setting a missing column is no error")
	}
	c.IgnoreMissing, c.Columns.EventType = true, "kind"
	if r, err = New(c); err != nil {
		t.Fatal(err)
	}
	if err := r.Bind(outbox().Relation); err == nil || !strings.Contains(err.Error(), "kind") {
		t.Errorf("a role's column is missing: %v", err)
	}
}
