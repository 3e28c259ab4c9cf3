package router

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/outboxcdc/outboxcdc/decoder"
)

// Format is the format of the record's value.
type Format string

// The formats.
const (
	FormatRaw      Format = "raw"      // the payload; "" means the same
	FormatEnvelope Format = "envelope" // a JSON object with the payload

	FormatCloudEventsBinary     Format = "cloudevents_binary"     // the payload, and the event's attributes as headers
	FormatCloudEventsStructured Format = "cloudevents_structured" // a JSON object of attributes and payload
)

// Reserved names in the sources of fields, which are not columns. If the table has a column commit_time, trace_id or
// schema_id, the name means the column, as for {table}.
const (
	payloadName = "payload"     // the payload, embedded unchanged
	commitName  = "commit_time" // when the row was committed, RFC 3339
	traceName   = "trace_id"    // the trace id in the header traceparent
	schemaName  = "schema_id"   // the header schema_id: the id of the payload's schema in a registry
)

func isReservedName(name string) bool {
	return name == payloadName || name == commitName || name == traceName || name == schemaName
}

// source is the configuration of a field.
type source struct {
	name  string
	parts []part
}

// singleName returns the name if the source consists of one name, or "".
func (s *source) singleName() string {
	if len(s.parts) == 1 {
		return s.parts[0].name
	}
	return ""
}

// schemaLink returns the text before {schema_id}, if the source is that: a link to the schema. No other reserved name
// can be part of a longer text.
func (s *source) schemaLink() (before string, is bool) {
	last := len(s.parts) - 1
	if last < 0 || last > 1 || s.parts[last].name != schemaName || s.parts[0].name != "" && last > 0 {
		return "", false
	}
	return s.parts[0].literal, true
}

// sources returns the fields of the format in the order in which they are written: by name, the payload last.
func (c *Config) sources() ([]source, error) {
	switch {
	case c.Format == FormatEnvelope:
		return mergeSources(c.defaultEnvelope(), c.Fields)
	case c.Format.cloudEvents():
		return mergeSources(c.defaultAttributes(), c.Fields)
	}
	return nil, nil
}

func mergeSources(fields, set map[string]string) ([]source, error) {
	maps.Copy(fields, set)
	var out []source
	payload := -1
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if fields[name] == "" {
			continue // removed
		}
		parts, err := parseTemplate(fields[name])
		if err != nil {
			return nil, fmt.Errorf("of %q: %w", name, err)
		}
		s := source{name, parts}
		_, link := s.schemaLink()
		for _, p := range parts {
			if isReservedName(p.name) && len(parts) > 1 && !link {
				return nil, fmt.Errorf("of %q: {%s} cannot be a part of a longer text; give it a field of its own", name, p.name)
			}
		}
		if s.singleName() == payloadName {
			if payload >= 0 {
				return nil, fmt.Errorf("of %q: {payload} is already in %q", name, out[payload].name)
			}
			payload = len(out)
		}
		out = append(out, s)
	}
	if payload >= 0 {
		last := out[payload]
		out = append(slices.Delete(out, payload, payload+1), last)
	}
	return out, nil
}

// origin is the origin of a field's text.
type origin int

const (
	fromColumns origin = iota
	fromPayload
	fromCommit
	fromTrace
	fromSchema
)

// encoding is how a field's text is written as JSON.
type encoding int

const (
	asString encoding = iota
	asNumber          // NaN and infinite values are strings
	asBool
	asJSON
	asTime
	asBase64 // bytea, a string in JSON and in the attributes of CloudEvents (their type Binary)
)

// field is a source for one version of a relation.
type field struct {
	name     string
	prefix   string // in JSON: the bracket or comma, the name, the colon
	header   string // of CloudEvents in binary mode
	link     string // before the id of the schema
	origin   origin
	pieces   []piece
	encoding encoding
}

