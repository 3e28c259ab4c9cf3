package router

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Names of the router's headers. A member of the headers column cannot have one of these names.
const (
	headerID       = "id"
	headerType     = "type"
	headerPosition = "outboxcdc-position"
	headerPrefix   = "outboxcdc-"
)

// The headers that identify an event.
const (
	HeaderID       = headerID
	HeaderPosition = headerPosition
)

// appendMembers appends the members of a JSON object to rec.Headers, in their order, including duplicate names. If this is not
// possible, why is the reason, as the end of a sentence.
//
// encoding/json validates the object first, iteratively and to a depth of 10,000. The valid JSON is then cut into pieces, so that
// numbers and nested values keep every digit and letter.
func (r *Router) appendMembers(b []byte, rec *Record) (why string) {
	if string(b) == "{}" {
		return ""
	}
	if !json.Valid(b) {
		return "is not valid JSON"
	}
	c := cursor{b: b}
	if !c.enter() {
		return "is not a JSON object"
	}
	for c.nextMember() {
		name := r.name(c.memberName())
		if name == headerID || name == headerType || strings.HasPrefix(name, headerPrefix) {
			return "has a member " + printable([]byte(name)) + ", a reserved name"
		}
		if !utf8.ValidString(name) { // possible in a SQL_ASCII database; consumers require text
			return "has a member " + printable([]byte(name)) + ", a name that is not UTF-8"
		}
		value := r.member(&c)
		if r.config.Format.owns(name) {
			continue // the format sets this header
		}
		rec.Headers = append(rec.Headers, Header{Name: name, Value: value})
	}
	return ""
}

// member reads a value. It returns the content of a string, nil for null, and otherwise the JSON without white space.
func (r *Router) member(c *cursor) []byte {
	switch c.b[c.i] {
	case '"':
		raw, escaped := c.string()
		if !escaped {
			return raw
		}
		start := len(r.scratch)
		r.scratch = appendUnescaped(r.scratch, raw)
		return r.scratchFrom(start)
	case '{', '[':
		raw, spaced := c.composite()
		if !spaced {
			return raw
		}
		start := len(r.scratch)
		r.scratch = appendCompact(r.scratch, raw)
		return r.scratchFrom(start)
	}
	if raw := c.scalar(); raw[0] != 'n' {
		return raw
	}
	return nil
}

// unescaped returns the content of a string. It is valid until scratch is used again.
func (r *Router) unescaped(raw []byte, escaped bool) []byte {
	if !escaped {
		return raw
	}
	start := len(r.scratch)
	r.scratch = appendUnescaped(r.scratch, raw)
	raw, r.scratch = r.scratch[start:], r.scratch[:start]
	return raw
}

// name returns a member's name as a string. Names are cached, because most events have the same ones.
func (r *Router) name(raw []byte, escaped bool) string {
	raw = r.unescaped(raw, escaped)
	if s, ok := r.names[string(raw)]; ok {
		return s
	}
	s := string(raw)
	if len(s) <= maxName {
		if len(r.names) >= maxNames {
			clear(r.names)
		}
		r.names[s] = s
	}
	return s
}

// cursor reads valid JSON. With invalid JSON it panics.
type cursor struct {
	b []byte
	i int
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }

func (c *cursor) space() {
	for c.i < len(c.b) && isSpace(c.b[c.i]) {
		c.i++
	}
}

// enter moves to the first member of an object. It returns false if the value is not an object.
func (c *cursor) enter() bool {
	if c.space(); c.b[c.i] != '{' {
		return false
	}
	c.i++
	return true
}

// nextMember moves to the next member of an object. It returns false if there is none.
func (c *cursor) nextMember() bool {
	if c.space(); c.b[c.i] == ',' {
		c.i++
		c.space()
	}
	return c.b[c.i] != '}'
}

// memberName reads a member's name, as string does, and moves to its value.
func (c *cursor) memberName() (name []byte, escaped bool) {
	name, escaped = c.string()
	c.space()
	c.i++ // the colon
	c.space()
	return name, escaped
}

// string reads a string and returns the text between the quotes.
func (c *cursor) string() (raw []byte, escaped bool) {
	c.i++
	start := c.i
	for {
		c.i += bytes.IndexAny(c.b[c.i:], `"\`)
		if c.b[c.i] == '"' {
			break
		}
		escaped = true
		c.i += 2
	}
	c.i++
	return c.b[start : c.i-1 : c.i-1], escaped
}

// scalar reads a number, true, false or null.
func (c *cursor) scalar() []byte {
	start := c.i
	for c.i < len(c.b) && !isSpace(c.b[c.i]) && c.b[c.i] != ',' && c.b[c.i] != '}' {
		c.i++
	}
	return c.b[start:c.i:c.i]
}

// composite reads an object or an array. spaced means that there is white space between its tokens. It counts brackets instead of
// recursing.
func (c *cursor) composite() (raw []byte, spaced bool) {
	start := c.i
	for depth := 0; ; {
		switch b := c.b[c.i]; {
		case b == '"':
			c.string()
			continue
		case b == '{' || b == '[':
			depth++
		case b == '}' || b == ']':
			depth--
		case isSpace(b):
			spaced = true
		}
		c.i++
		if depth == 0 {
			return c.b[start:c.i:c.i], spaced
		}
	}
}

// appendCompact is json.Compact without its allocations.
func appendCompact(dst, raw []byte) []byte {
	c := cursor{b: raw}
	for c.i < len(raw) {
		start := c.i
		if raw[c.i] == '"' {
			c.string()
		} else {
			c.i++
			if isSpace(raw[start]) {
				continue
			}
		}
		dst = append(dst, raw[start:c.i]...)
	}
	return dst
}

// appendUnescaped appends the content of a JSON string. Half a surrogate pair becomes U+FFFD, as in encoding/json. Bytes that are not
// UTF-8 (from a SQL_ASCII database) are unchanged.
func appendUnescaped(dst, raw []byte) []byte {
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			return append(dst, raw...)
		}
		dst = append(dst, raw[:i]...)
		c := raw[i+1]
		raw = raw[i+2:]
		switch c {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			u := hex4(raw)
			raw = raw[4:]
			if utf16.IsSurrogate(u) {
				pair := rune(utf8.RuneError)
				if len(raw) >= 6 && raw[0] == '\\' && raw[1] == 'u' {
					pair = utf16.DecodeRune(u, hex4(raw[2:]))
				}
				if pair != utf8.RuneError {
					raw = raw[6:]
				}
				u = pair
			}
			dst = utf8.AppendRune(dst, u)
		default: // a quote, a slash or a backslash
			dst = append(dst, c)
		}
	}
}

func hex4(b []byte) rune {
	u, _ := strconv.ParseUint(string(b[:4]), 16, 32)
	return rune(u)
}
