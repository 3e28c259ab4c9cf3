package router

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/outboxcdc/outboxcdc/decoder"
)

var messageRelation = &decoder.Relation{Namespace: "messages", Name: "outboxcdc", Source: 1, Columns: []decoder.Column{{Name: "content", TypeOID: byteaOID}}}

// messageOf returns the event of a logical message.
func messageOf(content string) *decoder.Event {
	return &decoder.Event{Relation: messageRelation, Values: []decoder.Value{{Data: []byte(content)}}}
}

// newMessages routes rows as source 0 and messages as source 1.
func newMessages(t testing.TB, change func(*Config)) *Router {
	t.Helper()
	rows, messages := DefaultConfig(), DefaultConfig()
	messages.Messages = true
	if change != nil {
		change(&messages)
	}
	r, err := New(rows, messages)
	must(t, err)
	return r
}

const fullBody = `{"id":"1b4e28ba-2fa1-11d2-883f-0016d3cca427","aggregate_type":"order","aggregate_id":"42","event_type":"OrderPlaced",` +
	`"payload":{"total": 12345678901234567890},"headers":{},"created_at":"2026-11-21 11:12:13.000001+00"}`

// A message gives the record that a row of the same content would give.
func TestMessageIsAsARow(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"raw":      nil,
		"envelope": func(c *Config) { c.Format = FormatEnvelope },
		"cloudevents": func(c *Config) {
			c.Format, c.Fields = FormatCloudEventsStructured, map[string]string{"source": "//x"}
		},
		"created_at": func(c *Config) { c.Timestamp, c.Headers = "created_at", []string{"created_at:at"} },
		"templates":  func(c *Config) { c.Topic, c.Key, c.ID = "{event_type}.x", "{aggregate_type}-{aggregate_id}", "m:{id}" },
	} {
		r := newMessages(t, change)
		c := DefaultConfig()
		if change != nil {
			change(&c)
		}
		rows, err := New(c)
		must(t, err)
		for _, c := range []struct {
			body string
			row  *decoder.Event
		}{
			{fullBody, outbox()},
			{
				strings.ReplaceAll(strings.ReplaceAll(fullBody, `{"total": 12345678901234567890}`, `{ "a" : [1,2 , 1.50] ,"b":"\u00e9"}`), `"headers":{}`, `"headers": {"x": "y", "n": 1.50}`),
				outbox("payload", `{ "a" : [1,2 , 1.50] ,"b":"\u00e9"}`, "headers", `{"x": "y", "n": 1.50}`),
			},
			{strings.ReplaceAll(fullBody, `"42"`, ` "q\"\\\/\n\té\u00e9\ud83d\ude00" `), outbox("aggregate_id", "q\"\\/\n\téé😀")},
			{strings.ReplaceAll(fullBody, `"42"`, `42`), outbox()},
			{strings.ReplaceAll(fullBody, `{"total": 12345678901234567890}`, `"text"`), outbox("payload", `"text"`)},
			{strings.ReplaceAll(fullBody, `{"total": 12345678901234567890}`, `null`), outbox("payload", `null`)},
			{strings.ReplaceAll(fullBody, `{"total": 12345678901234567890}`, `1e400`), outbox("payload", `1e400`)},
			{strings.ReplaceAll(fullBody, `"payload":{"total": 12345678901234567890},`, ``), outbox("payload", nil)},
			{strings.ReplaceAll(fullBody, `"headers":{},`, ``), outbox("headers", nil)},
			{strings.ReplaceAll(fullBody, `"headers":{}`, `"headers":null`), outbox("headers", nil)},
			{strings.ReplaceAll(fullBody, `2026-11-21 11:12:13.000001+00`, `2026-11-21T13:12:13.000001+02:00`), outbox()},
			{"\n\t{ " + strings.ReplaceAll(fullBody[1:], `"payload"`, ` "more" : [{"id":"x"}] , "p\u0061yload" `), outbox()},
		} {
			var got, want Record
			gotErr := r.Route(messageOf(c.body), testPos, &got)
			wantErr := rows.Route(c.row, testPos, &want)
			if (gotErr == nil) != (wantErr == nil) || show(&got) != show(&want) || got.Timestamp != want.Timestamp {
				t.Errorf("%s: %s\n got %s at %d (%v)\nwant %s at %d (%v)", name, c.body, show(&got), got.Timestamp, gotErr, show(&want), want.Timestamp, wantErr)
			}
		}
	}
}

