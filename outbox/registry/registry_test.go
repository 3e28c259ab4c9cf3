package registry

import (
	"bytes"
	"context"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/hamba/avro/v2"
	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outboxcdc/outboxcdc/outbox"
)

const paidSchema = `{"type": "record", "name": "Paid", "namespace": "shop", "fields": [{"name": "total", "type": "string"}, {"name": "items", "type": "long"}]}`

type paid struct {
	Total string `avro:"total"`
	Items int64  `avro:"items"`
}

const file = `syntax = "proto3"; // srfake stores the text as it is`

func newRegistry(t *testing.T) (*srfake.Registry, *sr.Client) {
	t.Helper()
	fake := srfake.New()
	t.Cleanup(fake.Close)
	client, err := sr.NewClient(sr.URLs(fake.URL()))
	if err != nil {
		t.Fatal(err)
	}
	return fake, client
}

// TestEvent: payloads are what franz-go's serde reads, and have the bytes that Confluent documents.
func TestEvent(t *testing.T) {
	fake, client := newRegistry(t)
	fake.SeedSchema("another", 1, 258, sr.Schema{Schema: `"int"`, Type: sr.TypeAvro}) // ids with more than one byte
	order := Avro[paid]("order", "Paid", paidSchema)
	first := Protobuf[*timestamppb.Timestamp]("order", "First", file)
	later := Protobuf[*wrapperspb.StringValue]("order", "Later", file+" 2")
	nested := Protobuf[*descriptorpb.DescriptorProto_ExtensionRange]("order", "Nested", file+" 3", Subject("order-value"))
	if _, err := order.Event("42", paid{}); err == nil || !strings.Contains(err.Error(), "has no id") {
		t.Error(err)
	}
	if err := Register(t.Context(), client, order, first, later, nested); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		schema  Schema
		event   func() (outbox.Event, error)
		subject string
		index   []int
		want    any
		decode  func([]byte, any) error
		raw     []byte // the index of the message, as bytes
	}{
		{order, func() (outbox.Event, error) { return order.Event("42", paid{"9.50", 3}) }, "shop.Paid", nil, &paid{"9.50", 3}, decodeAvro, nil},
		{
			first, func() (outbox.Event, error) { return first.Event("42", &timestamppb.Timestamp{Seconds: 7}) }, "google.protobuf.Timestamp",
			[]int{0},
			&timestamppb.Timestamp{Seconds: 7}, decodeProto,
			[]byte{0},
		},
		{later, func() (outbox.Event, error) { return later.Event("42", wrapperspb.String("ü")) }, "google.protobuf.StringValue", []int{7}, wrapperspb.String("ü"), decodeProto, []byte{2, 14}},
		{nested, func() (outbox.Event, error) {
			return nested.Event("42", &descriptorpb.DescriptorProto_ExtensionRange{Start: proto.Int32(5)})
		}, "order-value", []int{2, 0}, &descriptorpb.DescriptorProto_ExtensionRange{Start: proto.Int32(5)}, decodeProto, []byte{4, 4, 0}},
	} {
		e, err := c.event()
		if err != nil {
			t.Fatal(err)
		}
		if e.AggregateType != "order" || e.AggregateID != "42" || e.Type == "" || c.schema.Subject() != c.subject {
			t.Errorf("%+v of subject %s", e, c.schema.Subject())
		}
		payload := e.Payload.([]byte)
		id := c.schema.ID()
		if head := append([]byte{0, 0, 0, byte(id >> 8), byte(id)}, c.raw...); id < 258 || !bytes.HasPrefix(payload, head) {
			t.Errorf("%s, id %d: % x does not begin with % x", c.subject, id, payload, head)
		}
		var serde sr.Serde
		serde.Register(id, c.want, sr.DecodeFn(c.decode), sr.Index(c.index...))
		got := reflect.New(reflect.TypeOf(c.want).Elem()).Interface()
		if err := serde.Decode(payload, got); err != nil {
			t.Errorf("%s: %v", c.subject, err)
		}
		if m, ok := got.(proto.Message); ok && !proto.Equal(m, c.want.(proto.Message)) || !ok && !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, want %v", c.subject, got, c.want)
		}
	}
}

func decodeAvro(b []byte, v any) error  { return avro.Unmarshal(avro.MustParse(paidSchema), b, v) }
func decodeProto(b []byte, v any) error { return proto.Unmarshal(b, v.(proto.Message)) }

