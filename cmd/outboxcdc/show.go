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

// How peek and dlq show records: one line each, whatever is in them.

// timeLayout has the microseconds of PostgreSQL's clock, always, so that columns stand.
const timeLayout = "2006-01-02T15:04:05.000000Z07:00"

// Headers of our own. In a line they have places of their own, if any.
const (
	headerID       = "id"
	headerPrefix   = "outboxcdc-"
	headerPosition = "outboxcdc-position"
	headerRetried  = "outboxcdc-retried"
)

// line is text for people: words and name=value pairs with a space between. Bytes that would end the line, or do things to a
// terminal, are escaped as Go does.
type line struct{ bytes.Buffer }

func (l *line) word(s string) {
	if l.Len() > 0 {
		l.WriteByte(' ')
	}
	l.WriteString(s)
}

// pair leaves out what is null.
func (l *line) pair(name string, value []byte) {
	if value != nil {
		l.word(name + "=" + quoted(value, false))
	}
}

// record is what all records have, except for our own headers: what they say stands at the beginning of the line. Null is told from empty: a
// null key is omitted, and a null value is a tombstone.
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

// quoted is b as it is if that can be read back, else in quotes. The last of a line may have spaces and quotes.
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

// recordJSON is the part of a record that peek and dlq have in common. Bytes are text if they are UTF-8, else in base64
// under another name; null is JSON's null.
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

// textOrNot is b as text, or, where it is none, as it is.
func textOrNot(b []byte) (text *string, other []byte) {
	switch {
	case b == nil:
		return nil, nil
	case utf8.Valid(b):
		s := string(b)
		return &s, nil
	}
	return nil, b
}
