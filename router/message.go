package router

import (
	"bytes"
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/decoder"
)

// The members of a message's body, which correspond to columns of the bundled layout. Other members are ignored.
const (
	memberID = iota
	memberAggregateType
	memberAggregateID
	memberEventType
	memberPayload
	memberHeaders
	memberCreatedAt
	memberCount
)

var messageColumns = [memberCount]decoder.Column{
	memberID:            {Name: "id", TypeOID: textOID},
	memberAggregateType: {Name: "aggregate_type", TypeOID: textOID},
	memberAggregateID:   {Name: "aggregate_id", TypeOID: textOID},
	memberEventType:     {Name: "event_type", TypeOID: textOID},
	memberPayload:       {Name: "payload", TypeOID: jsonbOID},
	memberHeaders:       {Name: "headers", TypeOID: jsonbOID},
	memberCreatedAt:     {Name: "created_at", TypeOID: timestamptzOID},
}

// MessageColumns returns the columns of a configuration for messages.
func MessageColumns() Columns { return DefaultConfig().Columns }

// bodyRelation returns the relation of message bodies, whose columns are those of the bundled layout.
func bodyRelation(announced *decoder.Relation) *decoder.Relation {
	return &decoder.Relation{Namespace: announced.Namespace, Name: announced.Name, Source: announced.Source, Columns: messageColumns[:]}
}

// message refuses columns that a message does not have.
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
			why = "is not a member of a logical message; the members are " + strings.Join(names, ", ")
		}
		v.fail(e.Setting, "%q %s", e.Column, why)
	}
}

// body is the event in a message's body. It is reused for the next message.
type body struct {
	event  decoder.Event
	values [memberCount]decoder.Value
}

// noMembers are the values of a body that has no member.
var noMembers = func() (v [memberCount]decoder.Value) {
	for i := range v {
		v[i].Null = true
	}
	return v
}()

// unpack reads the body of a message into the columns of the bundled layout. If the body is invalid, why is the
// reason, as the end of a sentence, and row has the members that could be read. isObject is false if no member could
// be read.
func (r *Router) unpack(p *plan, ev *decoder.Event) (row *decoder.Event, isObject bool, why string) {
	b := &r.body
	b.values = noMembers
	b.event = decoder.Event{Relation: p.relation, Values: b.values[:], Ordinal: ev.Ordinal, Begin: ev.Begin}
	content := ev.Values[0].Data
	if !utf8.Valid(content) {
		return &b.event, false, "is not UTF-8"
	}
	c := cursor{b: content}
	if !c.enter() {
		return &b.event, false, c.noObject()
	}
	seen := [memberCount]bool{}
	for c.nextMember() {
		at := r.memberAt(c.memberName())
		raw := c.value()
		if at < 0 || raw == nil {
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
	if !c.isValid() {
		b.values = noMembers
		return &b.event, false, notValid
	}
	return &b.event, true, why
}

// routeMessage fills the record from a message's body.
func (r *Router) routeMessage(p *plan, ev *decoder.Event, pos checkpoint.Position, rec *Record) error {
	row, isObject, why := r.unpack(p, ev)
	if why == "" {
		return r.route(p, row, pos, rec, nil)
	}
	err := r.route(p, row, pos, rec, &Poison{Cause: BadPayload, Message: bodyName(p) + " " + why})
	if !isObject {
		rec.Value = ev.Values[0].Data // a dead letter has the whole body
	}
	return err
}

// memberAt returns the index of the member with that name, or -1.
func (r *Router) memberAt(raw []byte, escaped bool) int {
	raw = r.unescaped(raw, escaped)
	return slices.IndexFunc(messageColumns[:], func(c decoder.Column) bool { return string(raw) == c.Name })
}

// messageValue returns a member as the value of a column. The payload keeps every byte of its JSON; a missing payload
// is SQL NULL.
func (r *Router) messageValue(at int, raw []byte) (v decoder.Value, why string) {
	null := string(raw) == "null"
	switch {
	case at == memberPayload, at == memberHeaders && !null:
		return decoder.Value{Data: raw}, ""
	case null:
		return decoder.Value{Null: true}, ""
	case raw[0] == '{' || raw[0] == '[':
		return decoder.Value{Null: true}, "is not text"
	case raw[0] != '"':
		return decoder.Value{Data: raw}, "" // a number as it was written, true or false
	}
	text := raw[1 : len(raw)-1 : len(raw)-1]
	if bytes.IndexByte(text, '\\') >= 0 {
		start := len(r.scratch)
		r.scratch = appendUnescaped(r.scratch, text)
		unescaped := r.scratchFrom(start)
		// jsonb and text refuse these characters, too. A duplicate of the event must have the same bytes.
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

// sqlTime converts a time of RFC 3339 to PostgreSQL's text of a timestamptz. It returns any other text unchanged.
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
	return r.scratchFrom(start)
}

// bodyName describes the body of a message in error texts.
func bodyName(p *plan) string {
	return "the body of a logical message with the prefix " + strconv.Quote(p.relation.Name)
}