// TestRegistryAway: without the registry an application cannot get ids, and does not need it for events when it has
// them. What has failed can be called again.
func TestRegistryAway(t *testing.T) {
	fake, client := newRegistry(t)
	one, two := Avro[paid]("order", "One", paidSchema, Subject("one")), Avro[paid]("order", "Two", paidSchema, Subject("two"))
	if err := Lookup(t.Context(), client, one); err == nil || !strings.Contains(err.Error(), "look up the schema of order One, subject one") || one.ID() != 0 {
		t.Errorf("not registered: %v", err)
	}
	requests := 0
	fail := func(status int, path string) {
		fake.ClearInterceptors()
		fake.Intercept(func(w http.ResponseWriter, req *http.Request) bool {
			requests++
			if !strings.Contains(req.URL.Path, path) {
				return false
			}
			w.WriteHeader(status)
			_, _ = w.Write([]byte(`{}`))
			return true
		})
	}
	fail(http.StatusServiceUnavailable, "/two/")
	if err := Register(t.Context(), client, two, one); err == nil || !strings.Contains(err.Error(), "register the schema of order Two, subject two") || one.ID() == 0 || two.ID() != 0 {
		t.Errorf("one of two: %v, ids %d and %d", err, one.ID(), two.ID())
	}
	fail(http.StatusInternalServerError, "")
	requests = 0
	if _, err := one.Event("42", paid{}); err != nil || requests != 0 {
		t.Errorf("an event after %d requests: %v", requests, err)
	}
	if _, err := two.Event("42", paid{}); err == nil {
		t.Error("an event without an id")
	}
	if err := Register(t.Context(), client, one); err != nil || requests != 0 {
		t.Errorf("registered again after %d requests: %v", requests, err)
	}
	fake.ClearInterceptors()
	if err := Lookup(t.Context(), client, one, two); err == nil || two.ID() != 0 {
		t.Errorf("it was never registered: %v", err)
	}
	if err := Register(t.Context(), client, one, two); err != nil || two.ID() == 0 {
		t.Error(err)
	}
	again := Avro[paid]("order", "One", paidSchema, Subject("one"))
	if err := Lookup(t.Context(), client, again); err != nil || again.ID() != one.ID() {
		t.Errorf("%v, id %d, want %d", err, again.ID(), one.ID())
	}
	fail(http.StatusOK, "") // without an id
	if err := Register(t.Context(), client, Avro[paid]("order", "Three", paidSchema)); err == nil || !strings.Contains(err.Error(), "has the id 0") {
		t.Errorf("an answer without an id: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Register(ctx, client, Avro[paid]("order", "Four", paidSchema)); err == nil {
		t.Error("the context has ended")
	}
}

// TestCompatible: srfake compares nothing, so its answers are given.
func TestCompatible(t *testing.T) {
	fake, client := newRegistry(t)
	k := Avro[paid]("order", "Paid", paidSchema)
	for _, c := range []struct {
		status       int
		answer, want string
	}{
		{200, `{"is_compatible": true}`, ""},
		{404, `{"error_code": 40401, "message": "Subject not found"}`, ""},
		{404, `{"error_code": 40402, "message": "Version not found"}`, ""},
		{404, `no registry`, "check the schema of order Paid, subject shop.Paid"},
		{200, `{"is_compatible": false, "messages": ["total has no default"]}`, "total has no default"},
		{200, `{}`, "would break consumers"},
		{422, `{"error_code": 42201, "message": "Invalid schema"}`, "Invalid schema"},
		{503, `{}`, "check the schema of order Paid, subject shop.Paid"},
	} {
		fake.ClearInterceptors()
		fake.Intercept(func(w http.ResponseWriter, req *http.Request) bool {
			if req.URL.Path != "/compatibility/subjects/shop.Paid/versions" || req.URL.Query().Get("verbose") != "true" {
				t.Errorf("asked: %s", req.URL)
			}
			w.Header().Set("Content-Type", "application/vnd.schemaregistry.v1+json")
			w.WriteHeader(c.status)
			_, _ = w.Write([]byte(c.answer))
			return true
		})
		if err := Compatible(t.Context(), client, k); c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%d %s: %v", c.status, c.answer, err)
		}
	}
	if k.ID() != 0 || fake.SubjectExists("shop.Paid") {
		t.Error("it has registered the schema")
	}
}

func TestDefinitionsPanic(t *testing.T) {
	for what, define := range map[string]func(){
		"no type":     func() { Avro[paid]("", "Paid", paidSchema) },
		"no schema":   func() { Avro[paid]("order", "Paid", "{") },
		"no name":     func() { Avro[paid]("order", "Paid", `"string"`) },
		"no subject":  func() { Avro[paid]("order", "Paid", paidSchema, Subject("")) },
		"bad message": func() { Protobuf[*wrapperspb.StringValue]("order", "", file) },
	} {
		t.Run(what, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("it does not panic")
				}
			}()
			define()
		})
	}
	k := Avro[paid]("order", "Paid", paidSchema, References(sr.SchemaReference{Name: "a", Subject: "a", Version: 1}))
	if refs := k.schema.References; len(refs) != 1 || k.AggregateType() != "order" || k.EventType() != "Paid" {
		t.Errorf("%+v", k)
	}
	// Two versions of a type in one process do not meet in a cache.
	type more struct {
		Total string `avro:"total"`
		Note  string `avro:"note"`
	}
	_, client := newRegistry(t)
	v2 := Avro[more]("order", "Paid", strings.ReplaceAll(strings.ReplaceAll(paidSchema, `"items"`, `"note"`), `"long"`, `"string"`), Subject("v2"))
	if err := Register(t.Context(), client, v2); err != nil {
		t.Fatal(err)
	}
	if e, err := v2.Event("42", more{"1", "x"}); err != nil || !bytes.HasSuffix(e.Payload.([]byte), []byte("\x021\x02x")) {
		t.Errorf("%q, %v", e.Payload, err)
	}
	bad := Protobuf[*wrapperspb.StringValue]("order", "Paid", file)
	if err := Register(t.Context(), client, bad); err != nil {
		t.Fatal(err)
	}
	if _, err := bad.Event("42", nil); err == nil || !strings.Contains(err.Error(), "StringValue is nil") {
		t.Error(err)
	}
	if _, err := bad.Event("42", wrapperspb.String("\xff")); err == nil {
		t.Error("a string that is not UTF-8")
	}
}
