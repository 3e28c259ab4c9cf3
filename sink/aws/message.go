package awssink

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/outboxcdc/outboxcdc/router"
)

// The attributes of a message that are not headers of the record.
const (
	attributeID   = router.HeaderID
	attributeKey  = "outboxcdc-key"
	attributeBody = "outboxcdc-body" // what the body is, if it is not the value as text
)

// The values of the attribute outboxcdc-body.
const (
	bodyBase64 = "base64"
	bodyEmpty  = "empty" // the value is empty, which no body is
	bodyNull   = "null"  // there is no value: a tombstone
)

// emptyBody is the body of a message whose value has none.
const emptyBody = "-"

const maxAttributes = 10

// message is the form of a record in a FIFO queue or topic. It does not share memory with the record.
type message struct {
	body, group, once string // once: the deduplication id
	attributes        []attribute
	size              int // of body and attributes
}

// attribute has a text, or bytes that are none.
type attribute struct {
	name, text string
	bytes      []byte
}

// newMessage makes the message of a record. A header that is null or empty is omitted: no attribute is empty.
func newMessage(rec *router.Record) *message {
	m := &message{group: groupOf(rec), once: allowed(rec.EventID())}
	switch {
	case rec.Value == nil:
		m.body = emptyBody
		m.add(attributeBody, []byte(bodyNull))
	case len(rec.Value) == 0:
		m.body = emptyBody
		m.add(attributeBody, []byte(bodyEmpty))
	case isText(rec.Value):
		m.body = string(rec.Value)
	default:
		m.body = base64.StdEncoding.EncodeToString(rec.Value)
		m.add(attributeBody, []byte(bodyBase64))
	}
	m.add(attributeID, rec.ID)
	m.add(attributeKey, rec.Key)
	for i := range rec.Headers {
		if h := &rec.Headers[i]; h.Name != attributeID {
			m.add(h.Name, h.Value)
		}
	}
	m.size += len(m.body)
	return m
}

func (m *message) add(name string, value []byte) {
	a := attribute{name: name}
	switch {
	case len(value) == 0:
		return
	case isText(value):
		a.text = string(value)
	default:
		a.bytes = append([]byte(nil), value...)
	}
	m.attributes = append(m.attributes, a)
	m.size += len(name) + len("String") + len(value)
}

// groupOf returns the message group: the key, or for an event without a key its id, as [router.Record.PartitionBy] is.
// So a group is in one lane, and an event without a key is a group of its own.
func groupOf(rec *router.Record) string {
	if rec.Key == nil {
		return allowed(string(rec.ID))
	}
	return allowed(string(rec.Key))
}

// allowed returns a text that is the same and allowed in the id of a group or of a message, or else its hash.
func allowed(text string) string {
	const most = 128
	if text != "" && len(text) <= most && strings.IndexFunc(text, func(r rune) bool { return r <= ' ' || r >= 0x7f }) < 0 {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + hex.EncodeToString(sum[:])
}

// Check recognises a record that has no form in a FIFO queue or topic.
func (t *transport) Check(rec *router.Record) *router.Poison {
	poison := func(cause router.Cause, format string, args ...any) *router.Poison {
		return &router.Poison{Cause: cause, Topic: rec.Topic, ID: string(rec.ID), Message: fmt.Sprintf(format, args...)}
	}
	if !fifoName.MatchString(rec.Topic) {
		return poison(router.IllegalTopic, "the topic %s is no name of a FIFO %s: up to 75 letters, digits, hyphens and underscores, and .fifo", rec.Topic, t.service.what())
	}
	m := newMessage(rec)
	seen := make(map[string]bool, len(m.attributes))
	for _, a := range m.attributes {
		switch {
		case !isName(a.name):
			return poison(router.BadHeaders, "the name of the header %q is none of an attribute: up to 256 letters, digits, hyphens, underscores and single dots inside, not beginning with AWS. or Amazon.", a.name)
		case seen[a.name]:
			return poison(router.BadHeaders, "the header %s is there twice, or has the name of an attribute of outboxcdc, and a message has one attribute of a name", a.name)
		}
		seen[a.name] = true
	}
	switch {
	case len(m.attributes) > maxAttributes:
		return poison(router.BadHeaders, "it has %d attributes (headers, id and key), but a message has %d at most; let route.headers name fewer columns", len(m.attributes), maxAttributes)
	case m.size > t.service.maxMessage():
		return poison(router.TooLarge, "its message has %d bytes, but a %s takes %d", m.size, t.service.what(), t.service.maxMessage())
	}
	return nil
}

// fifoName is the name of a FIFO queue, and of a topic of SNS that a queue may be named after.
var fifoName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,75}\.fifo$`)

var attributeName = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$`)

// isName reports whether a text can be the name of an attribute.
func isName(name string) bool {
	lower := strings.ToLower(name)
	return len(name) <= 256 && attributeName.MatchString(name) && !strings.HasPrefix(lower, "aws.") && !strings.HasPrefix(lower, "amazon.")
}

// isText reports whether bytes are text that SQS takes: that of XML.
func isText(b []byte) bool {
	if !utf8.Valid(b) {
		return false
	}
	for _, r := range string(b) {
		if r < ' ' && r != '\t' && r != '\n' && r != '\r' || r == 0xfffe || r == 0xffff {
			return false
		}
	}
	return true
}
