package outbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxcdc/outboxcdc/outbox"
	"github.com/outboxcdc/outboxcdc/router"
)

// refusal is an event that Emit refuses, and what would have happened to it without the check: the daemon's cause, or
// the server's SQLSTATE.
type refusal struct {
	event outbox.Event
	field string // of the EventError
	cause router.Cause
	state string
	raw   string
}

// otherCauses are the causes that the writer cannot know, or of which it can write no example.
var otherCauses = map[router.Cause]string{
	router.NoRoute:      "depends on route.topics and route.replace",
	router.MissingTopic: "depends on Kafka",
	router.Rejected:     "depends on Kafka",
	router.NullID:       "the writer never writes NULL or an empty id",
	router.NullPayload:  "a nil payload is NULL on purpose",
	router.BadPartition: "no field of Event is the partition",
	router.Update:       "the writer never updates",
}

// incompressible returns JSON of a size.
func incompressible(size int) json.RawMessage {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte('a' + rand.IntN(26))
	}
	b[0], b[size-1] = '"', '"'
	return b
}

func refusals(prefix string) []refusal {
	e := func(change func(*outbox.Event)) outbox.Event {
		e := outbox.Event{AggregateType: prefix + ".order", AggregateID: "42", Type: "OrderPaid", Payload: json.RawMessage(`{}`)}
		change(&e)
		return e
	}
	topic := func(name string) outbox.Event { return e(func(e *outbox.Event) { e.AggregateType = name }) }
	header := func(name, value string) outbox.Event {
		return e(func(e *outbox.Event) { e.Headers = map[string]string{name: value} })
	}
	payload := func(text string) outbox.Event {
		return e(func(e *outbox.Event) { e.Payload = json.RawMessage(text) })
	}
	key := func(text string) outbox.Event { return e(func(e *outbox.Event) { e.AggregateID = text }) }
	long := strings.Repeat("x", 70000)
	at := func(year int) outbox.Event {
		return e(func(e *outbox.Event) { e.OccurredAt = time.Date(year, 6, 1, 0, 0, 0, 0, time.UTC) })
	}
	return []refusal{
		{event: topic("a b"), field: "AggregateType", cause: router.IllegalTopic},
		{event: topic("ü"), field: "AggregateType", cause: router.IllegalTopic},
		{event: topic(""), field: "AggregateType", cause: router.IllegalTopic},
		{event: topic(long[:250]), field: "AggregateType", cause: router.IllegalTopic},
		{event: topic("."), field: "AggregateType", cause: router.IllegalTopic},
		{event: topic(".."), field: "AggregateType", cause: router.IllegalTopic},
		{event: topic("__consumer_offsets"), field: "AggregateType", cause: router.IllegalTopic},
		{event: topic("outboxcdc.positions"), field: "AggregateType", cause: router.IllegalTopic},
		{event: topic("outbox.dead_letter"), field: "AggregateType", cause: router.IllegalTopic},
		{event: topic("a\x00"), field: "AggregateType", state: "22021"},
		{event: header("id", "1"), field: `Headers["id"]`, cause: router.BadHeaders},
		{event: header("type", "1"), field: `Headers["type"]`, cause: router.BadHeaders},
		{event: header("outboxcdc-position", "1"), field: `Headers["outboxcdc-position"]`, cause: router.BadHeaders},
		{event: header("a", "\x00"), field: `Headers["a"]`, state: "22P05"},
		{event: header("a", "\xff"), field: `Headers["a"]`, state: "22021"},
		{event: payload(string(incompressible(1_200_000))), field: "Payload", cause: router.TooLarge},
		{event: payload(`{`), field: "Payload", state: "22P02"},
		{event: payload(`"\u0000"`), field: "Payload", state: "22P05"},
		{event: payload(`"\ud800"`), field: "Payload", state: "22P02"},
		{event: payload("\"\xff\""), field: "Payload", state: "22021"},
		{event: key("a\x00"), field: "AggregateID", state: "22021"},
		{event: key("a\xff"), field: "AggregateID", state: "22021"},
		{event: key(long), field: "AggregateID", state: "23514"},
		{event: e(func(e *outbox.Event) { e.Type = long }), field: "Type", state: "23514"},
		{event: key("a\n"), field: "AggregateID", cause: router.BadHeaders},
		{event: e(func(e *outbox.Event) { e.Type = "a\u0080" }), field: "Type", cause: router.BadHeaders},
		{event: e(func(e *outbox.Event) { e.Type = "" }), field: "Type", cause: router.BadHeaders},
		{event: at(1969), field: "OccurredAt", cause: router.BadTimestamp},
		{event: at(2262), field: "OccurredAt", cause: router.BadTimestamp},
		// Of bodies of messages, only those can be written here that the server does not refuse.
		{event: payload(`{`), field: "Payload", cause: router.BadPayload, raw: `{"id":"ID","aggregate_type":"` + prefix + `.order","aggregate_id":"1","event_type":"t","payload":{}`},
		{event: key("\x00"), field: "AggregateID", cause: router.BadPayload, raw: `{"id":"ID","aggregate_type":"` + prefix + `.order","aggregate_id":"\u0000","event_type":"t"}`},
		{event: key(""), field: "AggregateID", cause: router.NullKey, raw: `{"id":"ID","aggregate_type":"` + prefix + `.order","event_type":"t"}`},
	}
}

