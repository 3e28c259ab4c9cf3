package router

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/outboxcdc/outboxcdc/decoder"
)

var committed = time.Date(2026, 11, 21, 11, 12, 13, 1000, time.UTC)

// envelopeRow returns a row in a transaction, and a router with the envelope format.
func envelopeRow(t testing.TB, ev *decoder.Event, change func(*Config)) (*Router, *decoder.Event) {
	t.Helper()
	ev.Begin = decoder.Begin{CommitTime: committed.In(time.FixedZone("", 3600))}
	return newRouter(t, func(c *Config) {
		c.Format = FormatEnvelope
		if change != nil {
			change(c)
		}
	}), ev
}

func onlyFields(fields map[string]string) func(*Config) {
	return func(c *Config) {
		c.Fields = map[string]string{"eventId": "", "eventType": "", "schemaVersion": "", "occurredAt": "", "traceId": "", "aggregateType": "", "aggregateId": ""}
		for name, s := range fields {
			c.Fields[name] = s
		}
	}
}

func TestEnvelope(t *testing.T) {
	const trace = `{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}`
	column := func(name string, value any) *decoder.Event { // an additional column, "name:type"
		ev := row(name, value)
		out := outbox("payload", "1")
		out.Relation.Columns = append(out.Relation.Columns, ev.Relation.Columns...)
		out.Values = append(out.Values, ev.Values...)
		return out
	}
	x := onlyFields(map[string]string{"x": "{x}"})
	for _, tt := range []struct {
		name   string
		ev     *decoder.Event
		change func(*Config)
		want   string // the value, "nil", or the cause of the poison and !
	}{
		{"the default", outbox("headers", trace), nil, `{"aggregateId":"42","aggregateType":"order","eventId":"1b4e28ba-2fa1-11d2-883f-0016d3cca427",` +
			`"eventType":"OrderPlaced","occurredAt":"2026-11-21T11:12:13.000001Z","schemaVersion":1,"traceId":"0af7651916cd43dd8448eb211c80319c","data":{"total": 12345678901234567890}}`},
		{"NULL and no trace", outbox("event_type", nil), onlyFields(map[string]string{"t": "{trace_id}", "e": "{event_type}"}), `{"e":null,"t":null,"data":{"total": 12345678901234567890}}`},
		{"the id is the header's", outbox("payload", "1"), func(c *Config) {
			c.ID = "{table}:{id}"
			onlyFields(nil)(c)
			delete(c.Fields, "eventId")
		}, `{"eventId":"outbox:1b4e28ba-2fa1-11d2-883f-0016d3cca427","data":1}`},
		{
			"renamed, a constant and a template", outbox("payload", "1"), onlyFields(map[string]string{"data": "", "body": "{payload}", "v": `"2"`, "s": "x y", "k\"ind": "{aggregate_type}.{event_type}"}),
			`{"k\"ind":"order.OrderPlaced","s":"x y","v":"2","body":1}`,
		},
		{"bytes as they are", outbox("payload", " {\"a\" : 1.10e+5,\n\"a\":\"\\u00e9<&>é\"}"), onlyFields(nil), "{\"data\": {\"a\" : 1.10e+5,\n\"a\":\"\\u00e9<&>é\"}}"},
		{"bytea", outbox("payload:17", `\x00ff41`), onlyFields(nil), `{"data":"AP9B"}`},
		{"bytea that is JSON", outbox("payload:17", `\x7b7d`), onlyFields(nil), `{"data":"e30="}`}, // the type decides, not the row
		{"empty bytea", outbox("payload:17", `\x`), onlyFields(nil), `{"data":""}`},
		{"bytea that is NULL", outbox("payload:17", nil), func(c *Config) { onlyFields(nil)(c); c.NullPayload = NullPayloadEmpty }, `{"data":null}`},
		{"bytea beside the payload", column("x:17", `\x00ff41`), x, `{"x":"AP9B","data":1}`},
		{"NULL bytea beside it", column("x:17", nil), x, `{"x":null,"data":1}`},
		{"escapes", outbox("payload", "1", "aggregate_id", "a\"b\\c\x00\x1f\x7fé\u2028"), onlyFields(map[string]string{"k": "{aggregate_id}"}), "{\"k\":\"a\\\"b\\\\c\\u0000\\u001f\x7fé\u2028\",\"data\":1}"},
		{"numeric", column("x:1700", "-12345678901234567890.10"), x, `{"x":-12345678901234567890.10,"data":1}`},
		{"NaN", column("x:1700", "NaN"), x, `{"x":"NaN","data":1}`},
		{"-Infinity", column("x:701", "-Infinity"), x, `{"x":"-Infinity","data":1}`},
		{"float", column("x:701", "1e+300"), x, `{"x":1e+300,"data":1}`},
		{"no number", column("x:1700", "01"), x, `{"x":"01","data":1}`},
		{"bigint", column("x:20", "9223372036854775807"), x, `{"x":9223372036854775807,"data":1}`},
		{"a number in text is text", column("x", "7"), x, `{"x":"7","data":1}`},
		{"bool", column("x:16", "t"), x, `{"x":true,"data":1}`},
		{"not bool", column("x:16", "f"), x, `{"x":false,"data":1}`},
		{"jsonb", column("x:3802", `[1, null]`), x, `{"x":[1, null],"data":1}`},
		{"empty", column("x", ""), x, `{"x":"","data":1}`},
		{"timestamptz", column("x:1184", "2026-11-21 11:12:13.5+00"), x, `{"x":"2026-11-21T11:12:13.5Z","data":1}`},
		{"timestamp", column("x:1114", "2026-11-21 11:12:13"), x, `{"x":"2026-11-21T11:12:13Z","data":1}`},
		{"infinity", column("x:1184", "infinity"), x, `{"x":"infinity","data":1}`},
		{"BC", column("x:1114", "0044-03-15 12:00:00 BC"), x, `{"x":"0044-03-15 12:00:00 BC","data":1}`},
		{"a column wins", column("trace_id", "own"), onlyFields(map[string]string{"x": "{trace_id}"}), `{"x":"own","data":1}`},
		{"no trace", outbox("payload", "1", "headers", `{"traceparent": "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01"}`), onlyFields(map[string]string{"x": "{trace_id}"}), `{"x":null,"data":1}`},
		{"a schema's id", outbox("payload:17", `\x00000000070a`, "headers", `{"schema_id": "7"}`), onlyFields(map[string]string{"x": "{schema_id}", "y": "https://r/ids/{schema_id}"}), `{"x":"7","y":"https://r/ids/7","data":"AAAAAAcK"}`},
		{"no schema's id", outbox("payload", "1"), onlyFields(map[string]string{"x": "{schema_id}", "y": "https://r/ids/{schema_id}"}), `{"x":null,"y":null,"data":1}`},
		{"a column with the id", column("schema_id", "8"), onlyFields(map[string]string{"x": "ids/{schema_id}"}), `{"x":"ids/8","data":1}`},
		{"SQL NULL", outbox("payload", nil), nil, `nil`},
		{"SQL NULL, empty", outbox("payload", nil), func(c *Config) { onlyFields(nil)(c); c.NullPayload = NullPayloadEmpty }, `{"data":null}`},
		{"JSON null", outbox("payload", "null"), onlyFields(nil), `{"data":null}`},

		{"SQL NULL is poison", outbox("payload", nil), func(c *Config) { c.NullPayload = NullPayloadPoison }, `null_payload!`},
		{"not JSON", outbox("payload:25", "hello"), nil, `bad_payload!the column "payload" is not valid JSON in UTF-8, which an envelope requires`},
		{"nothing", outbox("payload:25", ""), nil, `bad_payload!`},
		{"two values", outbox("payload:25", "1}{"), nil, `bad_payload!`},
		{"not UTF-8 in the payload", outbox("payload:25", "\"\xff\""), nil, `bad_payload!`},
		{"not UTF-8 beside it", outbox("aggregate_id", "\xff"), nil, `bad_payload!the source of the field "aggregateId" of the envelope is not UTF-8`},
		{"not JSON beside it", column("x:114", "{"), x, `bad_payload!the source of the field "x" of the envelope is not valid JSON`},
	} {
		r, ev := envelopeRow(t, tt.ev, tt.change)
		payload := r.config.Columns.Payload
		var rec Record
		err := r.Route(ev, testPos, &rec)
		if cause, why, poison := strings.Cut(tt.want, "!"); poison {
			p, ok := errors.AsType[*Poison](err)
			if !ok || string(p.Cause) != cause || !strings.Contains(p.Message, why) {
				t.Errorf("%s: %v", tt.name, err)
			}
			// The value of a dead letter is the payload.
			if v := ev.Values[ev.Relation.Index(payload)]; !v.Null && !bytes.Equal(rec.Value, v.Data) {
				t.Errorf("%s: value %q", tt.name, rec.Value)
			}
			continue
		}
		got := string(rec.Value)
		if rec.Value == nil {
			got = "nil"
		}
		if err != nil || got != tt.want {
			t.Errorf("%s: %v\n got %s\nwant %s", tt.name, err, got, tt.want)
		}
		if string(rec.Key) != string(ev.Values[2].Data) || rec.Headers[0].Name != "id" {
			t.Errorf("%s: the rest of the record: %s", tt.name, show(&rec))
		}
	}
}

