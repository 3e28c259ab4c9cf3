package outbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Config is where and how a [Writer] writes. The zero value is for the bundled table and the daemon's default settings.
type Config struct {
	// Table is the daemon's setting outbox.table, in the same syntax; "" is public.outbox.
	Table string
	// Columns is the daemon's setting outbox.columns; the zero value is [BundledColumns].
	Columns Columns
	// PayloadType is the type of the payload's column.
	PayloadType PayloadType

	// DeleteRows deletes the rows in the same transaction, by a second statement. The daemon delivers the events all the
	// same, because it reads the WAL, and the table stays empty. The application's role needs DELETE on the table and
	// SELECT on the id.
	DeleteRows bool
	// MessagePrefix, if it is not "", is the daemon's setting messages.prefix: the events are logical messages, without
	// a table. Table, Columns, PayloadType and DeleteRows must then be zero.
	MessagePrefix string

	// Topic returns the topic to which the daemon sends an event, so that its name can be checked. It must agree with
	// the daemon's route.topic, route.topics and route.replace. nil is the default of route.topic,
	// outbox.event.{aggregate_type}. If it returns "", the name is not checked.
	Topic func(Event) string
	// CloudEvents refuses what is not allowed in attributes of CloudEvents: control characters in AggregateID and Type.
	// Set it if the daemon's route.format is one of the two formats for CloudEvents.
	CloudEvents bool
	// MaxBytes is the maximum size of key, value and headers of a record; 0 is [DefaultMaxBytes]. Set it below
	// max.message.bytes of the topics.
	MaxBytes int

	// Inject, if it is not nil, adds headers to all events of a call of Emit, such as the trace context in ctx. With
	// OpenTelemetry:
	//
	//	Inject: func(ctx context.Context, headers map[string]string) {
	//		otel.GetTextMapPropagator().Inject(ctx, propagation.MapCarrier(headers))
	//	},
	//
	// Event.Headers override them.
	Inject func(ctx context.Context, headers map[string]string)
}

// DefaultMaxBytes is below Kafka's default of max.message.bytes, 1,048,588, by what the daemon and the record batch
// add.
const DefaultMaxBytes = 1_000_000

// Columns are the names of the table's columns, without quotes. AggregateID and Payload are required; "" elsewhere
// means that the table has no such column. Without ID the database has to create the ids. Without Headers events
// cannot have headers. All other columns of the table take their defaults.
type Columns struct {
	ID, AggregateType, AggregateID, EventType, Payload, Headers string
	// SchemaVersion is a column of an integer type, and OccurredAt a timestamptz. They are NULL for events without a
	// value.
	SchemaVersion, OccurredAt string
}

// BundledColumns returns the columns of the bundled table.
func BundledColumns() Columns {
	return Columns{
		ID: "id", AggregateType: "aggregate_type", AggregateID: "aggregate_id", EventType: "event_type",
		Payload: "payload", Headers: "headers",
	}
}

// PayloadType is the type of the payload's column.
type PayloadType int

// The types of the payload's column. In columns of JSON the payload is JSON that jsonb accepts, and not null: leave
// Payload nil for an event without a value. Text is UTF-8 without NUL; Bytea is anything.
const (
	JSONB PayloadType = iota
	JSON
	Text
	Bytea
)

func (t PayloadType) isJSON() bool { return t == JSONB || t == JSON }

// Writer writes events. It may be used by several goroutines at once.
type Writer struct {
	config    Config
	keys      keys
	writeSQL  string
	writeArgs []any // before the document
	deleteSQL string
}

// keys are the members of a row in the document, each with its quotes and colon; "" if there is no such column.
type keys struct {
	id, aggregateType, aggregateID, eventType, payload, headers, schemaVersion, occurredAt string
}

// New returns a writer. It does no I/O.
func New(c Config) (*Writer, error) {
	c.MaxBytes = cmp.Or(c.MaxBytes, DefaultMaxBytes)
	if c.MaxBytes < 0 {
		return nil, fmt.Errorf("outbox: MaxBytes is %d", c.MaxBytes)
	}
	var w *Writer
	var err error
	if c.MessagePrefix != "" {
		w, err = newMessageWriter(c)
	} else {
		w, err = newRowWriter(c)
	}
	if err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	return w, nil
}

