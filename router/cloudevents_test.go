package router

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/outboxcdc/outboxcdc/decoder"
)

func cloudEvents(t testing.TB, format Format, ev *decoder.Event, attributes ...string) (*Router, *decoder.Event) {
	t.Helper()
	return envelopeRow(t, ev, func(c *Config) {
		c.Format, c.Fields = format, map[string]string{"source": "//shop.example/orders"}
		for i := 0; i < len(attributes); i += 2 {
			c.Fields[attributes[i]] = attributes[i+1]
		}
	})
}

// A test in cmd/outboxcdc reads these records with the CloudEvents SDK.
func TestCloudEvents(t *testing.T) {
	const (
		binary     = FormatCloudEventsBinary
		structured = FormatCloudEventsStructured
		id         = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
		begin      = `outbox.event.order key="42" by="42" value=`
		own        = ` id="` + id + `" type="OrderPlaced"`
		position   = ` outboxcdc-position="` + testPosText + `"`
		attributes = ` ce_specversion="1.0" ce_id="` + id + `" content-type="application/json" ce_source="//shop.example/orders" ce_subject="42" ce_time="2026-11-21T11:12:13.000001Z" ce_type="OrderPlaced"`
	)
	for _, tt := range []struct {
		format     Format
		ev         *decoder.Event
		attributes []string
		want       string // the record, or cause!message
	}{
		{binary, outbox("payload", "\xff"), nil, begin + `"\xff"` + own + position + attributes},
		{binary, outbox("payload", nil), nil, begin + `nil` + own + position + attributes},
		{
			binary, outbox("payload", "1", "headers", `{"ce_type": "x", "CE_ID": [1], "a": "b", "Content-Type": "y", "ce_subject": "z", "Ce_foo": "z", "ce": "c"}`), nil,
			begin + `"1"` + own + ` a="b" ce="c"` + position + attributes,
		},
		{
			binary, outbox("payload", "1", "aggregate_id", "", "headers", `{"ce_subject": "forged"}`),
			[]string{"time", "{created_at}", "datacontenttype", ""},
			`outbox.event.order key="" by="" value="1"` + own + position + ` ce_specversion="1.0" ce_id="` + id + `" ce_source="//shop.example/orders" ce_time="2026-11-21T11:12:13.000001Z" ce_type="OrderPlaced"`,
		},
		{
			structured, outbox("payload", " 1.0 ", "headers", `{"CONTENT-TYPE": "x", "ce_type": "kept"}`), nil,
			begin + `"{\"specversion\":\"1.0\",\"id\":\"` + id + `\",\"datacontenttype\":\"application/json\",\"source\":\"//shop.example/orders\",\"subject\":\"42\",` +
				`\"time\":\"2026-11-21T11:12:13.000001Z\",\"type\":\"OrderPlaced\",\"data\": 1.0 }"` + own + ` ce_type="kept"` + position + ` content-type="application/cloudevents+json; charset=UTF-8"`,
		},
		{
			binary, outbox("payload", "1", "aggregate_id", ""),
			[]string{"time", "{created_at}", "datacontenttype", ""},
			`outbox.event.order key="" by="" value="1"` + own + position + ` ce_specversion="1.0" ce_id="` + id + `" ce_source="//shop.example/orders" ce_time="2026-11-21T11:12:13.000001Z" ce_type="OrderPlaced"`,
		},
		{
			structured, outbox("payload", " 1.0 "), nil,
			begin + `"{\"specversion\":\"1.0\",\"id\":\"` + id + `\",\"datacontenttype\":\"application/json\",\"source\":\"//shop.example/orders\",\"subject\":\"42\",` +
				`\"time\":\"2026-11-21T11:12:13.000001Z\",\"type\":\"OrderPlaced\",\"data\": 1.0 }"` + own + position + ` content-type="application/cloudevents+json; charset=UTF-8"`,
		},
		{ // valid in the JSON format, but the Go SDK 2.16 cannot read this type
			structured, outbox("payload", "[]"),
			[]string{"datacontenttype", "application/x+JSON; a=b", "time", "", "subject", ""},
			begin + `"{\"specversion\":\"1.0\",\"id\":\"` + id + `\",\"datacontenttype\":\"application/x+JSON; a=b\",\"source\":\"//shop.example/orders\",` +
				`\"type\":\"OrderPlaced\",\"data\":[]}"` + own + position + ` content-type="application/cloudevents+json; charset=UTF-8"`,
		},

		{
			binary, outbox("payload", "1", "aggregate_id:17", `\x00ff41`),
			[]string{"time", "", "datacontenttype", ""},
			`outbox.event.order key="\x00\xffA" by="\x00\xffA" value="1"` + own + position + ` ce_specversion="1.0" ce_id="` + id + `" ce_source="//shop.example/orders" ce_subject="AP9B" ce_type="OrderPlaced"`,
		},
		{
			binary, outbox("payload", "1", "headers", `{"schema_id": "7"}`),
			[]string{"dataschema", "https://r/ids/{schema_id}", "datacontenttype", ""},
			begin + `"1"` + own + ` schema_id="7"` + position + strings.Replace(attributes, `content-type="application/json"`, `ce_dataschema="https://r/ids/7"`, 1),
		},
		{binary, outbox("payload", "1"), []string{"dataschema", "https://r/ids/{schema_id}"}, begin + `"1"` + own + position + attributes},
		{binary, outbox("payload", "1", "headers", `{"schema_id": "7\n"}`), []string{"dataschema", "https://r/{schema_id}"}, `bad_headers!the CloudEvents attribute "dataschema" has a control`},
		{binary, outbox("event_type", nil), nil, `bad_headers!the CloudEvents attribute "type" is NULL or empty`},
		{binary, outbox("event_type", ""), nil, `bad_headers!the CloudEvents attribute "type" is NULL or empty`},
		{binary, outbox("id", ""), nil, `null_id!the id is empty`},
		{structured, outbox("id", nil), nil, `null_id!`},
		{structured, outbox("id", "a\nb"), nil, `bad_headers!the CloudEvents attribute "id" has a control character`},
		{binary, outbox("aggregate_id", "\xff"), nil, `bad_headers!the CloudEvents attribute "subject" is not UTF-8`},
		{binary, outbox("aggregate_id", "\u0085"), nil, `bad_headers!the CloudEvents attribute "subject" has a control`},
		{binary, outbox("aggregate_id", "\U0001ffff"), nil, `bad_headers!the CloudEvents attribute "subject" has a control`},
		{binary, outbox("created_at", "infinity"), []string{"time", "{created_at}"}, `bad_timestamp!the column "created_at" holds "infinity", which is not a time of RFC 3339`},
		{structured, outbox("payload:25", "x"), nil, `bad_payload!the column "payload" is not valid JSON`},
		{structured, outbox("payload:25", "\xff"), []string{"datacontenttype", "text/plain"}, `bad_payload!the column "payload" is not UTF-8`},
	} {
		r, ev := cloudEvents(t, tt.format, tt.ev, tt.attributes...)
		var rec Record
		err := r.Route(ev, testPos, &rec)
		if cause, why, poison := strings.Cut(tt.want, "!"); poison {
			p, ok := errors.AsType[*Poison](err)
			if !ok || string(p.Cause) != cause || !strings.Contains(p.Message, why) {
				t.Errorf("%v, want %s", err, tt.want)
			}
			if strings.Contains(show(&rec), "ce_") {
				t.Errorf("half an event: %s", show(&rec))
			}
			continue
		}
		if got := show(&rec); err != nil || got != tt.want {
			t.Errorf("%v\n got %s\nwant %s", err, got, tt.want)
		}
	}

	r, ev := cloudEvents(t, structured, outbox("payload", nil))
	r.config.NullPayload = NullPayloadPoison
	if p, ok := errors.AsType[*Poison](r.Route(ev, testPos, &Record{})); !ok || p.Cause != NullPayload {
		t.Error(p)
	}
	r, ev = cloudEvents(t, structured, outbox(), "time", "{aggregate_id}")
	if e, ok := errors.AsType[*MissingColumnError](r.Bind(ev.Relation)); !ok || e.Setting != "fields.time" || !strings.Contains(e.Problem, "timestamptz") {
		t.Error(e)
	}
}

