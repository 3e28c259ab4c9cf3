package router

import (
	"unicode/utf8"

	"github.com/outboxcdc/outboxcdc/decoder"
)

// defaultEnvelope returns the default fields. Roles without a column have no field.
func (c *Config) defaultEnvelope() map[string]string {
	fields := map[string]string{
		"eventId": "{id}", "schemaVersion": "1", "occurredAt": "{" + commitName + "}", "traceId": "{" + traceName + "}", "data": "{" + payloadName + "}",
	}
	if c.ID != "" {
		fields["eventId"] = c.ID
	}
	for name, role := range map[string]struct{ column, template string }{
		"eventType":     {c.Columns.EventType, "{event_type}"},
		"aggregateType": {c.Columns.AggregateType, "{aggregate_type}"},
		"aggregateId":   {c.Columns.AggregateID, "{aggregate_id}"},
	} {
		if role.column != "" {
			fields[name] = role.template
		}
	}
	return fields
}

// envelope checks the fields.
func (v *validation) envelope(c *Config) {
	if c.Format != FormatEnvelope {
		if len(c.Fields) > 0 && !c.Format.cloudEvents() {
			v.fail("fields", "has no effect without a format of which they are a part: envelope, cloudevents_binary or cloudevents_structured")
		}
		return
	}
	sources, err := c.sources()
	switch {
	case err != nil:
		v.add("fields", err)
	case len(sources) == 0 || sources[len(sources)-1].singleName() != payloadName:
		v.fail("fields", "no field holds the payload; write e.g. data: \"{payload}\"")
	}
	for _, s := range sources {
		if !utf8.ValidString(s.name) {
			v.fail("fields", "the name %q is not UTF-8", s.name)
		}
	}
}

// routeEnvelope replaces the value, which is the payload, by an envelope. A tombstone has no envelope.
func (r *Router) routeEnvelope(p *plan, ev *decoder.Event, rec *Record) (*Poison, error) {
	payload := rec.Value // the value of a dead letter
	if r.isPayloadNull(p, ev) {
		if r.config.NullPayload != NullPayloadEmpty {
			return nil, nil
		}
		rec.Value = nil // in JSON: null
	} else if p.relation.Columns[p.payload].TypeOID != byteaOID && !validJSON(rec.Value) {
		return &Poison{Cause: BadPayload, Message: "the column " + quoteColumn(p.relation, p.payload) + " is not valid JSON in UTF-8, which an envelope requires"}, nil
	}
	texts, err := r.texts(p, ev, rec)
	if err != nil {
		return nil, err
	}
	start := len(r.scratch)
	for i := range p.fields {
		f := &p.fields[i]
		r.scratch = append(r.scratch, f.prefix...)
		if f.origin == fromPayload && f.encoding != asBase64 && texts[i] != nil { // checked above
			r.scratch = append(r.scratch, texts[i]...)
			continue
		}
		var why string
		if r.scratch, why = appendJSON(r.scratch, texts[i], f.encoding); why != "" {
			rec.Value = payload
			return &Poison{Cause: BadPayload, Message: "the source of " + fieldName(f) + " of the envelope " + why}, nil
		}
	}
	r.scratch = append(r.scratch, '}')
	rec.Value = r.scratchFrom(start)
	return nil, nil
}
