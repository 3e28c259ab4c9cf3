// Package registry makes events whose payload has a schema in a schema registry: Avro or Protobuf, in the framing of
// Confluent's serializers (a zero byte, the id of the schema in four bytes, for Protobuf the index of the message, the
// data). The daemon delivers the bytes unchanged.
//
// Define the events once, as package variables, and give their schemas ids when the application starts:
//
//	var OrderPaid = registry.Avro[Paid]("order", "OrderPaid", paidSchema)
//
//	client, err := sr.NewClient(sr.URLs("https://registry.example"))
//	…
//	err = registry.Register(ctx, client, OrderPaid)
//	…
//	event, err := OrderPaid.Event(order.ID, Paid{Total: "9.50"})
//	…
//	err = writer.Emit(ctx, tx, event)
//
// Only [Register], [Lookup] and [Compatible] ask the registry, and they are not part of a transaction. An application
// that has its ids does not need the registry any more: [Kind.Event] does no I/O.
//
// The payload is binary: the writer needs a column of the type bytea ([outbox.Bytea]).
package registry

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync/atomic"

	"github.com/outboxcdc/outboxcdc/outbox"
	"github.com/twmb/franz-go/pkg/sr"
)

// HeaderSchemaID is the header of an event that has the id of its schema, in decimal digits. The daemon's setting
// route.fields can make a link of it: dataschema: "https://registry.example/schemas/ids/{schema_id}".
const HeaderSchemaID = "schema_id"

// Kind is a type of events whose payloads are values of P. Create it with [Avro] or [Protobuf]. It may be used by
// several goroutines at once.
type Kind[P any] struct {
	definition
	encode func(P) ([]byte, error)
}

// Schema is what [Register], [Lookup] and [Compatible] take: a [Kind].
type Schema interface {
	// Subject is the registry's name for the versions of the schema.
	Subject() string
	// ID is the id of the schema, or 0 as long as it has none.
	ID() int

	define() *definition
}

type definition struct {
	aggregateType, eventType string

	subject string
	schema  sr.Schema
	index   []int // of the message in the file, for Protobuf
	given   atomic.Pointer[identity]
}

// identity is what the registry has said. It never changes.
type identity struct {
	id     int
	prefix []byte // of each payload
}

// Option is an option of [Avro] and [Protobuf].
type Option func(*definition)

// Subject sets the subject, if the registry's names follow another rule than [Kind.Subject].
func Subject(name string) Option { return func(d *definition) { d.subject = name } }

// References are the schemas that the schema imports, which the registry has to have already.
func References(refs ...sr.SchemaReference) Option {
	return func(d *definition) { d.schema.References = append(d.schema.References, refs...) }
}

// newKind panics as [outbox.Define] does, and if something else in a definition is wrong.
func newKind[P any](aggregateType, eventType string, d *definition, encode func(P) ([]byte, error), options []Option) *Kind[P] {
	outbox.Define[P](aggregateType, eventType)
	k := &Kind[P]{encode: encode}
	k.aggregateType, k.eventType, k.subject, k.schema, k.index = aggregateType, eventType, d.subject, d.schema, d.index
	for _, option := range options {
		option(&k.definition)
	}
	if k.subject == "" {
		panic(fmt.Sprintf("registry: the subject of %q %q is empty", aggregateType, eventType))
	}
	return k
}

// Event returns an event with the encoded payload. Later changes of p do not change the event. The caller may set
// further fields and headers. It is an error if the schema has no id yet.
func (k *Kind[P]) Event(aggregateID string, p P) (outbox.Event, error) {
	given := k.given.Load()
	if given == nil {
		return outbox.Event{}, fmt.Errorf("registry: the schema of %s %s (subject %s) has no id: call registry.Register or registry.Lookup when the application starts",
			k.aggregateType, k.eventType, k.subject)
	}
	body, err := k.encode(p)
	if err != nil {
		return outbox.Event{}, fmt.Errorf("registry: encode the payload of %s %s: %w", k.aggregateType, k.eventType, err)
	}
	payload := make([]byte, 0, len(given.prefix)+len(body))
	return outbox.Event{
		AggregateType: k.aggregateType, AggregateID: aggregateID, Type: k.eventType,
		Payload: append(append(payload, given.prefix...), body...),
		Headers: map[string]string{HeaderSchemaID: strconv.Itoa(given.id)},
	}, nil
}

