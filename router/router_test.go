package router

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/decoder"
)

var testPos = checkpoint.Position{SystemID: 7, Timeline: 1, CommitLSN: 0x1a2b, Ordinal: 3}

const testPosText = "1:7:1:0000000000001a2b:3"

// row returns a row of a table: name, value, name, value, …; a nil value is NULL. A name may have a type: "payload:17".
func row(fields ...any) *decoder.Event {
	ev := &decoder.Event{Relation: &decoder.Relation{OID: 1, Namespace: "public", Name: "outbox"}}
	for i := 0; i < len(fields); i += 2 {
		col := decoder.Column{Name: fields[i].(string), TypeOID: textOID}
		if name, oid, ok := strings.Cut(col.Name, ":"); ok {
			col.Name = name
			_, _ = fmt.Sscan(oid, &col.TypeOID)
		}
		ev.Relation.Columns = append(ev.Relation.Columns, col)
		v := decoder.Value{Null: true}
		if s, ok := fields[i+1].(string); ok {
			v = decoder.Value{Data: []byte(s)}
		}
		ev.Values = append(ev.Values, v)
	}
	return ev
}

// outbox returns a row of the bundled layout with some values replaced.
func outbox(replace ...any) *decoder.Event {
	ev := row("id:2950", "1b4e28ba-2fa1-11d2-883f-0016d3cca427", "aggregate_type", "order", "aggregate_id", "42",
		"event_type", "OrderPlaced", "payload:3802", `{"total": 12345678901234567890}`, "headers:3802", "{}",
		"created_at:1184", "2026-11-21 11:12:13.000001+00")
	for i := 0; i < len(replace); i += 2 {
		name, oid, typed := strings.Cut(replace[i].(string), ":")
		at := ev.Relation.Index(name)
		if typed {
			_, _ = fmt.Sscan(oid, &ev.Relation.Columns[at].TypeOID)
		}
		ev.Values[at] = decoder.Value{Null: true}
		if s, ok := replace[i+1].(string); ok {
			ev.Values[at] = decoder.Value{Data: []byte(s)}
		}
	}
	return ev
}

func newRouter(t testing.TB, change func(*Config)) *Router {
	t.Helper()
	c := DefaultConfig()
	if change != nil {
		change(&c)
	}
	r, err := New(c)
	must(t, err)
	return r
}