// fields returns the fields of an envelope, or the attributes of a CloudEvent, whose first field follows another one.
func (b *binding) fields(sources []source, envelope bool) []field {
	var out []field
	for i := range sources {
		s := &sources[i]
		if envelope && b.lacksColumn(s) {
			continue
		}
		f := field{name: s.name, prefix: ","}
		if envelope && len(out) == 0 {
			f.prefix = "{"
		}
		f.prefix += string(appendString(nil, []byte(s.name))) + ":"
		link, isLink := s.schemaLink()
		switch name := s.singleName(); {
		case isLink && b.rel.Index(schemaName) < 0:
			f.origin, f.link = fromSchema, link
		case name == payloadName:
			f.origin = fromPayload
			if i := b.rel.Index(b.columns.Payload); i >= 0 && b.rel.Columns[i].TypeOID == byteaOID {
				f.encoding = asBase64
			}
		case name == commitName && b.rel.Index(name) < 0:
			f.origin = fromCommit
		case name == traceName && b.rel.Index(name) < 0:
			f.origin = fromTrace
		default:
			f.pieces = b.template(s.parts, "fields."+s.name)
			f.encoding = b.jsonEncoding(f.pieces, "fields."+s.name)
		}
		out = append(out, f)
	}
	return out
}

// lacksColumn reports whether a field is omitted because one of its columns is missing and IgnoreMissing is set.
func (b *binding) lacksColumn(s *source) bool {
	return slices.ContainsFunc(s.parts, func(p part) bool {
		return p.name != "" && p.name != tableName && !isReservedName(p.name) && b.present(b.columns.templateColumn(p.name)) == ""
	})
}

// OIDs of types that correspond to types of JSON (pg_type).
const (
	boolOID   = 16
	jsonOID   = 114
	float4OID = 700
	float8OID = 701
	jsonbOID  = 3802
)

// jsonEncoding returns how a template is written as JSON: a literal that is valid JSON as JSON, a single column by
// its type, and everything else as a string.
func (b *binding) jsonEncoding(pieces []piece, setting string) encoding {
	b.noBytea(pieces, setting)
	if len(pieces) != 1 {
		return asString
	}
	p := &pieces[0]
	if p.column < 0 {
		if validJSON([]byte(p.literal)) {
			return asJSON
		}
		return asString
	}
	switch b.rel.Columns[p.column].TypeOID {
	case int2OID, int4OID, int8OID, numericOID, float4OID, float8OID:
		return asNumber
	case boolOID:
		return asBool
	case jsonOID, jsonbOID:
		return asJSON
	case timestamptzOID, timestampOID:
		return asTime
	case byteaOID:
		return asBase64
	}
	return asString
}

// texts returns the texts of the fields, nil for NULL. They are valid until the next call.
func (r *Router) texts(p *plan, ev *decoder.Event, rec *Record) ([][]byte, error) {
	r.values = r.values[:0]
	for i := range p.fields {
		f := &p.fields[i]
		text := r.fieldText(f, ev, rec)
		if f.encoding == asBase64 && text != nil {
			if f.origin == fromColumns {
				var err error
				if text, err = r.columnBytes(p, f.pieces[0].column, text); err != nil {
					return nil, err
				}
			}
			start := len(r.scratch)
			r.scratch = base64.StdEncoding.AppendEncode(r.scratch, text)
			text = r.scratchFrom(start)
		}
		r.values = append(r.values, text)
	}
	return r.values, nil
}

func (r *Router) fieldText(f *field, ev *decoder.Event, rec *Record) []byte {
	start := len(r.scratch)
	switch f.origin {
	case fromPayload:
		return rec.Value
	case fromCommit:
		r.scratch = ev.Begin.CommitTime.UTC().AppendFormat(r.scratch, time.RFC3339Nano)
		return r.scratchFrom(start)
	case fromTrace:
		return traceID(rec.Headers)
	case fromSchema:
		for i := len(rec.Headers) - 1; i >= 0; i-- {
			if h := &rec.Headers[i]; h.Name == schemaName && len(h.Value) > 0 {
				r.scratch = append(append(r.scratch, f.link...), h.Value...)
				return r.scratchFrom(start)
			}
		}
		return nil
	}
	text, null := r.templateText(f.pieces, ev)
	switch {
	case null >= 0:
		return nil
	case f.encoding == asBool && f.header != "" && (string(text) == "t" || string(text) == "f"):
		return canonicalBool[text[0] == 't']
	case f.encoding == asTime && isCalendar(text):
		r.scratch = appendRFC3339(r.scratch, text)
		return r.scratchFrom(start)
	}
	return text
}

