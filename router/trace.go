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

// traceContext sets headers from the trace context in a column like Debezium's tracingspancontext, whose text is Java
// properties. It ignores other properties. Invalid text gives no header, because a lost trace must not stop events.
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

// property returns a value without its escapes.
func (r *Router) property(value []byte) []byte {
	if bytes.IndexByte(value, '\\') < 0 {
		return value[:len(value):len(value)]
	}
	start := len(r.scratch)
	r.scratch = appendProperty(r.scratch, value)
	return r.scratchFrom(start)
}

const (
	propertySpace = " \t\f"
	propertyEnd   = "\r\n"
)

// cutProperty returns the first key and value of Java properties, with their escapes. Both are empty for a comment
// and a blank line.
func cutProperty(text []byte) (key, value, rest []byte) {
	text = bytes.TrimLeft(text, propertySpace+propertyEnd)
	if len(text) > 0 && (text[0] == '#' || text[0] == '!') {
		_, rest = cutLine(text, false)
		return nil, nil, rest
	}
	line, rest := cutLine(text, true)
	end := bytes.IndexAny(line, "=:"+propertySpace) // escapes are ignored: our keys have no backslash
	if end < 0 {
		end = len(line)
	}
	key, value = line[:end], bytes.TrimLeft(line[end:], propertySpace)
	if len(value) > 0 && (value[0] == '=' || value[0] == ':') {
		value = bytes.TrimLeft(value[1:], propertySpace)
	}
	return key, value, rest
}

// cutLine returns the first line without its end. With escapes, a backslash before the end of the line continues it.
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

// appendProperty appends a value, replacing its escapes.
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
		case '\r', '\n': // the line continues after the white space of the next one
			for i+1 < len(value) && strings.IndexByte(propertySpace+propertyEnd, value[i+1]) >= 0 {
				i++
			}
			continue
		case 'u':
			if i+4 < len(value) && isHex(value[i+1:i+5]) { // surrogate pairs need no care: a trace context is ASCII
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
