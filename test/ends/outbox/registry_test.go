package outbox

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/hamba/avro/v2"
	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/outboxcdc/outboxcdc/outbox"
	"github.com/outboxcdc/outboxcdc/outbox/registry"
)

const paidSchema = `{"type": "record", "name": "Paid", "namespace": "shop", "fields": [{"name": "total", "type": "string"}]}`

type avroPaid struct {
	Total string `avro:"total"`
}

var (
	avroEvent  = registry.Avro[avroPaid]("avro", "Paid", paidSchema)
	protoEvent = registry.Protobuf[*descriptorpb.DescriptorProto_ExtensionRange]("proto", "Range", `syntax = "proto2";`) // the path is 2, 0
)

// binaryTable returns the CREATE TABLE of docs/registry.md.
func binaryTable(t *testing.T) string {
	t.Helper()
	doc, err := os.ReadFile("../../../docs/registry.md")
	must(t, err)
	_, rest, _ := strings.Cut(string(doc), "```sql\n")
	table, _, found := strings.Cut(rest, "```")
	if !found || !strings.HasPrefix(table, "CREATE TABLE outbox (") {
		t.Fatalf("docs/registry.md has no table: %s", table)
	}
	return table
}

// What an application writes with a schema of a registry arrives unchanged, and a consumer's serde reads it; so does
// any other sequence of bytes. The registry is away while events are written. Attributes of CloudEvents name the
// schema.
func TestRegistry(t *testing.T) {
	t.Parallel()
	fake := srfake.New()
	t.Cleanup(fake.Close)
	client, err := sr.NewClient(sr.URLs(fake.URL()))
	must(t, err)
	must(t, registry.Register(testContext(t), client, avroEvent, protoEvent))
	fake.Close()

	var all []byte
	for i := range 256 {
		all = append(all, byte(i))
	}
	paid, err := avroEvent.Event("42", avroPaid{"9.50 €"})
	must(t, err)
	span := &descriptorpb.DescriptorProto_ExtensionRange{Start: proto.Int32(1), End: proto.Int32(1 << 20)}
	ranged, err := protoEvent.Event("42", span)
	must(t, err)
	events := []outbox.Event{paid, ranged, {AggregateType: "bytes", AggregateID: "42", Type: "All", Payload: all}}

	for format, settings := range map[string][]string{
		"raw": nil,
		"cloudevents_binary": {
			"OUTBOXCDC_ROUTE_FORMAT=cloudevents_binary",
			"OUTBOXCDC_ROUTE_FIELDS=source=//shop.example/orders,datacontenttype=application/octet-stream,dataschema=https://registry.example/schemas/ids/{schema_id}",
		},
	} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			p := newPipeline(t, options{before: []string{binaryTable(t)}, settings: settings})
			must(t, emitters["pgx"](t, p.url(), newWriter(t, outbox.Config{PayloadType: outbox.Bytea}), events...))
			for _, e := range events {
				got := p.records(p.topic(e.AggregateType), 1)[0]
				if !bytes.Equal(got.Value, e.Payload.([]byte)) {
					t.Errorf("%s: the value is % x, want % x", e.Type, got.Value, e.Payload)
				}
				id, link := header(&got, "schema_id"), header(&got, "ce_dataschema")
				if want := e.Headers[registry.HeaderSchemaID]; id != want || link != "" != (format != "raw" && want != "") || link != "" && link != "https://registry.example/schemas/ids/"+want {
					t.Errorf("%s: schema_id %q, want %q; dataschema %q", e.Type, id, want, link)
				}
			}

			var serde sr.Serde
			serde.Register(avroEvent.ID(), avroPaid{}, sr.DecodeFn(func(b []byte, v any) error { return avro.Unmarshal(avro.MustParse(paidSchema), b, v) }))
			serde.Register(protoEvent.ID(), span, sr.DecodeFn(func(b []byte, v any) error { return proto.Unmarshal(b, v.(proto.Message)) }), sr.Index(2, 0))
			var gotPaid avroPaid
			var gotSpan descriptorpb.DescriptorProto_ExtensionRange
			must(t, serde.Decode(p.records(p.topic("avro"), 1)[0].Value, &gotPaid))
			must(t, serde.Decode(p.records(p.topic("proto"), 1)[0].Value, &gotSpan))
			if gotPaid.Total != "9.50 €" || !proto.Equal(&gotSpan, span) {
				t.Errorf("read: %v, %v", gotPaid, &gotSpan)
			}
			value := p.records(p.topic("proto"), 1)[0].Value
			if id, _ := strconv.Atoi(header(&p.records(p.topic("proto"), 1)[0], "schema_id")); !bytes.HasPrefix(value, []byte{0, 0, 0, 0, byte(id), 4, 4, 0}) || id != protoEvent.ID() {
				t.Errorf("the framing of schema %d: % x", id, value)
			}
		})
	}
}
