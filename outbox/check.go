package outbox

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"
)

// EventError reports an event that Postgres would refuse or that the daemon would call poison. Nothing has been
// written.
type EventError struct {
	Index   int    // of the event in the call
	Field   string // the field of Event, for a header with its name: Headers["traceparent"]
	Problem string // what is wrong with the field, as the end of a sentence
	Err     error  // the error of json.Marshal, or nil
}

func (e *EventError) Error() string {
	return fmt.Sprintf("outbox: event %d of the call: %s %s", e.Index, e.Field, e.Problem)
}

func (e *EventError) Unwrap() error { return e.Err }

const (
	maxTopic = 249   // Kafka's limit
	maxText  = 65536 // of AggregateType, AggregateID and Type in the bundled table, bytes
)

// The topics that the daemon writes to with its default settings, other than those of events.
const (
	positionTopic   = "outboxcdc.positions"
	deadLetterTopic = "outbox.dead_letter"
)

// check returns what is wrong with an event, or nil. headers and payload are those that are written.
func (w *Writer) check(e *Event, headers []header, payload []byte) *EventError {
	size := len(e.AggregateID) + w.payloadSize(payload)
	for _, f := range []struct{ name, value string }{{"AggregateType", e.AggregateType}, {"AggregateID", e.AggregateID}, {"Type", e.Type}} {
		if why := badName(f.value); why != "" {
			return &EventError{Field: f.name, Problem: why}
		}
		if w.config.CloudEvents && f.name != "AggregateType" && hasControl(f.value) {
			return &EventError{Field: f.name, Problem: "has a control character, which CloudEvents do not allow"}
		}
	}
	prefix, topic := defaultPrefix, e.AggregateType
	if w.config.Topic != nil {
		prefix, topic = "", w.config.Topic(*e)
	}
	if why := badTopic(prefix, topic); why != "" {
		return &EventError{Field: "AggregateType", Problem: fmt.Sprintf("gives the topic %.300q, which %s", prefix+topic, why)}
	}
	if w.keys.id == "" && e.ID != (ID{}) {
		return &EventError{Field: "ID", Problem: "is set, but Columns has no ID: the database creates it"}
	}
	if w.keys.headers == "" && len(headers) > 0 {
		return &EventError{Field: headerField(headers[0].name), Problem: "is set, but Columns has no Headers"}
	}
	for _, h := range headers {
		if why := badHeader(h); why != "" {
			return &EventError{Field: headerField(h.name), Problem: why}
		}
		size += len(h.name) + len(h.value)
	}
	if why := w.badPayload(payload); why != "" {
		return &EventError{Field: "Payload", Problem: why}
	}
	if e.SchemaVersion < 0 {
		return &EventError{Field: "SchemaVersion", Problem: "is negative"}
	}
	if t := e.OccurredAt; !t.IsZero() && (t.Before(firstTime) || t.After(lastKafkaTime)) {
		return &EventError{Field: "OccurredAt", Problem: "is not between 1970 and 2261, the times that Kafka can hold"}
	}
	if size > w.config.MaxBytes {
		return &EventError{Field: "Payload", Problem: fmt.Sprintf("is too large: key, value and headers have up to %d bytes, and MaxBytes is %d", size, w.config.MaxBytes)}
	}
	return nil
}

// The daemon's limits for a column in route.timestamp.
var (
	firstTime     = time.Unix(0, 0)
	lastKafkaTime = time.Date(2261, 12, 31, 23, 59, 59, 0, time.UTC)
)

// badText returns why a text of Postgres cannot be s, or "".
func badText(s string) string {
	switch {
	case !utf8.ValidString(s):
		return "is not UTF-8"
	case strings.IndexByte(s, 0) >= 0:
		return "has a NUL character, which Postgres cannot store"
	}
	return ""
}

func badName(s string) string {
	switch {
	case s == "":
		return "is empty"
	case len(s) > maxText:
		return fmt.Sprintf("has more than %d bytes", maxText)
	}
	return badText(s)
}