// show formats a record on one line; nil and empty differ.
func show(rec *Record) string {
	text := func(b []byte) string {
		if b == nil {
			return "nil"
		}
		return fmt.Sprintf("%q", b)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s key=%s by=%s value=%s", rec.Topic, text(rec.Key), text(rec.PartitionBy), text(rec.Value))
	for _, h := range rec.Headers {
		fmt.Fprintf(&b, " %s=%s", h.Name, text(h.Value))
	}
	return b.String()
}

func TestRoute(t *testing.T) {
	const id = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
	long := strings.Repeat("x", 300)
	tests := []struct {
		name   string
		change func(*Config)
		event  *decoder.Event
		want   string // the record
		poison Cause
		why    string // part of the poison's message
		topic  string // of the poison
	}{
		{
			name: "the bundled layout", event: outbox(),
			want: `outbox.event.order key="42" by="42" value="{\"total\": 12345678901234567890}" id="` + id + `" type="OrderPlaced" outboxcdc-position="` + testPosText + `"`,
		},
		{
			name: "no position header", event: outbox(), change: func(c *Config) { c.PositionHeader = false },
			want: `outbox.event.order key="42" by="42" value="{\"total\": 12345678901234567890}" id="` + id + `" type="OrderPlaced"`,
		},
		{
			name: "headers between type and position", event: outbox("headers", `{"b": "1", "a": null}`, "payload", "p"),
			want: `outbox.event.order key="42" by="42" value="p" id="` + id + `" type="OrderPlaced" b="1" a=nil outboxcdc-position="` + testPosText + `"`,
		},
		{
			name: "headers NULL", event: outbox("headers", nil, "payload", "p"),
			want: `outbox.event.order key="42" by="42" value="p" id="` + id + `" type="OrderPlaced" outboxcdc-position="` + testPosText + `"`,
		},
		{
			name: "event type NULL", event: outbox("event_type", nil, "payload", "p"),
			want: `outbox.event.order key="42" by="42" value="p" id="` + id + `" outboxcdc-position="` + testPosText + `"`,
		},
		{
			name: "event type empty", event: outbox("event_type", "", "payload", "p"),
			want: `outbox.event.order key="42" by="42" value="p" id="` + id + `" type="" outboxcdc-position="` + testPosText + `"`,
		},
		{
			name: "no optional columns", event: row("n", "17", "k", "a", "v", "w"),
			change: func(c *Config) {
				*c = Config{Topic: "all", Columns: Columns{ID: "n", AggregateID: "k", Payload: "v"}, NullKey: NullKeyPoison, NullPayload: NullPayloadPoison}
			},
			want: `all key="a" by="a" value="w" id="17"`,
		},
		{
			name: "other names, other order", event: row("v", "w", "what", "E", "more", `{"h": true}`, "k", "a", "kind", "x-y", "n", "17"),
			change: func(c *Config) {
				c.Columns = Columns{ID: "n", AggregateType: "kind", AggregateID: "k", EventType: "what", Payload: "v", Headers: "more"}
				c.PositionHeader = false
			},
			want: `outbox.event.x-y key="a" by="a" value="w" id="17" type="E" h="true"`,
		},
		// Keys.
		{name: "key empty", event: outbox("aggregate_id", "", "payload", "p"), change: noPositionHeader, want: `outbox.event.order key="" by="" value="p"`},
		{name: "key bytea", event: outbox("aggregate_id:17", `\x00ff41`, "payload", "p"), change: noPositionHeader, want: `outbox.event.order key="\x00\xffA" by="\x00\xffA" value="p"`},
		{name: "key bytea empty", event: outbox("aggregate_id:17", `\x`, "payload", "p"), change: noPositionHeader, want: `outbox.event.order key="" by="" value="p"`},
		{name: "key that looks like bytea", event: outbox("aggregate_id", `\x00`, "payload", "p"), change: noPositionHeader, want: `outbox.event.order key="\\x00" by="\\x00" value="p"`},
		{
			name: "key NULL", event: outbox("aggregate_id", nil, "payload", "p"), change: noPositionHeader,
			poison: NullKey, why: `"aggregate_id" is NULL`, topic: "outbox.event.order",
			want: `outbox.event.order key=nil by="` + id + `" value="p"`,
		},
		{
			name: "key NULL allowed", event: outbox("aggregate_id", nil, "payload", "p"), change: func(c *Config) { noPositionHeader(c); c.NullKey = NullKeyAllow },
			want: `outbox.event.order key=nil by="` + id + `" value="p"`,
		},
		// Payloads.
		{name: "payload bytea", event: outbox("payload:17", `\xFFadBE0a`), change: noPositionHeader, want: `outbox.event.order key="42" by="42" value="\xff\xad\xbe\n"`},
		{name: "payload bytea empty", event: outbox("payload:17", `\x`), change: noPositionHeader, want: `outbox.event.order key="42" by="42" value=""`},
		{name: "key and payload bytea", event: outbox("aggregate_id:17", `\x6b`, "payload:17", `\x76`), change: noPositionHeader, want: `outbox.event.order key="k" by="k" value="v"`},
		{name: "payload empty", event: outbox("payload", ""), change: noPositionHeader, want: `outbox.event.order key="42" by="42" value=""`},
		{
			name: "payload json as printed", event: outbox("payload:114", ` {"a" :1.50,"a":  9007199254740993, "é":"\u00e9"}`), change: noPositionHeader,
			want: `outbox.event.order key="42" by="42" value=" {\"a\" :1.50,\"a\":  9007199254740993, \"é\":\"\\u00e9\"}"`,
		},
		{name: "payload not UTF-8", event: outbox("payload", "\xff\xfe"), change: noPositionHeader, want: `outbox.event.order key="42" by="42" value="\xff\xfe"`},
		{name: "payload NULL", event: outbox("payload", nil), change: noPositionHeader, want: `outbox.event.order key="42" by="42" value=nil`},
		{name: "payload NULL as empty", event: outbox("payload", nil), change: func(c *Config) { noPositionHeader(c); c.NullPayload = NullPayloadEmpty }, want: `outbox.event.order key="42" by="42" value=""`},
		{
			name: "payload NULL as poison", event: outbox("payload", nil), change: func(c *Config) { noPositionHeader(c); c.NullPayload = NullPayloadPoison },
			poison: NullPayload, why: `"payload" is NULL`, topic: "outbox.event.order", want: `outbox.event.order key="42" by="42" value=nil`,
		},
		// Identity.
		{
			name: "id NULL", event: outbox("id", nil, "payload", "p"), poison: NullID, why: `"id" is NULL`, topic: "outbox.event.order",
			want: `outbox.event.order key="42" by="42" value="p" type="OrderPlaced" outboxcdc-position="` + testPosText + `"`,
		},
		{
			name: "id empty", event: outbox("id:25", "", "payload", "p"), poison: NullID, why: `the id is empty: column "id"`, topic: "outbox.event.order",
			want: `outbox.event.order key="42" by="42" value="p" type="OrderPlaced" outboxcdc-position="` + testPosText + `"`,
		},
		// Topics.
		{
			name: "topic of roles and columns", event: outbox("payload", "p", "created_at", "2026"), change: func(c *Config) {
				noPositionHeader(c)
				c.Topic = "{event_type}-{created_at}.{aggregate_type}{aggregate_id}_{id}"
			},
			want: `OrderPlaced-2026.order42_` + id + ` key="42" by="42" value="p"`,
		},
		{
			name: "a role before a column of its name", event: row("id", "i", "aggregate_type", "wrong", "kind", "right", "k", "a", "v", "p"),
			change: func(c *Config) {
				noPositionHeader(c)
				c.Topic, c.Columns = "{aggregate_type}", Columns{ID: "id", AggregateType: "kind", AggregateID: "k", Payload: "v"}
			},
			want: `right key="a" by="a" value="p"`,
		},
		{
			name: "every role under another name", event: row("a", "1", "b", "2", "c", "3", "d", "4", "v", "p"),
			change: func(c *Config) {
				noPositionHeader(c)
				c.Topic = "{event_type}{aggregate_id}{aggregate_type}{id}{v}"
				c.Columns = Columns{ID: "a", AggregateType: "b", AggregateID: "c", EventType: "d", Payload: "v"}
			},
			want: `4321p key="3" by="3" value="p"`,
		},
		{
			name: "a column, where the role has none", event: row("id", "i", "aggregate_type", "right", "k", "a", "v", "p"),
			change: func(c *Config) {
				noPositionHeader(c)
				c.Topic, c.Columns = "{aggregate_type}", Columns{ID: "id", AggregateID: "k", Payload: "v"}
			},
			want: `right key="a" by="a" value="p"`,
		},
		{
			name: "one topic and a key of its own, without an aggregate", event: row("id", "i", "k", "a", "v", "p"),
			change: func(c *Config) {
				noPositionHeader(c)
				c.Topic, c.Unmatched, c.Key, c.Columns = "orders", UnmatchedPoison, "{k}", Columns{ID: "id", Payload: "v"}
			},
			want: `orders key="a" by="a" value="p"`,
		},
		{
			name: "topic from NULL", event: outbox("aggregate_type", nil, "payload", "p"), change: noPositionHeader,
			poison: NoRoute, why: `"aggregate_type", which the topic contains, is NULL`, want: ` key="42" by="42" value="p"`,
		},
		{
			name: "topic with a space", event: outbox("aggregate_type", "my order", "payload", "p"), change: noPositionHeader,
			poison: IllegalTopic, why: `"outbox.event.my order" has the illegal character " "`, want: ` key="42" by="42" value="p"`,
		},
		{
			name: "topic with a letter of two bytes", event: outbox("aggregate_type", "caf\u00e9s", "payload", "p"), change: noPositionHeader,
			poison: IllegalTopic, why: `has the illegal character "\u00e9"`, want: ` key="42" by="42" value="p"`,
		},
		{
			name: "topic with a NUL", event: outbox("aggregate_type", "a\x00", "payload", "p"), change: noPositionHeader,
			poison: IllegalTopic, why: `illegal character "\x00"`, want: ` key="42" by="42" value="p"`,
		},
		{
			name: "topic empty", event: outbox("aggregate_type", "", "payload", "p"), change: func(c *Config) { noPositionHeader(c); c.Topic = "{aggregate_type}" },
			poison: IllegalTopic, why: "the topic is empty", want: ` key="42" by="42" value="p"`,
		},
		{
			name: "topic .", event: outbox("aggregate_type", ".", "payload", "p"), change: func(c *Config) { noPositionHeader(c); c.Topic = "{aggregate_type}" },
			poison: IllegalTopic, why: `cannot be "."`, want: ` key="42" by="42" value="p"`,
		},
		{
			name: "topic ..", event: outbox("aggregate_type", ".", "payload", "p"), change: func(c *Config) { noPositionHeader(c); c.Topic = ".{aggregate_type}" },
			poison: IllegalTopic, why: `cannot be ".."`, want: ` key="42" by="42" value="p"`,
		},
		{
			name: "topic ...", event: outbox("aggregate_type", "...", "payload", "p"), change: func(c *Config) { noPositionHeader(c); c.Topic = "{aggregate_type}" },
			want: `... key="42" by="42" value="p"`,
		},
		{
			name: "topic of 249", event: outbox("aggregate_type", long[:249], "payload", "p"), change: func(c *Config) { noPositionHeader(c); c.Topic = "{aggregate_type}" },
			want: long[:249] + ` key="42" by="42" value="p"`,
		},
		{
			name: "topic of 250", event: outbox("aggregate_type", long[:250], "payload", "p"), change: func(c *Config) { noPositionHeader(c); c.Topic = "{aggregate_type}" },
			poison: IllegalTopic, why: "has more than 249 characters", want: ` key="42" by="42" value="p"`,
		},
		{
			name: "topic of 249 and a letter", event: outbox("aggregate_type", long[:249], "payload", "p"), change: func(c *Config) { noPositionHeader(c); c.Topic = "a{aggregate_type}" },
			poison: IllegalTopic, why: `"a` + long[:79] + `"… has more`, want: ` key="42" by="42" value="p"`,
		},
		{
			name: "a long topic is cut between characters", event: outbox("aggregate_type", strings.Repeat("é", 300), "payload", "p"), change: func(c *Config) { noPositionHeader(c); c.Topic = "a{aggregate_type}" },
			poison: IllegalTopic, why: `"a` + strings.Repeat(`\u00e9`, 39) + `"… has more`, want: ` key="42" by="42" value="p"`,
		},
		// Poison headers: the record has the other headers.
		{
			name: "bad headers", event: outbox("headers", `{"a": "1", "id": "2"}`, "payload", "p"),
			poison: BadHeaders, why: `"headers" has a member "id", a reserved name`, topic: "outbox.event.order",
			want: `outbox.event.order key="42" by="42" value="p" id="` + id + `" type="OrderPlaced" outboxcdc-position="` + testPosText + `"`,
		},
		// With several causes the first is returned, and all parts are filled.
		{
			name: "everything is wrong", event: outbox("id", nil, "aggregate_type", nil, "aggregate_id", nil, "payload", nil, "event_type", nil, "headers", "[]"),
			change: func(c *Config) { noPositionHeader(c); c.NullPayload = NullPayloadPoison },
			poison: NullID, want: ` key=nil by=nil value=nil`,
		},
		{
			name: "no route and no key", event: outbox("aggregate_type", nil, "aggregate_id", nil, "payload", "p"), change: noPositionHeader,
			poison: NoRoute, want: ` key=nil by="` + id + `" value="p"`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRouter(t, tt.change)
			var rec Record
			for range 2 { // the second time from the caches
				err := r.Route(tt.event, testPos, &rec)
				var poison *Poison
				if errors.As(err, &poison) != (err != nil) {
					t.Fatalf("error is no poison: %v", err)
				}
				if want := tt.event.Values[tt.event.Relation.Index(r.config.Columns.ID)].Data; !bytes.Equal(rec.ID, want) {
					t.Errorf("record id %q, want %q", rec.ID, want)
				}
				got := show(&rec)
				if !strings.Contains(tt.want, " id=") {
					got, _, _ = strings.Cut(got, " id=") // the row does not test headers
				}
				if got != tt.want {
					t.Errorf("record\n got %s\nwant %s", got, tt.want)
				}
				if tt.poison == "" {
					if err != nil {
						t.Error(err)
					}
					continue
				}
				if poison == nil {
					t.Fatalf("no poison, want %s", tt.poison)
				}
				wantID := string(tt.event.Values[0].Data)
				if poison.Cause != tt.poison || poison.ID != wantID || poison.Position != testPos || poison.Topic != tt.topic || !strings.Contains(poison.Message, tt.why) {
					t.Errorf("poison %+v\nwant cause %s id %q topic %q, message with %s", poison, tt.poison, wantID, tt.topic, tt.why)
				}
			}
		})
	}
}