func TestMessageIsPoison(t *testing.T) {
	without := func(s string) string { return strings.Replace(fullBody, s, "", 1) }
	put := func(old, s string) string { return strings.Replace(fullBody, old, s, 1) }
	for _, c := range []struct {
		body  string
		cause Cause
		why   string
		whole bool // the dead letter's value is the whole body
	}{
		{"", BadPayload, `the body of a logical message with the prefix "outboxcdc" is not valid JSON`, true},
		{"x", BadPayload, "is not valid JSON", true},
		{`{"id":"x"`, BadPayload, "is not valid JSON", true},
		{"[1]", BadPayload, "is not a JSON object", true},
		{`"text"`, BadPayload, "is not a JSON object", true},
		{"{\"id\":\"\xff\"}", BadPayload, "is not UTF-8", true},
		{fullBody + "{}", BadPayload, "is not valid JSON", true},
		{put(`"42"`, `{"a":1}`), BadPayload, "has a member aggregate_id that is not text", false},
		{put(`"order"`, `["x"]`), BadPayload, "has a member aggregate_type that is not text", false},
		{put(`"42"`, `"a\u0000b"`), BadPayload, `has a member aggregate_id that holds \u0000`, false},
		{put(`"42"`, `"a\ud800b"`), BadPayload, "has a member aggregate_id that holds half a surrogate pair", false},
		{put(`"headers":{}`, `"headers":{},"id":"second"`), BadPayload, "has the member id twice", false},
		{put(`"headers":{}`, `"headers":{},"\u0069d":"second"`), BadPayload, "has the member id twice", false},
		{without(`"id":"1b4e28ba-2fa1-11d2-883f-0016d3cca427",`), NullID, `"id" is NULL`, false},
		{put(`"id":"1b4e28ba-2fa1-11d2-883f-0016d3cca427"`, `"id":""`), NullID, `the id is empty: column "id"`, false},
		{put(`"42"`, `null`), NullKey, `"aggregate_id" is NULL`, false},
		{without(`"aggregate_type":"order",`), NoRoute, `"aggregate_type"`, false},
		{put(`"headers":{}`, `"headers":[1]`), BadHeaders, "is not a JSON object", false},
		{put(`"headers":{}`, `"headers":"x"`), BadHeaders, "is not a JSON object", false},
		{put(`"headers":{}`, `"headers":{"id":"x"}`), BadHeaders, "a reserved name", false},
	} {
		r := newMessages(t, nil)
		var rec Record
		err := r.Route(messageOf(c.body), testPos, &rec)
		var p *Poison
		if !errors.As(err, &p) || p.Cause != c.cause || !strings.Contains(p.Message, c.why) || p.Position != testPos {
			t.Errorf("%s: %v\nwant %s: %s", c.body, err, c.cause, c.why)
			continue
		}
		if strings.Contains(p.Message, "total") {
			t.Errorf("the payload is in %s", p.Message)
		}
		if c.whole && string(rec.Value) != c.body || !c.whole && string(rec.Value) != `{"total": 12345678901234567890}` {
			t.Errorf("%s: the dead letter's value is %q", c.body, rec.Value)
		}
		if !c.whole && c.cause == BadPayload && p.ID != "1b4e28ba-2fa1-11d2-883f-0016d3cca427" {
			t.Errorf("%s: the id is %q", c.body, p.ID)
		}
		// The next message has nothing of this one.
		if err := r.Route(messageOf(fullBody), testPos, &rec); err != nil || !strings.Contains(show(&rec), `key="42"`) {
			t.Errorf("after %s: %v %s", c.body, err, show(&rec))
		}
	}
}