// hasControl reports whether s has a character that attributes of CloudEvents cannot have.
func hasControl(s string) bool {
	return strings.ContainsFunc(s, func(c rune) bool {
		return c < ' ' || c >= 0x7f && c <= 0x9f || c >= 0xfdd0 && c <= 0xfdef || c&0xfffe == 0xfffe
	})
}

// defaultPrefix is the part of the daemon's default for route.topic before the aggregate type.
const defaultPrefix = "outbox.event."

// badTopic returns why the topic prefix+s cannot take events, or "". It accepts the empty topic, which is not checked.
func badTopic(prefix, s string) string {
	switch {
	case len(prefix)+len(s) > maxTopic:
		return fmt.Sprintf("has more than %d characters", maxTopic)
	case prefix != "": // the following are whole names
	case s == "." || s == "..":
		return "Kafka does not allow"
	case strings.HasPrefix(s, "__"), s == positionTopic, s == deadLetterTopic:
		return "is reserved"
	}
	if i := strings.IndexFunc(s, illegalInTopic); i >= 0 {
		c, _ := utf8.DecodeRuneInString(s[i:])
		return fmt.Sprintf("has the illegal character %q", c)
	}
	return ""
}

func illegalInTopic(c rune) bool {
	switch {
	case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		return false
	}
	return true
}

func headerField(name string) string { return "Headers[" + strconv.Quote(name) + "]" }

// badHeader returns why a header cannot be written, or "".
func badHeader(h header) string {
	if h.name == "id" || h.name == "type" || strings.HasPrefix(h.name, "outboxcdc-") {
		return "is a header that the daemon sets"
	}
	if why := badText(h.name); why != "" {
		return "has a name that " + why
	}
	return badText(h.value)
}

// badPayload returns why the payload's column cannot hold b, or "".
func (w *Writer) badPayload(b []byte) string {
	switch {
	case b == nil || w.config.PayloadType == Bytea:
		return ""
	case !utf8.Valid(b):
		return "is not UTF-8"
	case w.config.PayloadType.isJSON():
		return badJSON(b)
	case bytes.IndexByte(b, 0) >= 0:
		return "has a NUL character, which Postgres cannot store"
	}
	return ""
}

// badJSON returns why jsonb refuses a text in UTF-8, or "". It refuses null, too, which is SQL NULL in a row but not
// in a message.
func badJSON(b []byte) string {
	if !json.Valid(b) {
		return "is not valid JSON"
	}
	if string(bytes.TrimSpace(b)) == "null" {
		return "is null in JSON: leave Payload nil for an event without a value"
	}
	for {
		i := bytes.IndexByte(b, '\\')
		if i < 0 {
			return ""
		}
		c := b[i+1]
		b = b[i+2:]
		if c != 'u' {
			continue
		}
		u := hex4(b)
		b = b[4:]
		switch {
		case u == 0:
			return `has the escape \u0000, which jsonb cannot store`
		case !utf16.IsSurrogate(u):
		case len(b) >= 6 && b[0] == '\\' && b[1] == 'u' && utf16.DecodeRune(u, hex4(b[2:])) != utf8.RuneError:
			b = b[6:]
		default:
			return `has half a surrogate pair, which jsonb cannot store`
		}
	}
}

// hex4 returns the number of four hexadecimal digits.
func hex4(b []byte) rune {
	u, _ := strconv.ParseUint(string(b[:4]), 16, 32)
	return rune(u)
}

// payloadSize returns the size of the record's value. As jsonb prints a space after each comma and colon, they count
// twice, those in strings included.
func (w *Writer) payloadSize(b []byte) int {
	if w.config.PayloadType != JSONB || w.config.MessagePrefix != "" {
		return len(b)
	}
	return len(b) + bytes.Count(b, []byte(",")) + bytes.Count(b, []byte(":"))
}