// noPositionHeader disables the position header.
func noPositionHeader(c *Config) { c.PositionHeader = false }

func TestSessionErrors(t *testing.T) {
	for name, ev := range map[string]*decoder.Event{
		"bytea escape format": outbox("payload:17", `\001abc`),
		"bytea of odd length": outbox("aggregate_id:17", `\x0`),
		"bytea without \\x":   outbox("payload:17", `0x00`),
		"bytea no digits":     outbox("payload:17", `\x0g`),
		"bytea empty text":    outbox("payload:17", ``),
		"values missing":      {Relation: outbox().Relation, Values: outbox().Values[:6]},
	} {
		var rec Record
		err := newRouter(t, nil).Route(ev, testPos, &rec)
		var poison *Poison
		if err == nil || errors.As(err, &poison) || !strings.Contains(err.Error(), "route "+testPosText+": ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestMissingColumn(t *testing.T) {
	for column, setting := range map[string]string{
		"id": "columns.id", "aggregate_type": "columns.aggregate_type", "aggregate_id": "columns.aggregate_id",
		"event_type": "columns.event_type", "payload": "columns.payload", "headers": "columns.headers", "created_at": "topic",
	} {
		ev := outbox()
		ev.Relation.Columns[ev.Relation.Index(column)].Name = "renamed"
		r := newRouter(t, func(c *Config) { c.Topic += "{created_at}" })
		for range 2 { // an error is not cached as success
			var rec Record
			for _, err := range []error{r.Bind(ev.Relation), r.Route(ev, testPos, &rec)} {
				var missing *MissingColumnError
				if !errors.As(err, &missing) {
					t.Fatalf("%s: %v", column, err)
				}
				if missing.Relation != "public.outbox" || missing.Column != column || missing.Setting != setting {
					t.Errorf("%s: %+v", column, missing)
				}
				if !strings.Contains(err.Error(), "renamed") {
					t.Errorf("%s: the error does not say which columns there are: %v", column, err)
				}
			}
		}
	}
	if err := newRouter(t, nil).Bind(outbox().Relation); err != nil {
		t.Error(err)
	}
}

// After an ALTER TABLE, rows of both versions are routed with their own version.
func TestVersions(t *testing.T) {
	r := newRouter(t, func(c *Config) { noPositionHeader(c); c.Columns.EventType, c.Columns.Headers = "", "" })
	old := outbox("payload", "old")
	altered := row("new", "x", "payload", "new", "aggregate_id", "43", "aggregate_type", "order", "id", "i")
	var rec Record
	for range 3 {
		for ev, want := range map[*decoder.Event]string{
			old:     `outbox.event.order key="42" by="42" value="old" id="1b4e28ba-2fa1-11d2-883f-0016d3cca427"`,
			altered: `outbox.event.order key="43" by="43" value="new" id="i"`,
		} {
			must(t, r.Route(ev, testPos, &rec))
			if got := show(&rec); got != want {
				t.Errorf("\n got %s\nwant %s", got, want)
			}
		}
	}
}

func TestSize(t *testing.T) {
	rec := Record{Topic: "t", Key: []byte("ab"), Value: []byte("cde"), Headers: []Header{{Name: "x", Value: []byte("yz")}, {Name: "nil"}}}
	if n := rec.Size(); n != 2+3+1+2+3 {
		t.Error(n)
	}
}

// must fails the test with an error that no step of it expects.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