func TestCloudEventsConfig(t *testing.T) {
	for want, attributes := range map[string][]string{
		"fields: source is required":                                       {"source", ""},
		`of "source": has to be a constant`:                                {"source", "{aggregate_type}"},
		`of "source": "a b" is not a URI`:                                  {"source", "a b"},
		`of "source": "%zz" is not a URI`:                                  {"source", "%zz"},
		`of "dataschema": "x" is not a URI`:                                {"dataschema", "x"},
		`of "dataschema": "ids/" is not a URI`:                             {"dataschema", "ids/{schema_id}"},
		`of "dataschema": has to be a constant, or a URI that ends with`:   {"dataschema", "{schema_id}"},
		`of "dataschema": has to be a constant, or a URI that ends`:        {"dataschema", "https://r/{event_type}"},
		`of "datacontenttype": has to be a const`:                          {"datacontenttype", "{a}"},
		`of "id": cannot be set`:                                           {"id", "1"},
		`of "data": cannot be set`:                                         {"data", "{payload}"},
		`of "specversion": cannot be set`:                                  {"specversion", "1.0"},
		`of "aggregate_type": an attribute's name can only have a–z`:       {"aggregate_type", "x"},
		`of "x": cannot be the payload`:                                    {"x", "{payload}"},
		`of "x": has a control character`:                                  {"x", "a\tb{a}"},
		`of "time": has to be one column`:                                  {"time", "now"},
		`type is required without columns.event_type`:                      {"type", ""},
		`"ce_x": the format uses the header name "ce_x"`:                   {"", "ce_x"},
		`"a:content-type": the format uses the header name "content-type"`: {"", "a:content-type"},
	} {
		c := DefaultConfig()
		c.Format, c.Fields = FormatCloudEventsBinary, map[string]string{"source": "shop"}
		if attributes[0] == "" {
			c.Headers = attributes[1:]
		} else {
			c.Fields[attributes[0]] = attributes[1]
		}
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestCloudEventsDoNotAllocate(t *testing.T) {
	for _, format := range []Format{FormatCloudEventsBinary, FormatCloudEventsStructured} {
		r, ev := cloudEvents(t, format, outbox("payload:17", `\x7b7d`, "headers", `{"a": "b", "content-type": "c"}`), "time", "{created_at}", "kind", "{aggregate_type}.{event_type}")
		var rec Record
		if n := testing.AllocsPerRun(1000, func() {
			must(t, r.Route(ev, testPos, &rec))
		}); n != 0 {
			t.Errorf("%s: %v allocations", format, n)
		}
	}
}

// FuzzCloudEvents: for any row, a structured event is JSON with the payload, or poison.
func FuzzCloudEvents(f *testing.F) {
	f.Add("x", `{"a": 1}`, "2026-11-21 11:12:13+00", false, false)
	f.Add("\xff", "\xff", "infinity", true, true)
	f.Add("\"\\", "a\"b", "2026-11-21 11:12:13.1+00", false, true)
	f.Fuzz(func(t *testing.T, id, payload, at string, bytea, plain bool) {
		ev := outbox("aggregate_id", id, "payload:25", payload, "created_at", at)
		if bytea {
			ev = outbox("aggregate_id", id, "payload:17", `\x`+hex.EncodeToString([]byte(payload)), "created_at", at)
		}
		attributes := []string{"time", "{created_at}"}
		if plain {
			attributes = append(attributes, "datacontenttype", "text/plain")
		}
		r, ev := cloudEvents(t, FormatCloudEventsStructured, ev, attributes...)
		var rec Record
		if err := r.Route(ev, testPos, &rec); err != nil {
			if _, poison := errors.AsType[*Poison](err); !poison {
				t.Fatal(err)
			}
			return
		}
		var out struct {
			Data    json.RawMessage
			Base64  string `json:"data_base64"`
			Subject string
		}
		if err := json.Unmarshal(rec.Value, &out); err != nil || !utf8.Valid(rec.Value) || out.Subject != id {
			t.Fatalf("%v: %q", err, rec.Value)
		}
		data := string(out.Data)
		switch {
		case plain && bytea:
			b, _ := base64.StdEncoding.DecodeString(out.Base64)
			data = string(b)
		case plain:
			must(t, json.Unmarshal(out.Data, &data))
		default:
			payload = strings.Trim(payload, " \t\r\n")
		}
		if data != payload {
			t.Fatalf("%q, want %q", data, payload)
		}
	})
}
