package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/wire"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/binding/format"
	"github.com/cloudevents/sdk-go/v2/binding/spec"
	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/decoder"
	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/router"
)

// kafkaMessage lets the CloudEvents SDK read a record, as the SDK's own Kafka bindings do with records of their
// clients. Only names and prefix of headers are defined here.
type kafkaMessage struct {
	headers map[string][]byte
	value   []byte
}

var ceVersions = spec.WithPrefix("ce_")

func (m *kafkaMessage) ReadEncoding() binding.Encoding {
	switch {
	case format.IsFormat(string(m.headers["content-type"])):
		return binding.EncodingStructured
	case m.headers[ceVersions.PrefixedSpecVersionName()] != nil:
		return binding.EncodingBinary
	}
	return binding.EncodingUnknown
}

func (m *kafkaMessage) ReadStructured(ctx context.Context, w binding.StructuredWriter) error {
	if m.ReadEncoding() != binding.EncodingStructured {
		return binding.ErrNotStructured
	}
	f := format.Lookup(string(m.headers["content-type"]))
	return w.SetStructuredEvent(ctx, f, bytes.NewReader(m.value))
}

func (m *kafkaMessage) ReadBinary(_ context.Context, w binding.BinaryWriter) error {
	version := ceVersions.Version(string(m.headers[ceVersions.PrefixedSpecVersionName()]))
	for name, value := range m.headers {
		var err error
		if attr := version.Attribute(name); attr != nil {
			err = w.SetAttribute(attr, string(value))
		} else if extension, ok := strings.CutPrefix(name, "ce_"); ok {
			err = w.SetExtension(extension, string(value))
		} else if name == "content-type" {
			err = w.SetAttribute(version.AttributeFromKind(spec.DataContentType), string(value))
		}
		if err != nil {
			return err
		}
	}
	if m.value == nil {
		return nil
	}
	return w.SetData(io.Reader(bytes.NewReader(m.value)))
}

// GetAttribute and GetExtension are for transformers, which are not used.
func (m *kafkaMessage) GetAttribute(spec.Kind) (spec.Attribute, any) { return nil, nil }

func (m *kafkaMessage) GetExtension(string) any { return nil }

func (m *kafkaMessage) Finish(error) error { return nil }

