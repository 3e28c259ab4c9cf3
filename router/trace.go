package router

import (
	"bytes"
	"strings"
)

// The headers of W3C's trace context.
const (
	headerTraceparent = "traceparent"
	headerTracestate  = "tracestate"
)

// traceContext makes headers of the trace context in a column like Debezium's tracingspancontext: the text of Java
// properties, as an application's tracer has stored them. Other properties are no concern of the record. What cannot be
// understood gives no header: a lost trace is no reason to stop events.
func (r *Router) traceContext(text []byte, rec *Record) {
	for len(text) > 0 {
		var key, value []byte
		key, value, text = cutProperty(text)
		if len(value) == 0 {
			continue
		}
		for _, name := range [...]string{headerTraceparent, headerTracestate} {
			if string(key) == name {
				rec.setHeader(name, r.property(value))
			}
		}
	}
}

// property is a value without its escapes.
func (r *Router) property(value []byte) []byte {
	if bytes.IndexByte(value, '\\') < 0 {
		return value[:len(value):len(value)]
	}
	start := len(r.scratch)
	r.scratch = appendProperty(r.scratch, value)
	return r.since(start)
}

const (
	propertySpace = " \t\f"
	propertyEnd   = "\r\n"
)

// cutProperty takes a key and a value, with their escapes, from the front of Java properties; both are empty for a
// comment and a blank line.
func cutProperty(text []byte) (key, value, rest []byte) {
	text = bytes.TrimLeft(text, propertySpace+propertyEnd)
	if len(text) > 0 && (text[0] == '#' || text[0] == '!') {
		_, rest = cutLine(text, false)
		return nil, nil, rest
	}
	line, rest := cutLine(text, true)
	end := bytes.IndexAny(line, "=:"+propertySpace) // escaped or not: a key with a backslash is none of ours
	if end < 0 {
		end = len(line)
	}
	key, value = line[:end], bytes.TrimLeft(line[end:], propertySpace)
	if len(value) > 0 && (value[0] == '=' || value[0] == ':') {
		value = bytes.TrimLeft(value[1:], propertySpace)
	}
	return key, value, rest
}

// cutLine takes a line without its end. If a backslash stands before the end and escapes count, the line goes on.
func cutLine(text []byte, escapes bool) (line, rest []byte) {
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && escapes:
			if i++; i+1 < len(text) && text[i] == '\r' && text[i+1] == '\n' {
				i++
			}
		case c == '\r' || c == '\n':
			return text[:i], text[i+1:]
		}
	}
	return text, nil
}

// appendProperty appends what a value with escapes stands for.
func appendProperty(dst, value []byte) []byte {
	for i := 0; i < len(value); i++ {
		c := value[i]
		if c != '\\' {
			dst = append(dst, c)
			continue
		}
		if i++; i == len(value) {
			break
		}
		switch c = value[i]; c {
		case 't':
			c = '\t'
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case 'f':
			c = '\f'
		case '\r', '\n': // the line goes on behind the next one's white space
			for i+1 < len(value) && strings.IndexByte(propertySpace+propertyEnd, value[i+1]) >= 0 {
				i++
			}
			continue
		case 'u':
			if i+4 < len(value) && isHex(value[i+1:i+5]) { // a trace context is ASCII: half a surrogate pair means nothing in it
				dst = appendUnescaped(dst, value[i-1:i+5])
				i += 4
				continue
			}
		}
		dst = append(dst, c)
	}
	return dst
}

func isHex(b []byte) bool {
	for _, c := range b {
		if (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'f') {
			return false
		}
	}
	return true
}
