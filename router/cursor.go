package router

import "bytes"

// cursor reads JSON, and validates it as it goes: it accepts what encoding/json accepts. The caller reads the members
// of an object, and asks isValid after the last one. At invalid JSON the cursor moves to the end of the text, where
// there is no value and no further member.
type cursor struct {
	b       []byte
	i       int
	started bool // a member of the object was read
	spaced  bool // white space was read
	invalid bool
}

// maxDepth is the maximum depth of nesting, as in encoding/json.
const maxDepth = 10_000

// notValid is the reason for which invalid JSON is poison, as the end of a sentence.
const notValid = "is not valid JSON"

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func (c *cursor) fail() { c.invalid, c.i = true, len(c.b) }

// peek returns the next byte; 0, which is never valid, at the end.
func (c *cursor) peek() byte {
	if c.i < len(c.b) {
		return c.b[c.i]
	}
	return 0
}

func (c *cursor) space() {
	for c.i < len(c.b) && isSpace(c.b[c.i]) {
		c.i++
		c.spaced = true
	}
}

// expect reads one byte.
func (c *cursor) expect(b byte) {
	if c.peek() != b {
		c.fail()
		return
	}
	c.i++
}

// enter moves to the first member of an object. It returns false if the value is not an object.
func (c *cursor) enter() bool {
	if c.space(); c.peek() != '{' {
		return false
	}
	c.i++
	return true
}

// noObject returns why the value, which is no object, is poison, as the end of a sentence.
func (c *cursor) noObject() string {
	if c.skip(1); !c.isValid() {
		return notValid
	}
	return "is not a JSON object"
}

// isValid reports, after the value, whether the text is valid JSON.
func (c *cursor) isValid() bool {
	if c.space(); c.i < len(c.b) {
		c.fail()
	}
	return !c.invalid
}

// nextMember moves to the next member of the outermost object. It returns false if there is none.
func (c *cursor) nextMember() bool {
	first := !c.started
	c.started = true
	return c.next('}', first)
}

// next moves to the next member or element of an object or array that ends with end. It returns false if there is none.
func (c *cursor) next(end byte, first bool) bool {
	c.space()
	switch b := c.peek(); {
	case b == end:
		c.i++
		return false
	case first:
	case b == ',':
		c.i++
		c.space()
	default:
		c.fail()
	}
	return !c.invalid
}

// memberName reads a member's name, as string does, and moves to its value.
func (c *cursor) memberName() (name []byte, escaped bool) {
	name, escaped = c.string()
	c.space()
	c.expect(':')
	c.space()
	return name, escaped
}

// value reads a value and returns its JSON unchanged; nil if it is invalid.
func (c *cursor) value() []byte {
	start := c.i
	c.skip(2) // the outermost object is depth 1
	if c.invalid {
		return nil
	}
	return c.b[start:c.i:c.i]
}

// skip reads a value at a depth of nesting.
func (c *cursor) skip(depth int) {
	switch b := c.peek(); b {
	case '"':
		c.string()
	case '{', '[':
		if depth > maxDepth {
			c.fail()
			return
		}
		c.i++
		for first := true; c.next(b+2, first); first = false { // in ASCII, the closing bracket is two after the opening one
			if b == '{' {
				c.memberName()
			}
			c.skip(depth + 1)
		}
	case 't':
		c.literal("true")
	case 'f':
		c.literal("false")
	case 'n':
		c.literal("null")
	default:
		c.number()
	}
}

func (c *cursor) literal(s string) {
	if !bytes.HasPrefix(c.b[c.i:], []byte(s)) {
		c.fail()
		return
	}
	c.i += len(s)
}

// number reads a number. What follows it is checked by the caller.
func (c *cursor) number() {
	if c.peek() == '-' {
		c.i++
	}
	if c.peek() == '0' {
		c.i++
	} else {
		c.digits()
	}
	if c.peek() == '.' {
		c.i++
		c.digits()
	}
	if b := c.peek(); b == 'e' || b == 'E' {
		c.i++
		if b := c.peek(); b == '+' || b == '-' {
			c.i++
		}
		c.digits()
	}
}

// digits reads one or more digits.
func (c *cursor) digits() {
	if !isDigit(c.peek()) {
		c.fail()
	}
	for isDigit(c.peek()) {
		c.i++
	}
}

// string reads a string and returns the text between the quotes.
func (c *cursor) string() (raw []byte, escaped bool) {
	c.expect('"')
	start := c.i
	for i := start; i < len(c.b); i++ {
		switch b := c.b[i]; {
		case b == '"':
			c.i = i + 1
			return c.b[start:i:i], escaped
		case b == '\\':
			escaped = true
			n := escapeLen(c.b[i:])
			if n == 0 {
				c.fail()
				return nil, false
			}
			i += n - 1
		case b < ' ':
			c.fail()
			return nil, false
		}
	}
	c.fail()
	return nil, false
}

// escapeLen returns the length of the escape at the beginning of b; 0: it is invalid.
func escapeLen(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if len(b) < 6 {
			return 0
		}
		for _, c := range b[2:6] {
			if !isDigit(c) && (c|0x20 < 'a' || c|0x20 > 'f') {
				return 0
			}
		}
		return 6
	}
	return 0
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
