// Package record is a database that executes nothing and remembers the events of committed transactions. Packages
// outboxtest and pgxoutboxtest make it a database of database/sql and of pgx.
package record

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/outboxcdc/outboxcdc/outbox"
)

// Handler answers a statement that is not one of package outbox. The number of rows is also the number of affected
// rows.
type Handler func(query string, args []any) (rows [][]any, err error)

// Database remembers events. Its methods may be called by several goroutines.
type Database struct {
	config    outbox.Config
	write     string // the statements of package outbox
	ignored   []string
	mu        sync.Mutex
	handler   Handler
	committed []outbox.Event
}

// New returns a database for the events of a writer.
func New(w *outbox.Writer) *Database {
	statements, err := w.Statements(context.Background(), outbox.Event{AggregateType: "a", AggregateID: "a", Type: "a"})
	if err != nil { // of Config.Topic or Config.Inject
		panic("record: a minimal event is not valid: " + err.Error())
	}
	d := &Database{config: w.Config(), write: statements[0].SQL, ignored: []string{outbox.LockStatement("", "").SQL}}
	for _, s := range statements[1:] {
		d.ignored = append(d.ignored, s.SQL)
	}
	return d
}

// Handle sets the handler of statements. Without one, each statement affects one row and returns none.
func (d *Database) Handle(h Handler) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.handler = h
}

// Events returns the events of committed transactions, in the order of the commits.
func (d *Database) Events() []outbox.Event {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.committed)
}

// Begin starts a transaction.
func (d *Database) Begin() *Tx { return &Tx{database: d} }

// Tx is a transaction, or part of one that can be rolled back alone.
type Tx struct {
	database *Database
	parent   *Tx // of a part
	events   []outbox.Event
}

// Begin starts a part of the transaction.
func (tx *Tx) Begin() *Tx { return &Tx{database: tx.database, parent: tx} }

// Commit keeps the events. Those of a part are kept when the whole transaction is committed.
func (tx *Tx) Commit() {
	if tx.parent != nil {
		tx.parent.events = append(tx.parent.events, tx.events...)
		return
	}
	d := tx.database
	d.mu.Lock()
	defer d.mu.Unlock()
	d.committed = append(d.committed, tx.events...)
}

// Result is what a statement returns.
type Result struct {
	Rows     [][]any
	Affected int64
}

// Run executes a statement inside the transaction.
func (tx *Tx) Run(query string, args []any) (Result, error) {
	d := tx.database
	if query == d.write {
		events, err := d.decode(args[len(args)-1].(string))
		tx.events = append(tx.events, events...)
		return Result{Affected: int64(len(events))}, err
	}
	return d.Run(query, args)
}

// Run executes a statement outside a transaction.
func (d *Database) Run(query string, args []any) (Result, error) {
	d.mu.Lock()
	h := d.handler
	d.mu.Unlock()
	if h == nil || slices.Contains(d.ignored, query) {
		return Result{Affected: 1}, nil
	}
	rows, err := h(query, args)
	return Result{Rows: rows, Affected: int64(len(rows))}, err
}

// decode returns the events of a document.
func (d *Database) decode(document string) ([]outbox.Event, error) {
	var rows []map[string]json.RawMessage
	if err := json.Unmarshal([]byte(document), &rows); err != nil {
		return nil, fmt.Errorf("read the events of a statement: %w", err)
	}
	var events []outbox.Event
	for _, row := range rows {
		e, err := d.event(row)
		if err != nil {
			return nil, fmt.Errorf("read an event of a statement: %w", err)
		}
		events = append(events, e)
	}
	return events, nil
}

// event returns the event that Emit was called with, with its ID, all its headers, and the payload as it is written.
func (d *Database) event(row map[string]json.RawMessage) (e outbox.Event, err error) {
	c := d.config.Columns
	member := func(column string, v any) {
		if raw, ok := row[column]; ok && err == nil {
			err = json.Unmarshal(raw, v)
		}
	}
	var id, occurredAt string
	member(c.ID, &id)
	member(c.AggregateType, &e.AggregateType)
	member(c.AggregateID, &e.AggregateID)
	member(c.EventType, &e.Type)
	member(c.Headers, &e.Headers)
	member(c.SchemaVersion, &e.SchemaVersion)
	member(c.OccurredAt, &occurredAt)
	if err == nil && id != "" {
		e.ID, err = outbox.ParseID(id)
	}
	if v, ok := e.Headers[outbox.HeaderSchemaVersion]; ok && e.SchemaVersion == 0 {
		e.SchemaVersion, _ = strconv.Atoi(v)
	}
	if v, ok := e.Headers[outbox.HeaderOccurredAt]; ok && occurredAt == "" {
		occurredAt = v
	}
	e.OccurredAt, _ = time.Parse(time.RFC3339Nano, occurredAt) // a header of the application may have another form
	if raw, ok := row[c.Payload]; ok && err == nil {
		e.Payload, err = d.payload(raw)
	}
	return e, err
}

func (d *Database) payload(raw json.RawMessage) (any, error) {
	switch d.config.PayloadType {
	case outbox.Text, outbox.Bytea:
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return nil, err
		}
		if d.config.PayloadType == outbox.Text {
			return []byte(s), nil
		}
		return hex.DecodeString(strings.TrimPrefix(s, `\x`))
	}
	return raw, nil
}