// cloudEvent routes a row with these settings and reads the record with the SDK.
func cloudEvent(t *testing.T, settings, payload string, payloadType uint32) (*event.Event, *kafkaMessage) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "outboxcdc.yaml")
	must(t, os.WriteFile(file, []byte("route: {"+settings+"}\n"), 0o600))
	cfg, err := config.Load([]string{file}, nil)
	must(t, err)
	r, err := wire.Router(cfg)
	must(t, err)
	ev := &decoder.Event{Relation: &decoder.Relation{Namespace: "public", Name: "outbox"}}
	ev.Begin.CommitTime = time.Date(2026, 11, 21, 11, 12, 13, 1000, time.UTC)
	for _, c := range []struct {
		name, value string
		oid         uint32
	}{
		{"id", "1b4e28ba-2fa1-11d2-883f-0016d3cca427", 2950},
		{"aggregate_type", "order", 25},
		{"aggregate_id", `4"é\`, 25},
		{"event_type", "OrderPlaced", 25},
		{"payload", payload, payloadType},
		{"headers", `{"content-type": "text/plain", "ce_id": "7", "traceparent": "00-1"}`, 3802},
		{"paid", "t", 16},
		{"tenant", "eu", 25},
		{"placed_at", "2026-11-21 11:00:00+00", 1184},
	} {
		ev.Relation.Columns = append(ev.Relation.Columns, decoder.Column{Name: c.name, TypeOID: c.oid})
		ev.Values = append(ev.Values, decoder.Value{Data: []byte(c.value), Null: c.value == "NULL"})
	}
	var rec router.Record
	must(t, r.Route(ev, checkpoint.Position{}, &rec))
	m := &kafkaMessage{map[string][]byte{}, rec.Value}
	for _, h := range rec.Headers {
		if _, twice := m.headers[h.Name]; twice {
			t.Errorf("the header %s is there twice", h.Name)
		}
		m.headers[h.Name] = h.Value
	}
	e, err := binding.ToEvent(t.Context(), m)
	if err != nil {
		t.Fatalf("the SDK does not read it: %v\n%v %s", err, m.headers, m.value)
	}
	if err := e.Validate(); err != nil {
		t.Errorf("the SDK finds it invalid: %v", err)
	}
	return e, m
}

// TestCloudEvents checks that the CloudEvents SDK reads the same event from both modes.
func TestCloudEvents(t *testing.T) {
	const payload = `{"total": 12345678901234567890.10, "a": "é<"}`
	for _, mode := range []string{"binary", "structured"} {
		e, m := cloudEvent(t, "format: cloudevents_"+mode+`, fields: {source: //shop.example/orders, dataschema: "https://shop.example/s/1", `+
			`tenant: "{tenant}", paid: "{paid}", partitionkey: "{aggregate_id}"}`, payload, 3802)
		if e.SpecVersion() != "1.0" || e.ID() != "1b4e28ba-2fa1-11d2-883f-0016d3cca427" || e.Source() != "//shop.example/orders" || e.Type() != "OrderPlaced" ||
			e.Subject() != `4"é\` || !e.Time().Equal(time.Date(2026, 11, 21, 11, 12, 13, 1000, time.UTC)) ||
			e.DataContentType() != "application/json" || e.DataSchema() != "https://shop.example/s/1" {
			t.Errorf("%s: %s", mode, e)
		}
		if x := e.Extensions(); len(x) != 3 || x["tenant"] != "eu" || x["paid"] != "true" || x["partitionkey"] != `4"é\` {
			t.Errorf("%s: extensions %v", mode, x)
		}
		if string(e.Data()) != payload {
			t.Errorf("%s: data %s", mode, e.Data())
		}
		if string(m.headers["id"]) != e.ID() || string(m.headers["traceparent"]) != "00-1" {
			t.Errorf("%s: headers %s", mode, m.headers)
		}
	}
}

// TestCloudEventsData checks payloads that are not JSON, and empty ones.
func TestCloudEventsData(t *testing.T) {
	const source = `, fields: {source: shop, datacontenttype: `
	for _, tt := range []struct {
		settings, payload string
		oid               uint32
		want              string // the data; "nil": none
	}{
		{"format: cloudevents_binary" + source + "text/plain}", "a\"b", 25, `a"b`},
		{"format: cloudevents_structured" + source + "text/plain}", "a\"b\x01", 25, "a\"b\x01"},
		{"format: cloudevents_binary" + source + "application/avro}", `\x00ff`, 17, "\x00\xff"},
		{"format: cloudevents_structured" + source + "application/avro}", `\x00ff`, 17, "\x00\xff"},
		{"format: cloudevents_structured" + source + "application/json; charset=UTF-8}", `\x5b5d`, 17, "[]"},
		{"format: cloudevents_structured" + source + "''}", `\x5b5d`, 17, "[]"},
		{"format: cloudevents_binary" + source + "application/json}", "NULL", 3802, "nil"},
		{"format: cloudevents_structured" + source + "application/json}", "NULL", 3802, "nil"},
		{"format: cloudevents_structured, null_payload: empty" + source + "application/json}", "NULL", 3802, "nil"},
	} {
		e, _ := cloudEvent(t, tt.settings, tt.payload, tt.oid)
		got := string(e.Data())
		if e.Data() == nil {
			got = "nil"
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.settings, got, tt.want)
		}
	}
	if e, _ := cloudEvent(t, `format: cloudevents_structured, fields: {source: shop, subject: "", time: "{placed_at}", datacontenttype: ""}`, "NULL", 25); e.Subject() != "" ||
		e.DataContentType() != "" || !e.Time().Equal(time.Date(2026, 11, 21, 11, 0, 0, 0, time.UTC)) {
		t.Errorf("%s", e)
	}
}
