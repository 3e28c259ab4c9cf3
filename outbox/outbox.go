// Package outbox writes events into a transactional outbox, in the transaction that changes the application's own
// tables. The daemon outboxcdc delivers them to Kafka after the commit.
//
// Define the events of a service once, as package variables, and emit them in the transaction:
//
//	var OrderPaid = outbox.Define[Paid]("order", "OrderPaid")
//
//	event, err := OrderPaid.Event(order.ID, Paid{Total: "9.50"})
//	…
//	err = writer.Emit(ctx, tx, event)
//
// The package guarantees:
//
//   - Emit is part of the caller's transaction. The package commits nothing, rolls nothing back, retries nothing and
//     changes no schema. A *sql.DB or *sql.Conn in place of the transaction does not compile.
//   - Emit is one statement with one parameter, however many events it writes. Only with [Config.DeleteRows] there is
//     a second one.
//   - Emit checks everything that the daemon would call poison, and that can be known here, before the first
//     statement. The error is an [*EventError], and the transaction can go on.
//
// Package pgxoutbox does the same in transactions of pgx, and package outboxtest has a recorder for unit tests and a
// contract test for payloads. docs/producers.md of the project is the guide.
package outbox

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"fmt"
	"time"
)

// Event is what Emit writes. AggregateType, AggregateID and Type are required.
type Event struct {
	// ID identifies the event: consumers find duplicates by it. If it is zero, Emit takes a [NewID].
	ID ID
	// AggregateType selects the topic, and AggregateID is the record's key. Events of one key are delivered in order.
	AggregateType, AggregateID string
	// Type becomes the header "type".
	Type string
	// Payload becomes the record's value. A json.RawMessage or []byte is written unchanged, nil is SQL NULL (by default
	// a tombstone), and everything else is encoded by json.Marshal.
	Payload any
	// Headers become headers of the record.
	Headers map[string]string
	// SchemaVersion, if it is not 0, is written to its column, or without one becomes the header [HeaderSchemaVersion].
	SchemaVersion int
	// OccurredAt, if it is not zero, is written to its column, or without one becomes the header [HeaderOccurredAt] (RFC
	// 3339 in UTC, microseconds). It is the time of the event for the application. The time at which the row was
	// written, by which the daemon's commands order rows, is the default of a column that this package does not write.
	OccurredAt time.Time
}

// The headers of SchemaVersion and OccurredAt.
const (
	HeaderSchemaVersion = "schema_version"
	HeaderOccurredAt    = "occurred_at"
)

// Emit writes the events, in their order, as part of the transaction. If an event is not valid, Emit returns an
// [*EventError] and has written nothing. After any other error the transaction cannot be committed.
func (w *Writer) Emit(ctx context.Context, tx *sql.Tx, events ...Event) error {
	statements, err := w.Statements(ctx, events...)
	if err != nil {
		return err
	}
	for _, s := range statements {
		if _, err := tx.ExecContext(ctx, s.SQL, s.Args...); err != nil {
			return fmt.Errorf("outbox: write %d events: %w", len(events), err)
		}
	}
	return nil
}

// Lock waits until no other transaction holds the lock of this key, and holds it until the end of tx. If every
// transaction that emits events of the key takes the lock before it emits, the events are committed in the order in
// which they were emitted. It is not needed where the application already locks the row that the key identifies.
//
// Two keys may share a lock. Then one transaction waits for the other without need, and nothing else happens. A
// transaction that locks several keys takes them in a fixed order, such as sorted, because otherwise two transactions
// can deadlock.
func (w *Writer) Lock(ctx context.Context, tx *sql.Tx, aggregateType, id string) error {
	s := LockStatement(aggregateType, id)
	if _, err := tx.ExecContext(ctx, s.SQL, s.Args...); err != nil {
		return fmt.Errorf("outbox: lock %s/%s: %w", aggregateType, id, err)
	}
	return nil
}

// Statement is SQL with its arguments.
type Statement struct {
	SQL  string
	Args []any
}

// Statements returns what Emit executes, one after the other, for the same events. It is for drivers other than
// database/sql, such as package pgxoutbox. There is no statement if there are no events.
func (w *Writer) Statements(ctx context.Context, events ...Event) ([]Statement, error) {
	if len(events) == 0 {
		return nil, nil
	}
	document, ids, err := w.encode(ctx, events)
	if err != nil {
		return nil, err
	}
	write := Statement{w.writeSQL, append(w.writeArgs[:len(w.writeArgs):len(w.writeArgs)], document)}
	if !w.config.DeleteRows {
		return []Statement{write}, nil
	}
	return []Statement{write, {w.deleteSQL, []any{ids}}}, nil
}

// LockStatement returns what Lock executes. The lock's number is the first 8 bytes of SHA-256 of "type/id", so that
// applications in other languages can take the same lock.
func LockStatement(aggregateType, id string) Statement {
	sum := sha256.Sum256([]byte(aggregateType + "/" + id))
	return Statement{"SELECT pg_advisory_xact_lock($1)", []any{int64(binary.BigEndian.Uint64(sum[:]))}}
}
