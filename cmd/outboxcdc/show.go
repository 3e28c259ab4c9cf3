package main

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/outboxcdc/outboxcdc/router"
)

// This file has the output of peek and dlq: one line for each record.

// timeLayout always has microseconds, so that columns are aligned.
const timeLayout = "2006-01-02T15:04:05.000000Z07:00"

// Headers that outboxcdc sets. A line shows them elsewhere, or not at all.
const (
	headerID       = "id"
	headerPrefix   = "outboxcdc-"
	headerPosition = "outboxcdc-position"
	headerRetried  = "outboxcdc-retried"
)

// line is a line of text for people: words and name=value pairs, separated by spaces. Line ends and control characters
// are escaped as in Go strings.
type line struct{ bytes.Buffer }

func (l *line) word(s string) {
	if l.Len() > 0 {
		l.WriteByte(' ')
	}
	l.WriteString(s)
}

// pair adds name=value, unless value is null.
func (l *line) pair(name string, value []byte) {
	if value != nil {
		l.word(name + "=" + quoted(value, false))
	}
}

// record adds key, headers and value, without the headers of outboxcdc, which the beginning of the line shows. A null
// key is omitted, and a null value is shown as tombstone.
func (l *line) record(key, value []byte, headers []router.Header, payload bool) {
	l.pair("key", key)
	var all []string
	for _, h := range headers {
		if h.Name == headerID || strings.HasPrefix(h.Name, headerPrefix) {
			continue
		}
		s := quoted([]byte(h.Name), false)
		if h.Value != nil {
			s += "=" + quoted(h.Value, false)
		}
		all = append(all, s)
	}
	l.word("headers={" + strings.Join(all, ", ") + "}")
	switch {
	case value == nil:
		l.word("tombstone")
	case payload:
		l.word("bytes=" + strconv.Itoa(len(value)) + " value=" + quoted(value, true))
	default:
		l.word("bytes=" + strconv.Itoa(len(value)))
	}
}

func (l *line) end() []byte {
	l.WriteByte('\n')
	return l.Bytes()
}

// quoted is b in quotes, or unquoted if that is unambiguous. The last value of a line may contain spaces and quotes
// without being quoted.
func quoted(b []byte, last bool) string {
	plain := len(b) > 0 && utf8.Valid(b) && (!last || b[0] != '"' || json.Valid(b))
	for _, r := range string(b) {
		plain = plain && unicode.IsPrint(r) && (last || !strings.ContainsRune(` "',={}`, r))
	}
	if plain {
		return string(b)
	}
	return strconv.Quote(string(b))
}

// recordJSON is the part of a record that peek and dlq have in common. Bytes are a string if they are UTF-8, otherwise
// base64 under another name. Null is JSON's null.
type recordJSON struct {
	Key         *string      `json:"key"`
	KeyBase64   []byte       `json:"key_base64,omitempty"`
	Headers     []headerJSON `json:"headers"`
	Bytes       int          `json:"bytes"` // of the value
	Tombstone   bool         `json:"tombstone"`
	Value       *string      `json:"value,omitempty"`
	ValueBase64 []byte       `json:"value_base64,omitempty"`
}

type headerJSON struct {
	Name        string  `json:"name"`
	Value       *string `json:"value"`
	ValueBase64 []byte  `json:"value_base64,omitempty"`
}

func newRecordJSON(key, value []byte, headers []router.Header, payload bool) recordJSON {
	out := recordJSON{Headers: make([]headerJSON, len(headers)), Bytes: len(value), Tombstone: value == nil}
	out.Key, out.KeyBase64 = textOrNot(key)
	for i, h := range headers {
		out.Headers[i].Name = h.Name
		out.Headers[i].Value, out.Headers[i].ValueBase64 = textOrNot(h.Value)
	}
	if payload {
		out.Value, out.ValueBase64 = textOrNot(value)
	}
	return out
}

// textOrNot returns b as text if it is UTF-8, otherwise as bytes.
func textOrNot(b []byte) (text *string, other []byte) {
	switch {
	case b == nil:
		return nil, nil
	case utf8.Valid(b):
		return new(string(b)), nil
	}
	return nil, b
}