// A dead letter's value does not depend on the format: an empty payload is an empty value and not a tombstone.
func TestEnvelopePoisonKeepsEmpty(t *testing.T) {
	r, ev := envelopeRow(t, outbox("payload", nil, "aggregate_id", "\xff"), func(c *Config) { c.NullPayload = NullPayloadEmpty })
	var rec Record
	if p, ok := errors.AsType[*Poison](r.Route(ev, testPos, &rec)); !ok || p.Cause != BadPayload || rec.Value == nil || len(rec.Value) != 0 {
		t.Errorf("%v, value %v", p, rec.Value)
	}
}

func TestEnvelopeConfig(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"format: \"xml\" is none":            func(c *Config) { c.Format = "xml" },
		"without a format of which":          func(c *Config) { c.Fields = map[string]string{"a": "b"} },
		"no field holds the payload":         func(c *Config) { c.Format = FormatEnvelope; c.Fields = map[string]string{"data": ""} },
		`of "a": template "{": { without }`:  func(c *Config) { c.Format = FormatEnvelope; c.Fields = map[string]string{"a": "{"} },
		`of "data": {payload} is already in`: func(c *Config) { c.Format = FormatEnvelope; c.Fields = map[string]string{"a": "{payload}"} },
		`of "a": {schema_id} cannot be a part`: func(c *Config) {
			c.Format = FormatEnvelope
			c.Fields = map[string]string{"a": "{schema_id}x"}
		},
		`of "a": {trace_id} cannot be a part`: func(c *Config) { c.Format = FormatEnvelope; c.Fields = map[string]string{"a": "x{trace_id}"} },
		`the name "\xff" is not UTF-8`:        func(c *Config) { c.Format = FormatEnvelope; c.Fields = map[string]string{"\xff": "1"} },
	} {
		c := DefaultConfig()
		change(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	r, ev := envelopeRow(t, outbox(), func(c *Config) { c.Fields = map[string]string{"tenant": "{tenant}"} })
	if e, ok := errors.AsType[*MissingColumnError](r.Bind(ev.Relation)); !ok || e.Column != "tenant" || e.Setting != "fields.tenant" {
		t.Error(e)
	}
	if needs := strings.Join(r.config.Needs(), " "); needs != "aggregate_id aggregate_type event_type headers id payload tenant" {
		t.Error(needs)
	}
	// Not poison, which could be skipped: the cause is bytea_output of the connection.
	for _, ev := range []*decoder.Event{outbox("payload:17", `\001`), outbox("payload", "1", "aggregate_id:17", `\001`)} {
		r, ev := envelopeRow(t, ev, func(c *Config) { c.Key = "{event_type}" })
		err := r.Route(ev, testPos, &Record{})
		if _, poison := errors.AsType[*Poison](err); err == nil || poison || !strings.Contains(err.Error(), "bytea_output") {
			t.Errorf("bytea that is not printed as hex: %v", err)
		}
	}
	r, ev = envelopeRow(t, outbox("aggregate_id:17", `\x00`), func(c *Config) { c.Fields = map[string]string{"x": "{aggregate_id}-{event_type}"} })
	if e, ok := errors.AsType[*MissingColumnError](r.Bind(ev.Relation)); !ok || !strings.Contains(e.Error(), "is bytea") {
		t.Error(e)
	}
}

func TestEnvelopeDoesNotAllocate(t *testing.T) {
	r, ev := envelopeRow(t, outbox("payload:17", `\x7b7d`, "headers", `{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "q": "a\"b"}`), func(c *Config) {
		c.Fields = map[string]string{"kind": "{aggregate_type}.{event_type}", "at": "{created_at}"}
	})
	var rec Record
	must(t, r.Route(ev, testPos, &rec))
	want := string(rec.Value)
	if n := testing.AllocsPerRun(1000, func() {
		must(t, r.Route(ev, testPos, &rec))
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if string(rec.Value) != want || !strings.Contains(want, `"at":"2026-11-21T11:12:13.000001Z"`) || !strings.Contains(want, `"kind":"order.OrderPlaced"`) {
		t.Errorf("%s\n%s", want, rec.Value)
	}
}

// FuzzEnvelope: for any row, the value is JSON with the payload's bytes, or the row is poison.
func FuzzEnvelope(f *testing.F) {
	f.Add("x", `{"a": 1}`, "9.50", uint32(1700), "2026-11-21 11:12:13+00", "{}")
	f.Add("\xff", "\"\xff\"", "NaN", uint32(701), "infinity", `{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}`)
	f.Add("\x00\"\\", "1 ", "t", uint32(16), "00", "")
	f.Add("", "[]", "-", uint32(3802), "0000-00-00 00:00:00.", "{")
	f.Fuzz(func(t *testing.T, id, payload, value string, oid uint32, at, headers string) {
		ev := outbox("aggregate_id", id, "payload:25", payload, "headers", headers, "created_at:1184", at)
		ev.Relation.Columns = append(ev.Relation.Columns, decoder.Column{Name: "x", TypeOID: oid})
		ev.Values = append(ev.Values, decoder.Value{Data: []byte(value)})
		r, ev := envelopeRow(t, ev, func(c *Config) {
			c.Fields = map[string]string{"x": "{x}", "at": "{created_at}", "both": "{aggregate_id}{created_at}"}
		})
		var rec Record
		err := r.Route(ev, testPos, &rec)
		if err == nil {
			if !json.Valid(rec.Value) || !utf8.Valid(rec.Value) || !bytes.HasSuffix(rec.Value, []byte(`,"data":`+payload+"}")) {
				t.Fatalf("%q", rec.Value)
			}
			var out map[string]json.RawMessage
			if err := json.Unmarshal(rec.Value, &out); err != nil || string(out["data"]) != strings.Trim(payload, " \t\r\n") {
				t.Fatalf("%v: %q", err, rec.Value)
			}
			var k string
			if err := json.Unmarshal(out["aggregateId"], &k); err != nil || k != id {
				t.Fatalf("%v: %q, want %q", err, k, id)
			}
			return
		}
		_, poison := errors.AsType[*Poison](err)
		if _, bytea := errors.AsType[*MissingColumnError](err); !poison && !bytea {
			t.Fatal(err)
		}
	})
}
