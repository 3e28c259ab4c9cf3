package router

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/decoder"
)

// The members of a message's body that count, and what they would be in a table of the bundled layout. All others are
// ignored, as further columns are.
const (
	memberID = iota
	memberAggregateType
	memberAggregateID
	memberEventType
	memberPayload
	memberHeaders
	memberCreatedAt
	members
)

var messageColumns = [members]decoder.Column{
	memberID:            {Name: "id", TypeOID: textOID},
	memberAggregateType: {Name: "aggregate_type", TypeOID: textOID},
	memberAggregateID:   {Name: "aggregate_id", TypeOID: textOID},
	memberEventType:     {Name: "event_type", TypeOID: textOID},
	memberPayload:       {Name: "payload", TypeOID: jsonbOID},
	memberHeaders:       {Name: "headers", TypeOID: jsonbOID},
	memberCreatedAt:     {Name: "created_at", TypeOID: timestamptzOID},
}

// MessageColumns are the columns of a configuration for messages.
func MessageColumns() Columns { return DefaultConfig().Columns }

// bodies is what messages look like to everything that works with rows.
func bodies(announced *decoder.Relation) *decoder.Relation {
	return &decoder.Relation{Namespace: announced.Namespace, Name: announced.Name, Source: announced.Source, Columns: messageColumns[:]}
}

// message says what a configuration names that no message has.
func (v *validation) message(c *Config) {
	if !c.Messages || len(v.problems) > 0 {
		return
	}
	m := newMapping(*c)
	r := &Router{mappings: []*mapping{m}}
	_, b := r.plan(&decoder.Relation{Namespace: "messages", Columns: messageColumns[:]})
	var names []string
	for _, column := range messageColumns {
		names = append(names, column.Name)
	}
	for _, e := range b.problems {
		why := e.Problem
		if why == "" {
			why = "is no member of a logical message; those are " + strings.Join(names, ", ")
		}
		v.fail(e.Setting, "%q %s", e.Column, why)
	}
}

// body is the event that a message stands for. It lives until the next one.
type body struct {
	event  decoder.Event
	values [members]decoder.Value
}

// unpack reads the body of a message into the columns of the bundled layout. What is wrong, as the end of a sentence, is in
// why; what could be read is there all the same. isObject is false for a body of which nothing could.
func (r *Router) unpack(p *plan, ev *decoder.Event) (row *decoder.Event, isObject bool, why string) {
	b := &r.body
	b.values = [members]decoder.Value{}
	for i := range b.values {
		b.values[i].Null = true
	}
	b.event = decoder.Event{Relation: p.relation, Values: b.values[:], Ordinal: ev.Ordinal, Begin: ev.Begin}
	content := ev.Values[0].Data
	switch {
	case !utf8.Valid(content):
		return &b.event, false, "is not UTF-8"
	case !json.Valid(content):
		return &b.event, false, "is not valid JSON"
	}
	c := cursor{b: content}
	if !c.enter() {
		return &b.event, false, "is not a JSON object"
	}
	seen := [members]bool{}
	for c.more() {
		at := r.memberAt(c.memberName())
		raw := c.any()
		if at < 0 {
			continue
		}
		if seen[at] {
			why = cmp.Or(why, "has the member "+messageColumns[at].Name+" twice")
			continue
		}
		seen[at] = true
		var problem string
		if b.values[at], problem = r.messageValue(at, raw); problem != "" {
			why = cmp.Or(why, "has a member "+messageColumns[at].Name+" that "+problem)
		}
	}
	return &b.event, true, why
}

// routeMessage makes the record of a message's body.
func (r *Router) routeMessage(p *plan, ev *decoder.Event, pos checkpoint.Position, rec *Record) error {
	row, isObject, why := r.unpack(p, ev)
	if why == "" {
		return r.route(p, row, pos, rec, nil)
	}
	err := r.route(p, row, pos, rec, &Poison{Cause: BadPayload, Message: bodyName(p) + " " + why})
	if !isObject {
		rec.Value = ev.Values[0].Data // a dead letter has all that there is
	}
	return err
}

// memberAt is the number of the member of that name, or -1.
func (r *Router) memberAt(raw []byte, escaped bool) int {
	raw = r.unescaped(raw, escaped)
	return slices.IndexFunc(messageColumns[:], func(c decoder.Column) bool { return string(raw) == c.Name })
}

// any takes a value as it stands.
func (c *cursor) any() []byte {
	start := c.i
	switch c.b[c.i] {
	case '"':
		c.string()
		return c.b[start:c.i:c.i]
	case '{', '[':
		raw, _ := c.composite()
		return raw
	}
	return c.word()
}

// messageValue is a member as a table would have it. The payload is taken byte by byte, whatever JSON it is; a payload of
// SQL NULL is one that is missing.
func (r *Router) messageValue(at int, raw []byte) (v decoder.Value, why string) {
	null := string(raw) == "null"
	switch {
	case at == memberPayload, at == memberHeaders && !null:
		return decoder.Value{Data: raw}, ""
	case null:
		return decoder.Value{Null: true}, ""
	case raw[0] == '{' || raw[0] == '[':
		return decoder.Value{Null: true}, "is no text"
	case raw[0] != '"':
		return decoder.Value{Data: raw}, "" // a number as it was written, true or false
	}
	text := raw[1 : len(raw)-1 : len(raw)-1]
	if bytes.IndexByte(text, '\\') >= 0 {
		start := len(r.scratch)
		r.scratch = appendUnescaped(r.scratch, text)
		unescaped := r.since(start)
		// What jsonb refuses, and text cannot hold: a repeat would have to be the same after a change of either.
		if bytes.IndexByte(unescaped, 0) >= 0 {
			return decoder.Value{Null: true}, `holds \u0000, which no text can`
		}
		if bytes.ContainsRune(unescaped, utf8.RuneError) && !bytes.ContainsRune(text, utf8.RuneError) {
			return decoder.Value{Null: true}, "holds half a surrogate pair"
		}
		text = unescaped
	}
	if at == memberCreatedAt {
		text = r.sqlTime(text)
	}
	return decoder.Value{Data: text}, ""
}

// sqlTime turns a time of RFC 3339, as JSON has it, into PostgreSQL's text of a timestamptz; anything else stays as it is.
func (r *Router) sqlTime(text []byte) []byte {
	const date = len("0000-00-00")
	if len(text) <= date || text[date] != 'T' {
		return text
	}
	t, err := time.Parse(time.RFC3339Nano, string(text))
	if err != nil {
		return text
	}
	start := len(r.scratch)
	r.scratch = t.UTC().AppendFormat(r.scratch, "2006-01-02 15:04:05.999999-07")
	return r.since(start)
}

// bodyName names the body of a message for people.
func bodyName(p *plan) string {
	return "the body of a logical message with the prefix " + strconv.Quote(p.relation.Name)
}