// Config returns the configuration, with the defaults filled in.
func (w *Writer) Config() Config { return w.config }

// newMessageWriter returns a writer of logical messages. The elements of the document are the bodies. As outbox_emit
// does, the server adds its own time, and encodes the body in UTF-8 whatever the encoding of the database is.
func newMessageWriter(c Config) (*Writer, error) {
	if c.Table != "" || c.Columns != (Columns{}) || c.PayloadType != JSONB || c.DeleteRows {
		return nil, errors.New("with MessagePrefix there is no table: Table, Columns, PayloadType and DeleteRows must not be set")
	}
	if why := badText(c.MessagePrefix); why != "" {
		return nil, fmt.Errorf("MessagePrefix %q %s", c.MessagePrefix, why)
	}
	c.Columns = BundledColumns()
	return &Writer{
		config: c, keys: newKeys(c.Columns), writeArgs: []any{c.MessagePrefix},
		writeSQL: `SELECT count(pg_logical_emit_message(true, $1, convert_to(left(e::text, -1) || ',"created_at":"'` +
			` || to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') || '+00"}', 'UTF8')))` +
			` FROM json_array_elements($2::json) AS e`,
	}, nil
}

// newRowWriter returns a writer of rows. The table itself defines how the members of the document become values, so
// that the columns may have any types.
func newRowWriter(c Config) (*Writer, error) {
	if c.PayloadType < JSONB || c.PayloadType > Bytea {
		return nil, fmt.Errorf("PayloadType is %d, which is none of the constants", c.PayloadType)
	}
	c.Table = cmp.Or(c.Table, "public.outbox")
	table, err := quoteTable(c.Table)
	if err != nil {
		return nil, err
	}
	if c.Columns == (Columns{}) {
		c.Columns = BundledColumns()
	}
	switch {
	case c.Columns.AggregateID == "":
		return nil, errors.New("Columns.AggregateID is required")
	case c.Columns.Payload == "":
		return nil, errors.New("Columns.Payload is required")
	case c.DeleteRows && c.Columns.ID == "":
		return nil, errors.New("DeleteRows requires Columns.ID, which identifies the rows")
	}
	var columns, values []string
	seen := map[string]bool{}
	for _, name := range c.Columns.all() {
		switch why := badText(name); {
		case name == "":
			continue
		case why != "":
			return nil, fmt.Errorf("Columns: the name %q %s", name, why)
		case seen[name]:
			return nil, fmt.Errorf("Columns: the name %q is used twice", name)
		}
		seen[name] = true
		columns = append(columns, quoteIdentifier(name))
		values = append(values, "e."+quoteIdentifier(name))
	}
	rows := " FROM json_populate_recordset(NULL::" + table + ", $1::json) AS e"
	w := &Writer{config: c, keys: newKeys(c.Columns)}
	w.writeSQL = "INSERT INTO " + table + " (" + strings.Join(columns, ", ") + ") SELECT " + strings.Join(values, ", ") + rows
	if c.DeleteRows {
		id := quoteIdentifier(c.Columns.ID)
		w.deleteSQL = "DELETE FROM " + table + " WHERE " + id + " = ANY (ARRAY(SELECT e." + id + rows + "))"
	}
	return w, nil
}

// all returns the names, in the order of the statement.
func (c *Columns) all() []string {
	return []string{c.ID, c.AggregateType, c.AggregateID, c.EventType, c.Payload, c.Headers, c.SchemaVersion, c.OccurredAt}
}

func newKeys(c Columns) keys {
	key := func(name string) string {
		if name == "" {
			return ""
		}
		b, _ := json.Marshal(name) // a string is always valid
		return string(b) + ":"
	}
	return keys{
		id: key(c.ID), aggregateType: key(c.AggregateType), aggregateID: key(c.AggregateID), eventType: key(c.EventType),
		payload: key(c.Payload), headers: key(c.Headers), schemaVersion: key(c.SchemaVersion), occurredAt: key(c.OccurredAt),
	}
}