// Each check of Emit refuses what the daemon would call poison or the server would refuse; each cause of the daemon
// has a check, or is one that the writer cannot know.
func TestChecksAreTheDaemons(t *testing.T) {
	t.Parallel()
	name := "checks" + outbox.NewID().String()[:8]
	p := newPipeline(t, options{
		before: []string{`CREATE TABLE outbox (
			id text PRIMARY KEY, aggregate_type text NOT NULL CHECK (octet_length(aggregate_type) <= 65536),
			aggregate_id text NOT NULL CHECK (octet_length(aggregate_id) <= 65536), event_type text NOT NULL CHECK (octet_length(event_type) <= 65536),
			payload jsonb, headers jsonb NOT NULL DEFAULT '{}', created_at timestamptz)`},
		settings: []string{
			"OUTBOXCDC_ROUTE_TOPIC={aggregate_type}", "OUTBOXCDC_ROUTE_TIMESTAMP=created_at", "OUTBOXCDC_ROUTE_FORMAT=cloudevents_binary",
			"OUTBOXCDC_ROUTE_FIELDS=source=//shop.example", "OUTBOXCDC_POISON_POLICY=dead_letter", "OUTBOXCDC_POISON_TOPIC=outbox.dead_letter",
			"OUTBOXCDC_POISON_OVERSIZE=cut", "OUTBOXCDC_MESSAGES_PREFIX=raw",
		},
	})
	columns := outbox.BundledColumns()
	columns.OccurredAt = "created_at"
	w := newWriter(t, outbox.Config{Columns: columns, CloudEvents: true, Topic: func(e outbox.Event) string { return e.AggregateType }})
	ctx := testContext(t)
	conn, err := pgx.Connect(ctx, p.url())
	must(t, err)
	defer conn.Close(context.Background())

	covered := map[router.Cause]bool{}
	expected := map[string]refusal{} // by id
	for _, r := range refusals(name) {
		var problem *outbox.EventError
		if _, err := w.Statements(ctx, r.event); !errors.As(err, &problem) || problem.Field != r.field {
			t.Errorf("%.200q: %v, want an error about %s", r.event.AggregateType+" "+r.event.AggregateID, err, r.field)
		}
		covered[r.cause] = true
		id := outbox.NewID().String()
		err := writeUnchecked(ctx, conn, id, &r)
		var refused *pgconn.PgError
		if errors.As(err, &refused); refused != nil && refused.Code != r.state || refused == nil && (err != nil || r.state != "") {
			t.Errorf("%s: the server's answer is %v, want SQLSTATE %q", r.field, err, r.state)
		}
		if err == nil {
			expected[id] = r
		}
	}
	for _, cause := range router.Causes {
		if _, other := otherCauses[cause]; covered[cause] == other {
			t.Errorf("the cause %s: a check has it: %t; it is in otherCauses: %t", cause, covered[cause], other)
		}
	}
	for _, letter := range p.records("outbox.dead_letter", len(expected)) {
		id := cmp.Or(header(&letter, "id"), header(&letter, "ce_id"))
		r, ok := expected[id]
		if !ok && header(&letter, "outboxcdc-error") == string(router.BadPayload) { // its id could not be read
			continue
		}
		if got := header(&letter, "outboxcdc-error"); got != string(r.cause) {
			t.Errorf("%s: the daemon's cause is %s, want %s (%s)", r.field, got, r.cause, header(&letter, "outboxcdc-error-message"))
		}
		delete(expected, id)
	}
	for id, r := range expected {
		if r.raw == "" {
			t.Errorf("the event %s, which Emit refuses because of %s, is no dead letter", id, r.field)
		}
	}
}

// writeUnchecked writes the event as an application without this package would.
func writeUnchecked(ctx context.Context, conn *pgx.Conn, id string, r *refusal) error {
	if r.raw != "" {
		_, err := conn.Exec(ctx, `SELECT pg_logical_emit_message(true, 'raw', $1::text)`, strings.ReplaceAll(r.raw, "ID", id))
		return err
	}
	var occurredAt *time.Time
	if !r.event.OccurredAt.IsZero() {
		occurredAt = &r.event.OccurredAt
	}
	var headers []byte
	for name, value := range r.event.Headers {
		if value == "\xff" {
			headers = []byte(`{"a": "` + value + `"}`)
			continue
		}
		b, err := json.Marshal(map[string]string{name: value})
		if err != nil {
			return err
		}
		headers = b
	}
	_, err := conn.Exec(ctx, `INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload, headers, created_at)
		VALUES ($1, $2, $3, $4, $5::text::jsonb, coalesce($6::text, '{}')::jsonb, $7)`,
		id, r.event.AggregateType, r.event.AggregateID, r.event.Type, string(r.event.Payload.(json.RawMessage)), orNil(headers), occurredAt)
	return err
}

func orNil(b []byte) any {
	if b == nil {
		return nil
	}
	return string(b)
}