// Rows and messages in turn, as in a transaction that writes both.
func TestMessagesBesideRows(t *testing.T) {
	r := newMessages(t, func(c *Config) { c.Topic = "messages.{table}" })
	ev := outbox()
	var rec Record
	for range 3 {
		if err := r.Route(ev, testPos, &rec); err != nil || rec.Topic != "outbox.event.order" {
			t.Errorf("%v %s", err, rec.Topic)
		}
		if err := r.Route(messageOf(fullBody), testPos, &rec); err != nil || rec.Topic != "messages.outboxcdc" {
			t.Errorf("%v %s", err, rec.Topic)
		}
	}
	if r.MessageSource() != 1 || newRouter(t, nil).MessageSource() != -1 {
		t.Error("the wrong source is that of messages")
	}
	// A table whose ids are numbers, beside messages: ids of messages are not compared.
	if err := r.Bind(outbox("id:20", "1").Relation); err != nil {
		t.Error(err)
	}
}

// Validate finds columns that a message does not have.
func TestMessageConfig(t *testing.T) {
	for want, change := range map[string]func(*Config){
		`headers: "tenant" is not a member of a logical message; the members are id, aggregate_type, aggregate_id, event_type, payload, headers, created_at`: func(c *Config) {
			c.Headers = []string{"tenant"}
		},
		`topic: "tenant" is not a member`:    func(c *Config) { c.Topic = "{tenant}" },
		`partition: "shard" is not a member`: func(c *Config) { c.Partition = "shard" },
		`partition: "event_type" is text`:    func(c *Config) { c.Partition = "event_type" },
	} {
		c := DefaultConfig()
		c.Messages = true
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
}

// FuzzMessage: no body causes a panic. An accepted body is a JSON object in UTF-8 with the bytes of the payload, key
// and id are valid text, and encoding/json finds the same members.
func FuzzMessage(f *testing.F) {
	for _, s := range []string{
		fullBody, "{}", "[]", `{"id":1,"aggregate_id":"\u0061","payload":[1, {"a":"}\""}],"headers":{"a":null}}`, `{"id":"x","id":"y"}`,
		"{\"payload\" :\t\"\\\"\" }", `{"aggregate_type":true,"event_type":null,"created_at":"2026-11-21T11:12:13Z"}`, `{"aggregate_id":"\ud83d\ude00"}`,
	} {
		f.Add([]byte(s))
	}
	r := newMessages(f, func(c *Config) {
		c.NullKey, c.Topic, c.PositionHeader = NullKeyAllow, "all", false
		c.Columns.EventType = ""
	})
	f.Fuzz(func(t *testing.T, content []byte) {
		before := bytes.Clone(content)
		var rec Record
		err := r.Route(&decoder.Event{Relation: messageRelation, Values: []decoder.Value{{Data: content}}}, testPos, &rec)
		if !bytes.Equal(before, content) {
			t.Fatal("the body was written to")
		}
		var p *Poison
		if err != nil {
			if !errors.As(err, &p) || p.Cause == "" || p.Message == "" {
				t.Fatalf("%q: %v", content, err)
			}
			return
		}
		var want struct {
			ID          any             `json:"id"`
			AggregateID any             `json:"aggregate_id"`
			Payload     json.RawMessage `json:"payload"`
		}
		d := json.NewDecoder(bytes.NewReader(content))
		d.UseNumber()
		if !utf8.Valid(content) || !json.Valid(content) || d.Decode(&want) != nil {
			t.Fatalf("%q was accepted", content)
		}
		// encoding/json compares names without case, so it may have read another member.
		if lower := bytes.ToLower(content); !bytes.Equal(lower, content) && bytes.Contains(lower, []byte(`aggregate_id`)) {
			return
		}
		if !utf8.Valid(rec.Key) || !utf8.Valid(rec.ID) || bytes.IndexByte(rec.Key, 0) >= 0 {
			t.Fatalf("%q: key %q, id %q", content, rec.Key, rec.ID)
		}
		if rec.Value != nil && (!json.Valid(rec.Value) || !bytes.Contains(content, rec.Value)) {
			t.Fatalf("%q: value %q", content, rec.Value)
		}
		if key, ok := want.AggregateID.(string); ok && rec.Key != nil && string(rec.Key) != key {
			t.Fatalf("%q: key %q, want %q", content, rec.Key, key)
		}
	})
}
