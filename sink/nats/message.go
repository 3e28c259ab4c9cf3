package natssink

import (
	"fmt"
	"math"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/outboxcdc/outboxcdc/router"
)

// The headers of a message that are not headers of the record. The server reads those that begin with Nats-.
const (
	headerID     = router.HeaderID
	headerKey    = "outboxcdc-key"
	headerMsgID  = nats.MsgIdHdr // position and id
	headerStream = nats.ExpectedStreamHdr
	ofServer     = "nats-"
)

// message makes the message of a record. A header that is null is omitted.
func message(rec *router.Record, stream string) *nats.Msg {
	most := len(rec.Headers) + 4
	m := &nats.Msg{Subject: rec.Topic, Data: rec.Value, Header: make(nats.Header, most)}
	values := make([]string, 0, most) // of all headers, in one piece of memory
	set := func(name, value string) {
		n := len(values)
		values = append(values, value)
		m.Header[name] = values[n : n+1 : n+1]
	}
	set(headerStream, stream)
	set(headerMsgID, rec.EventID())
	set(headerID, string(rec.ID))
	if rec.Key != nil {
		set(headerKey, string(rec.Key))
	}
	for i := range rec.Headers {
		switch h := &rec.Headers[i]; {
		case h.Value == nil || h.Name == headerID:
		case m.Header[h.Name] != nil:
			m.Header.Add(h.Name, string(h.Value))
		default:
			set(h.Name, string(h.Value))
		}
	}
	return m
}

// maxHeaders is the maximum size of the headers in a stream.
const maxHeaders = math.MaxUint16

// Check recognises a record that has no form in NATS.
func (t *transport) Check(rec *router.Record) *router.Poison {
	poison := func(cause router.Cause, format string, args ...any) *router.Poison {
		return &router.Poison{Cause: cause, Topic: rec.Topic, ID: string(rec.ID), Message: fmt.Sprintf(format, args...)}
	}
	if strings.HasPrefix(rec.Topic, ".") || strings.HasSuffix(rec.Topic, ".") || strings.Contains(rec.Topic, "..") {
		return poison(router.IllegalTopic, "the topic %s is no subject of NATS: there is nothing before, after or between its dots", rec.Topic)
	}
	for name, text := range map[string][]byte{"id": rec.ID, "key": rec.Key} {
		if !isValue(text) {
			return poison(router.Rejected, "the %s is a header of NATS, which has no line breaks, and no spaces at its ends", name)
		}
	}
	size := 64 + len(t.cfg.Stream) + 2*len(rec.Position()) + 2*len(rec.ID) + len(rec.Key) + 64
	for i := range rec.Headers {
		h := &rec.Headers[i]
		switch {
		case len(h.Name) >= len(ofServer) && strings.EqualFold(h.Name[:len(ofServer)], ofServer):
			return poison(router.BadHeaders, "the header %s begins with Nats-, which the server takes for an order to itself", h.Name)
		case !isName(h.Name):
			return poison(router.BadHeaders, "the name of the header %q has characters that NATS does not take", h.Name)
		case !isValue(h.Value):
			return poison(router.BadHeaders, "the value of the header %s has line breaks, or spaces at its ends, which NATS does not take", h.Name)
		}
		size += len(h.Name) + len(h.Value) + 4
	}
	switch {
	case size > maxHeaders:
		return poison(router.TooLarge, "its headers have up to %d bytes, but a stream of NATS takes %d", size, maxHeaders)
	case size+len(rec.Value) > t.maxPayload:
		return poison(router.TooLarge, "it has up to %d bytes, but NATS takes %d (max_payload)", size+len(rec.Value), t.maxPayload)
	}
	return nil
}

// isName reports whether a text can be the name of a header.
func isName(name string) bool {
	return name != "" && strings.IndexFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == ':' }) < 0
}

// isValue reports whether a text remains the same as the value of a header.
func isValue(text []byte) bool {
	s := string(text)
	return !strings.ContainsAny(s, "\r\n") && strings.Trim(s, " \t") == s
}