// canonicalBool is the text of a boolean in CloudEvents.
var canonicalBool = map[bool][]byte{true: []byte("true"), false: []byte("false")}

// isPayloadNull reports whether the payload is SQL NULL or, with BlankIsNull, blank.
func (r *Router) isPayloadNull(p *plan, ev *decoder.Event) bool {
	v := ev.Values[p.payload]
	return v.Null || r.config.BlankIsNull && p.relation.Columns[p.payload].TypeOID != byteaOID && isBlank(v.Data)
}

// isCalendar reports whether text is a timestamp as PostgreSQL prints it in UTC, and not infinity, BC, or a year of
// more than four digits.
func isCalendar(text []byte) bool {
	const shape = "0000-00-00 00:00:00"
	if n := len(text); n > 3 && string(text[n-3:]) == "+00" {
		text = text[:n-3]
	}
	if len(text) < len(shape) || len(text) > len(shape) && (text[len(shape)] != '.' || len(text) == len(shape)+1) {
		return false
	}
	for i, c := range text {
		digit := c >= '0' && c <= '9'
		if i == len(shape) {
			continue
		}
		if want := i >= len(shape) || shape[i] == '0'; digit != want || !want && c != shape[i] {
			return false
		}
	}
	return true
}

// appendRFC3339 appends a timestamp for which isCalendar is true, in the format of RFC 3339.
func appendRFC3339(dst, text []byte) []byte {
	const date = len("0000-00-00")
	if n := len(text); text[n-3] == '+' {
		text = text[:n-3]
	}
	dst = append(append(dst, text[:date]...), 'T')
	return append(append(dst, text[date+1:]...), 'Z')
}

// traceID returns the trace id in the W3C header traceparent, or nil if there is none.
func traceID(headers []Header) []byte {
	for i := len(headers) - 1; i >= 0; i-- {
		if headers[i].Name != headerTraceparent {
			continue
		}
		v := headers[i].Value // version-traceid-parentid-flags
		if len(v) < 55 || v[2] != '-' || v[35] != '-' {
			return nil
		}
		for _, c := range v[3:35] {
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
				return nil
			}
		}
		return v[3:35:35]
	}
	return nil
}

// validJSON reports whether b is valid JSON in UTF-8; json.Valid does not require UTF-8.
func validJSON(b []byte) bool { return json.Valid(b) && utf8.Valid(b) }

// appendString appends s as a JSON string; s is UTF-8.
func appendString(dst, s []byte) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	done := 0
	for i, c := range s {
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[done:i]...)
		if c < ' ' {
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		} else {
			dst = append(dst, '\\', c)
		}
		done = i + 1
	}
	return append(append(dst, s[done:]...), '"')
}

// appendJSON appends a field's text as JSON. why, the end of a sentence, is the reason if this is not possible.
func appendJSON(dst, text []byte, as encoding) (out []byte, why string) {
	switch {
	case text == nil:
		return append(dst, "null"...), ""
	case as == asJSON:
		if !validJSON(text) {
			return dst, "is not valid JSON in UTF-8"
		}
		return append(dst, text...), ""
	case as == asBool && string(text) == "t":
		return append(dst, "true"...), ""
	case as == asBool && string(text) == "f":
		return append(dst, "false"...), ""
	case as == asNumber && isNumber(text):
		return append(dst, text...), ""
	case !utf8.Valid(text):
		return dst, "is not UTF-8"
	}
	return appendString(dst, text), ""
}

// isNumber reports whether text is a number in JSON's grammar.
func isNumber(text []byte) bool {
	if len(text) == 0 || text[0] != '-' && (text[0] < '0' || text[0] > '9') {
		return false
	}
	last := text[len(text)-1]
	return last >= '0' && last <= '9' && json.Valid(text)
}

// fieldName returns the name of a field for error texts.
func fieldName(f *field) string { return "the field " + strconv.Quote(f.name) }
