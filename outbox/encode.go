package outbox

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"
)

// header is a header of the record, from the application or from a field of Event.
type header struct{ name, value string }

// encode returns the events as a JSON array of objects, whose members are the columns; a message's body has the same
// members. With DeleteRows, ids is an array of objects with only the id.
func (w *Writer) encode(ctx context.Context, events []Event) (document, ids string, err error) {
	var injected map[string]string
	if w.config.Inject != nil {
		injected = map[string]string{}
		w.config.Inject(ctx, injected)
	}
	var doc, idDoc strings.Builder
	headers := make([]header, 0, 8)
	for i := range events {
		e := events[i] // a copy, whose ID may be set
		headers = w.headers(headers[:0], injected, &e)
		payload, problem := encodePayload(e.Payload)
		if problem == nil {
			problem = w.check(&e, headers, payload)
		}
		if problem != nil {
			problem.Index = i
			return "", "", problem
		}
		if e.ID == (ID{}) && w.keys.id != "" {
			e.ID = NewID()
		}
		doc.Grow(len(payload) + 512)
		separator := byte(',')
		if i == 0 {
			separator = '['
		}
		doc.WriteByte(separator)
		w.appendEvent(&doc, &e, headers, payload)
		if w.config.DeleteRows {
			idDoc.WriteByte(separator)
			idDoc.WriteString("{" + w.keys.id + `"` + e.ID.String() + `"}`)
		}
	}
	doc.WriteByte(']')
	if w.config.DeleteRows {
		idDoc.WriteByte(']')
	}
	return doc.String(), idDoc.String(), nil
}

// encodePayload returns nil for a payload that is nil.
func encodePayload(payload any) ([]byte, *EventError) {
	switch p := payload.(type) {
	case nil:
		return nil, nil
	case json.RawMessage:
		return p, nil
	case []byte:
		return p, nil
	}
	b, err := json.Marshal(payload)
	if err != nil {
		return nil, &EventError{Field: "Payload", Problem: "cannot be encoded: " + err.Error(), Err: err}
	}
	return b, nil
}

// headers appends the headers of an event, sorted by name: those of the event, the injected ones that the event does
// not have, and those of fields without a column.
func (w *Writer) headers(to []header, injected map[string]string, e *Event) []header {
	for name, value := range e.Headers {
		to = append(to, header{name, value})
	}
	add := func(name, value string) {
		if _, ok := e.Headers[name]; !ok {
			to = append(to, header{name, value})
		}
	}
	for name, value := range injected {
		add(name, value)
	}
	if e.SchemaVersion != 0 && w.keys.schemaVersion == "" {
		add(HeaderSchemaVersion, strconv.Itoa(e.SchemaVersion))
	}
	if !e.OccurredAt.IsZero() && w.keys.occurredAt == "" {
		add(HeaderOccurredAt, timeText(e.OccurredAt))
	}
	slices.SortFunc(to, func(a, b header) int { return cmp.Compare(a.name, b.name) })
	return to
}

// timeText returns the time with the precision of Postgres.
func timeText(t time.Time) string {
	return t.UTC().Truncate(time.Microsecond).Format(time.RFC3339Nano)
}

// appendEvent appends a valid event as an object.
func (w *Writer) appendEvent(b *strings.Builder, e *Event, headers []header, payload []byte) {
	b.WriteByte('{')
	if w.keys.id != "" {
		b.WriteString(w.keys.id)
		b.WriteByte('"')
		id := e.ID.text()
		b.Write(id[:])
		b.WriteString(`",`)
	}
	for _, f := range [...]struct{ key, value string }{{w.keys.aggregateType, e.AggregateType}, {w.keys.eventType, e.Type}} {
		if f.key != "" {
			b.WriteString(f.key)
			appendString(b, f.value)
			b.WriteByte(',')
		}
	}
	if w.keys.schemaVersion != "" && e.SchemaVersion != 0 {
		b.WriteString(w.keys.schemaVersion)
		b.WriteString(strconv.Itoa(e.SchemaVersion))
		b.WriteByte(',')
	}
	if w.keys.occurredAt != "" && !e.OccurredAt.IsZero() {
		b.WriteString(w.keys.occurredAt)
		appendString(b, timeText(e.OccurredAt))
		b.WriteByte(',')
	}
	if w.keys.headers != "" {
		b.WriteString(w.keys.headers)
		appendHeaders(b, headers)
		b.WriteByte(',')
	}
	if payload != nil { // in the body of a message, null would be JSON
		b.WriteString(w.keys.payload)
		w.appendPayload(b, payload)
		b.WriteByte(',')
	}
	b.WriteString(w.keys.aggregateID) // last, because every table has it
	appendString(b, e.AggregateID)
	b.WriteByte('}')
}

func appendHeaders(b *strings.Builder, headers []header) {
	b.WriteByte('{')
	for i, h := range headers {
		if i > 0 {
			b.WriteByte(',')
		}
		appendString(b, h.name)
		b.WriteByte(':')
		appendString(b, h.value)
	}
	b.WriteByte('}')
}

// appendPayload appends the payload as the table's column reads it.
func (w *Writer) appendPayload(b *strings.Builder, payload []byte) {
	switch w.config.PayloadType {
	case Text:
		appendString(b, string(payload))
	case Bytea:
		b.WriteString(`"\\x` + hex.EncodeToString(payload) + `"`)
	default:
		b.Write(payload)
	}
}

// appendString appends a string in UTF-8 as JSON.
func appendString(b *strings.Builder, s string) {
	b.WriteByte('"')
	start := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		b.WriteString(s[start:i])
		start = i + 1
		if c >= ' ' {
			b.WriteByte('\\')
			b.WriteByte(c)
			continue
		}
		b.WriteString(`\u00`)
		b.WriteString(hex.EncodeToString([]byte{c}))
	}
	b.WriteString(s[start:])
	b.WriteByte('"')
}
