package outbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"

	"github.com/outboxcdc/outboxcdc/outbox"
	"github.com/outboxcdc/outboxcdc/outbox/outboxtest"
)

// Paid is the payload of OrderPaid.
type Paid struct {
	Total string `json:"total"`
}

// OrderPaid is emitted when an order is paid.
var OrderPaid = outbox.Define[Paid]("order", "OrderPaid", outbox.SchemaVersion(2))

// pay is a method of an application.
func pay(ctx context.Context, db *sql.DB, writer *outbox.Writer, order string, paid Paid) error {
	event, err := OrderPaid.Event(order, paid)
	if err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, "UPDATE orders SET state = 'paid' WHERE id = $1", order); err != nil {
		return err
	}
	if err := writer.Emit(ctx, tx, event); err != nil {
		return err
	}
	return tx.Commit()
}

func Example() {
	writer, err := outbox.New(outbox.Config{})
	if err != nil {
		panic(err)
	}
	// In a test; a service opens its own database.
	recorder := outboxtest.NewRecorder(new(testing.T), writer)

	if err := pay(context.Background(), recorder.DB(), writer, "42", Paid{Total: "9.50"}); err != nil {
		panic(err)
	}
	for _, e := range recorder.Events() {
		fmt.Printf("%s %s %s %s %v\n", e.AggregateType, e.AggregateID, e.Type, e.Payload, e.Headers)
	}
	// Output: order 42 OrderPaid {"total":"9.50"} map[schema_version:2]
}

// carrier is propagation.MapCarrier of OpenTelemetry.
type carrier map[string]string

// propagator stands for otel.GetTextMapPropagator().
var propagator interface {
	Inject(ctx context.Context, carrier carrier)
} = traceContext{}

type traceContext struct{}

func (traceContext) Inject(_ context.Context, c carrier) {
	c["traceparent"] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
}

// The trace context of ctx becomes headers of the events.
func ExampleConfig_traceContext() {
	writer, err := outbox.New(outbox.Config{
		Inject: func(ctx context.Context, headers map[string]string) {
			propagator.Inject(ctx, carrier(headers))
		},
	})
	if err != nil {
		panic(err)
	}
	recorder := outboxtest.NewRecorder(new(testing.T), writer)
	if err := pay(context.Background(), recorder.DB(), writer, "42", Paid{Total: "9.50"}); err != nil {
		panic(err)
	}
	fmt.Println(recorder.Events()[0].Headers["traceparent"])
	// Output: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
}

// The error of an event that could not be delivered names the field. Nothing was written.
func ExampleEventError() {
	writer, err := outbox.New(outbox.Config{})
	if err != nil {
		panic(err)
	}
	recorder := outboxtest.NewRecorder(new(testing.T), writer)
	fmt.Println(pay(context.Background(), recorder.DB(), writer, "", Paid{}))
	// Output: outbox: event 0 of the call: AggregateID is empty
}
