package router

import (
	"bytes"
	"cmp"
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
	HeaderTopic    = "outboxcdc-topic" // of a dead letter: the topic of its event
	// HeaderHeldBy makes a dead letter one of a held key. It is the id of the poison event that holds the key; its
	// position if it has none, or a long one.
	HeaderHeldBy = "outboxcdc-held-by"
	// HeaderOrigin is "<system id>:<database OID>", in records of commands, which have no position: with an id that is
	// unique in its database only, it identifies the event.
	HeaderOrigin = "outboxcdc-origin"
)

// appendMembers appends the members of a JSON object to rec.Headers, in their order, including duplicate names. If
// this is not possible, why is the reason, as the end of a sentence. The JSON is cut into pieces, so that numbers and
// nested values keep every digit and letter.
func (r *Router) appendMembers(b []byte, rec *Record) (why string) {
	if string(b) == "{}" {
		return ""
	}
	c := cursor{b: b}
	if !c.enter() {
		return c.noObject()
	}
	for c.nextMember() {
		raw, escaped := c.memberName()
		name := r.name(raw, escaped, rec)
		value := r.member(&c)
		switch {
		case name == headerID || name == headerType || strings.HasPrefix(name, headerPrefix):
			why = cmp.Or(why, "has a member "+printable([]byte(name))+", a reserved name")
		case !utf8.ValidString(name): // possible in a SQL_ASCII database; consumers require text
			why = cmp.Or(why, "has a member "+printable([]byte(name))+", a name that is not UTF-8")
		case !r.config.Format.owns(name): // the format sets the headers that it owns
			rec.Headers = append(rec.Headers, Header{Name: name, Value: value})
		}
	}
	if !c.isValid() {
		return notValid
	}
	return why
}

// member reads a value. It returns the content of a string, nil for null, and otherwise the JSON without white space.
func (r *Router) member(c *cursor) []byte {
	switch c.peek() {
	case '"':
		raw, escaped := c.string()
		if !escaped {
			return raw
		}
		start := len(r.scratch)
		r.scratch = appendUnescaped(r.scratch, raw)
		return r.scratchFrom(start)
	case '{', '[':
		c.spaced = false
		raw := c.value()
		if !c.spaced {
			return raw
		}
		start := len(r.scratch)
		r.scratch = appendCompact(r.scratch, raw)
		return r.scratchFrom(start)
	}
	if raw := c.value(); string(raw) != "null" {
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

// name returns the name of the next header of rec as a string. Most events have the same names: usually it is the
// name that the previous event had in this place, else one in the cache.
func (r *Router) name(raw []byte, escaped bool, rec *Record) string {
	raw = r.unescaped(raw, escaped)
	if n := len(rec.Headers); n < cap(rec.Headers) {
		if last := rec.Headers[:n+1][n].Name; last == string(raw) {
			return last
		}
	}
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

// appendUnescaped appends the content of a JSON string. Half a surrogate pair becomes U+FFFD, as in encoding/json.
// Bytes that are not UTF-8 (from a SQL_ASCII database) are unchanged.
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
