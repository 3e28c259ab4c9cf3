package outbox

import (
	"strings"
	"testing"

	"github.com/hamba/avro/v2"
	"github.com/twmb/franz-go/pkg/sr"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outboxcdc/outboxcdc/outbox"
	"github.com/outboxcdc/outboxcdc/outbox/registry"
	"github.com/outboxcdc/outboxcdc/test/registrytest"
)

const (
	timestamps = `syntax = "proto3"; package google.protobuf; message Timestamp { int64 seconds = 1; int32 nanos = 2; }`
	wrappers   = `syntax = "proto3"; package google.protobuf;
message DoubleValue { double value = 1; } message FloatValue { float value = 1; } message Int64Value { int64 value = 1; }
message UInt64Value { uint64 value = 1; } message Int32Value { int32 value = 1; } message UInt32Value { uint32 value = 1; }
message BoolValue { bool value = 1; } message StringValue { string value = 1; } message BytesValue { bytes value = 1; }`
	withNote     = `{"type": "record", "name": "Paid", "namespace": "shop", "fields": [{"name": "total", "type": "string"}, {"name": "note", "type": "string"}]}`
	apicurioAvro = "io.apicurio.registry.serde.avro.AvroKafkaDeserializer"
	apicurioPB   = "io.apicurio.registry.serde.protobuf.ProtobufKafkaDeserializer"
)

type notedPaid struct {
	Total string `avro:"total"`
	Note  string `avro:"note"`
}

// With a real registry: what an application has written arrives, and is read with the schema that the registry has for
// its id, by franz-go's serde and by deserializers in Java. The registry refuses a change that breaks consumers. When
// it is away, a running application goes on.
func TestRealRegistry(t *testing.T) {
	t.Parallel()
	server := registrytest.Start(t)
	client, err := sr.NewClient(sr.URLs(server.URL()))
	must(t, err)
	ctx := testContext(t)
	order := registry.Avro[avroPaid]("avro", "Paid", paidSchema)
	first := registry.Protobuf[*timestamppb.Timestamp]("first", "At", timestamps)
	second := registry.Protobuf[*wrapperspb.StringValue]("second", "Text", wrappers) // the path is 7
	schemas := []registry.Schema{order, first, second}

	if err := registry.Lookup(ctx, client, order); err == nil || order.ID() != 0 {
		t.Errorf("it was never registered: %v", err)
	}
	must(t, registry.Compatible(ctx, client, schemas...)) // no subject exists
	must(t, registry.Register(ctx, client, schemas...))
	again := registry.Avro[avroPaid]("avro", "Paid", paidSchema)
	if err := registry.Lookup(ctx, client, again); err != nil || again.ID() != order.ID() {
		t.Errorf("looked up: %v, id %d, want %d", err, again.ID(), order.ID())
	}
	for _, r := range client.SetCompatibility(ctx, sr.SetCompatibility{Level: sr.CompatBackward}, order.Subject()) {
		must(t, r.Err)
	}
	must(t, registry.Compatible(ctx, client, schemas...))
	broken := registry.Avro[notedPaid]("avro", "Paid", withNote)
	if err := registry.Compatible(ctx, client, broken); err == nil || !strings.Contains(err.Error(), "would break consumers") {
		t.Errorf("a field without a default: %v", err)
	}
	if err := registry.Register(ctx, client, broken); err == nil || broken.ID() != 0 {
		t.Errorf("a field without a default was registered: %v", err)
	}

	p := newPipeline(t, options{before: []string{binaryTable(t)}})
	writer := newWriter(t, outbox.Config{PayloadType: outbox.Bytea})
	at, word := &timestamppb.Timestamp{Seconds: 7, Nanos: 8}, wrapperspb.String("ü")
	event := func(e outbox.Event, err error) outbox.Event { must(t, err); return e }
	events := func() []outbox.Event {
		return []outbox.Event{event(order.Event("42", avroPaid{"9.50 €"})), event(first.Event("42", at)), event(second.Event("42", word))}
	}
	must(t, emitters["pgx"](t, p.url(), writer, events()...))

	text, err := client.SchemaByID(ctx, order.ID())
	must(t, err)
	parsed, err := avro.Parse(text.Schema)
	must(t, err)
	var serde sr.Serde
	var gotPaid avroPaid
	var gotAt timestamppb.Timestamp
	var gotWord wrapperspb.StringValue
	serde.Register(order.ID(), avroPaid{}, sr.DecodeFn(func(b []byte, v any) error { return avro.Unmarshal(parsed, b, v) }))
	decode := sr.DecodeFn(func(b []byte, v any) error { return proto.Unmarshal(b, v.(proto.Message)) })
	serde.Register(first.ID(), at, decode, sr.Index(0))
	serde.Register(second.ID(), word, decode, sr.Index(7))
	for aggregate, v := range map[string]any{"avro": &gotPaid, "first": &gotAt, "second": &gotWord} {
		must(t, serde.Decode(p.records(p.topic(aggregate), 1)[0].Value, v))
	}
	if gotPaid.Total != "9.50 €" || !proto.Equal(&gotAt, at) || !proto.Equal(&gotWord, word) {
		t.Errorf("read: %v, %v, %v", gotPaid, &gotAt, &gotWord)
	}

	// It reads past the path to the message, so it needs the class.
	class := func(name string) []string {
		return []string{
			"apicurio.registry.serde.read-indexes=true", "apicurio.registry.serde.read-type-ref=false",
			"apicurio.registry.deserializer.value.return-class=" + name,
		}
	}
	for _, c := range []struct {
		aggregate, deserializer string
		settings                []string
		want                    string
	}{
		{"avro", apicurioAvro, nil, `{"total": "9.50 \u20AC"}`},
		{"first", apicurioPB, class("com.google.protobuf.Timestamp"), "seconds: 7\nnanos: 8"},
		{"second", apicurioPB, class("com.google.protobuf.StringValue"), `value: "\303\274"`},
	} {
		got, err := server.Read(shared.kafka.Brokers(), p.topic(c.aggregate), c.deserializer, c.settings...)
		if err != nil || got != c.want {
			t.Errorf("%s in Java: %q, want %q; %v", c.aggregate, got, c.want, err)
		}
	}

	server.Kill()
	must(t, emitters["pgx"](t, p.url(), writer, events()...))
	for _, aggregate := range []string{"avro", "first", "second"} {
		p.records(p.topic(aggregate), 2)
	}
	if err := registry.Register(ctx, client, registry.Avro[avroPaid]("avro", "Other", paidSchema)); err == nil {
		t.Error("a registry that is away has given an id")
	}
}
