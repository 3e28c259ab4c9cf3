package rabbitmq

import (
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outboxcdc/outboxcdc/router"
)

// contentType is the header of a record that becomes the property content_type.
const contentType = "content-type"

// publishing makes the message of a record. The id is its message id, and not a header as well: a broker takes headers
// apart, and a queue keeps their parts in memory.
func publishing(rec *router.Record) amqp.Publishing {
	p := amqp.Publishing{DeliveryMode: amqp.Persistent, MessageId: string(rec.ID), Timestamp: time.Now(), Body: rec.Value}
	if len(rec.Headers) > 0 {
		p.Headers = make(amqp.Table, len(rec.Headers))
	}
	for i := range rec.Headers {
		h := &rec.Headers[i]
		switch {
		case h.Name == router.HeaderID:
		case strings.EqualFold(h.Name, contentType) && len(h.Value) <= maxShort:
			p.ContentType = string(h.Value)
		case h.Value == nil:
			p.Headers[h.Name] = nil
		default:
			p.Headers[h.Name] = string(h.Value)
		}
	}
	return p
}

// maxShort is the maximum length of a short text in AMQP.
const maxShort = 255

// overhead is more than what a content header has besides the headers of a record.
const overhead = 1 << 10

// Check recognises a record that has no form in AMQP.
func (t *transport) Check(rec *router.Record) *router.Poison {
	poison := func(cause router.Cause, format string, args ...any) *router.Poison {
		return &router.Poison{Cause: cause, Topic: rec.Topic, ID: string(rec.ID), Message: fmt.Sprintf(format, args...)}
	}
	for _, text := range []struct { // the router keeps topics, which are exchanges, shorter
		what  string
		bytes int
	}{{"key is the routing key", len(rec.Key)}, {"id is the message id", len(rec.ID)}} {
		if text.bytes > maxShort {
			return poison(router.Rejected, "the %s, which may have %d bytes in AMQP; it has %d", text.what, maxShort, text.bytes)
		}
	}
	size := overhead
	for i := range rec.Headers {
		h := &rec.Headers[i]
		switch {
		case len(h.Name) > maxShort:
			return poison(router.BadHeaders, "the name of a header has %d bytes; it may have %d in AMQP", len(h.Name), maxShort)
		case h.Name == "CC" || h.Name == "BCC":
			return poison(router.BadHeaders, "RabbitMQ takes the header %s for a list of further routing keys", h.Name)
		}
		size += len(h.Name) + len(h.Value) + 6
	}
	if size > t.frameMax {
		return poison(router.TooLarge, "the headers take up to %d bytes, but the broker's frame_max is %d", size, t.frameMax)
	}
	return nil
}