// AggregateType returns the aggregate type of the events.
func (k *Kind[P]) AggregateType() string { return k.aggregateType }

// EventType returns the type of the events.
func (k *Kind[P]) EventType() string { return k.eventType }

// Subject returns the option [Subject], or the full name of the Avro type or the Protobuf message (Confluent's
// RecordNameStrategy): events of several types go to one topic, so that a subject per topic would compare their
// schemas with each other.
func (d *definition) Subject() string { return d.subject }

// ID returns the id of the schema, or 0 as long as it has none.
func (d *definition) ID() int {
	if given := d.given.Load(); given != nil {
		return given.id
	}
	return 0
}

func (d *definition) define() *definition { return d }

// Register gives each schema its id: it registers the schema, unless the registry has it. The registry refuses a schema
// that its compatibility rule does not allow. Call it when the application starts, and not in a transaction. If it
// fails for some of the schemas, all other ones have their ids, and it can be called again. A schema that has an id
// keeps it, and is not asked for again.
func Register(ctx context.Context, client *sr.Client, schemas ...Schema) error {
	return identify(schemas, "register", func(d *definition) (int, error) {
		return client.RegisterSchema(ctx, d.subject, d.schema, -1, -1)
	})
}

// Lookup is like [Register], but it registers nothing: it fails for a schema that the registry does not have. It is for
// applications that may not write to the registry.
func Lookup(ctx context.Context, client *sr.Client, schemas ...Schema) error {
	return identify(schemas, "look up", func(d *definition) (int, error) {
		found, err := client.LookupSchema(ctx, d.subject, d.schema)
		return found.ID, err
	})
}

func identify(schemas []Schema, what string, ask func(*definition) (int, error)) error {
	var problems []error
	for _, s := range schemas {
		d := s.define()
		if d.ID() != 0 {
			continue
		}
		id, err := ask(d)
		if err == nil && (id <= 0 || id > math.MaxInt32) {
			err = fmt.Errorf("the registry's answer has the id %d", id)
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("registry: %s the schema of %s %s, subject %s: %w", what, d.aggregateType, d.eventType, d.subject, err))
			continue
		}
		prefix, err := new(sr.ConfluentHeader).AppendEncode(nil, id, d.index)
		if err != nil { // never, says its documentation
			problems = append(problems, err)
			continue
		}
		d.given.CompareAndSwap(nil, &identity{id, prefix})
	}
	return errors.Join(problems...)
}

// Compatible asks the registry whether it would accept the schemas: each one by the compatibility rule of its subject.
// It changes nothing, and a subject that does not exist accepts every schema. Call it in a test of the application,
// with the registry that consumers use, so that a change that breaks them fails the build and not the next start.
func Compatible(ctx context.Context, client *sr.Client, schemas ...Schema) error {
	var problems []error
	for _, s := range schemas {
		d := s.define()
		const allThatTheRuleNames = -2
		answer, err := client.CheckCompatibility(sr.WithParams(ctx, sr.Verbose), d.subject, allThatTheRuleNames, d.schema)
		var refusal *sr.ResponseError
		switch {
		case errors.As(err, &refusal) && (refusal.ErrorCode == sr.ErrSubjectNotFound.Code || refusal.ErrorCode == sr.ErrVersionNotFound.Code):
		case err != nil:
			problems = append(problems, fmt.Errorf("registry: check the schema of %s %s, subject %s: %w", d.aggregateType, d.eventType, d.subject, err))
		case !answer.Is:
			problems = append(problems, fmt.Errorf("registry: the schema of %s %s would break consumers, by the rule of the subject %s: %q; undo the change, or give a new type of events a subject of its own",
				d.aggregateType, d.eventType, d.subject, answer.Messages))
		}
	}
	return errors.Join(problems...)
}
