package router

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/outboxcdc/outboxcdc/decoder"
)

// Names of CloudEvents 1.0.2 and its Kafka binding.
const (
	ceSource      = "source"
	ceType        = "type"
	ceTime        = "time"
	ceDataSchema  = "dataschema"
	ceContentType = "datacontenttype"

	ceHeader          = "ce_"
	headerContentType = "content-type"
)

var (
	ceVersion    = []byte("1.0")
	ceStructured = []byte("application/cloudevents+json; charset=UTF-8")
)

func (f Format) cloudEvents() bool {
	return f == FormatCloudEventsBinary || f == FormatCloudEventsStructured
}

// defaultAttributes returns the sources of attributes that need no setting. Roles without a column have no attribute.
func (c *Config) defaultAttributes() map[string]string {
	attributes := map[string]string{ceTime: "{" + commitName + "}", ceContentType: "application/json"}
	if c.Columns.EventType != "" {
		attributes[ceType] = "{event_type}"
	}
	if c.Columns.AggregateID != "" {
		attributes["subject"] = "{aggregate_id}"
	}
	return attributes
}

// ceFieldHeader returns the name of an attribute's header in binary mode.
func ceFieldHeader(name string) string {
	if name == ceContentType {
		return headerContentType
	}
	return ceHeader + name
}

// owns reports whether the format uses the header itself. Upper and lower case are equal, because libraries compare
// header names without case.
func (f Format) owns(header string) bool {
	if !f.cloudEvents() {
		return false
	}
	attribute := f == FormatCloudEventsBinary && len(header) >= len(ceHeader) && strings.EqualFold(header[:len(ceHeader)], ceHeader)
	return attribute || strings.EqualFold(header, headerContentType)
}

// cloudEvents checks the attributes.
func (v *validation) cloudEvents(c *Config) {
	if !c.Format.cloudEvents() {
		return
	}
	sources, err := c.sources()
	if err != nil {
		v.add("fields", err)
		return
	}
	has := map[string]bool{}
	for i := range sources {
		has[sources[i].name] = true
		if why := checkAttribute(&sources[i]); why != "" {
			v.fail("fields", "of %q: %s", sources[i].name, why)
		}
	}
	if !has[ceSource] {
		v.fail("fields", "source is required: a URI that identifies this outbox, e.g. {source: //shop.example/orders}; source and id together identify an event")
	}
	if !has[ceType] {
		v.fail("fields", "type is required without columns.event_type, e.g. {type: \"{aggregate_type}\"}")
	}
	for _, s := range c.Headers {
		_, name := splitHeader(s)
		if c.Format.owns(name) {
			v.fail("headers", "%q: the format uses the header name %q; set fields", s, name)
		}
	}
}

// checkAttribute returns what is wrong with an attribute, or "".
func checkAttribute(s *source) string {
	if strings.Trim(s.name, "abcdefghijklmnopqrstuvwxyz0123456789") != "" || s.name == "" {
		return "an attribute's name can only have a–z and 0–9"
	}
	literal := len(s.parts) == 1 && s.parts[0].name == ""
	_, link := s.schemaLink()
	switch s.name {
	case "specversion", "id", "data":
		return "cannot be set; the id is route.id's, the data is the payload"
	case ceSource, ceDataSchema, ceContentType:
		switch {
		case s.name == ceDataSchema && !literal && (!link || len(s.parts) == 1):
			return "has to be a constant, or a URI that ends with {schema_id}"
		case s.name != ceDataSchema && !literal:
			return "has to be a constant"
		}
	case ceTime:
		if s.singleName() == "" || s.singleName() == traceName {
			return "has to be one column of the type timestamptz or timestamp, or {commit_time}"
		}
	}
	if s.singleName() == payloadName {
		return "cannot be the payload"
	}
	for _, p := range s.parts {
		if why := badAttribute([]byte(p.literal)); why != "" {
			return why
		}
	}
	if s.name == ceSource || s.name == ceDataSchema {
		u, err := url.Parse(s.parts[0].literal)
		if err != nil || strings.ContainsRune(s.parts[0].literal, ' ') || s.name == ceDataSchema && !u.IsAbs() {
			return fmt.Sprintf("%q is not a URI", s.parts[0].literal)
		}
	}
	return ""
}

// badAttribute returns, as the end of a sentence, why a text cannot be an attribute, or "".
func badAttribute(text []byte) string {
	if !utf8.Valid(text) {
		return "is not UTF-8"
	}
	for i := 0; i < len(text); {
		c, n := utf8.DecodeRune(text[i:])
		if c < ' ' || c >= 0x7f && c <= 0x9f || c >= 0xfdd0 && c <= 0xfdef || c&0xfffe == 0xfffe {
			return "has a control character"
		}
		i += n
	}
	return ""
}

// isJSONData reports whether datacontenttype is missing or a media type of JSON.
func isJSONData(sources []source) bool {
	for i := range sources {
		if sources[i].name != ceContentType {
			continue
		}
		s, _, _ := strings.Cut(strings.ToLower(sources[i].parts[0].literal), ";")
		s = strings.TrimSpace(s)
		return strings.HasSuffix(s, "/json") || strings.HasSuffix(s, "+json")
	}
	return true
}

// attributes returns the fields of the attributes.
func (b *binding) attributes(sources []source) []field {
	fields := b.fields(sources, false)
	for i := range fields {
		f := &fields[i]
		f.header = ceFieldHeader(f.name)
		if f.name == ceTime && f.origin == fromColumns {
			b.needType(f.pieces[0].column, "fields."+ceTime, "timestamptz or timestamp", timestamptzOID, timestampOID)
		}
	}
	return fields
}

// routeCloudEvent formats the record as a CloudEvent: attributes in headers, or a JSON object with attributes and
// payload.
func (r *Router) routeCloudEvent(p *plan, ev *decoder.Event, rec *Record) (*Poison, error) {
	if rec.ID == nil {
		return nil, nil // poison already
	}
	texts, err := r.texts(p, ev, rec)
	if err != nil {
		return nil, err
	}
	if why := badAttribute(rec.ID); why != "" {
		return &Poison{Cause: BadHeaders, Message: "the CloudEvents attribute \"id\" " + why}, nil
	}
	for i := range p.fields {
		if poison := r.checkText(p, &p.fields[i], texts[i]); poison != nil {
			return poison, nil
		}
	}
	if r.config.Format == FormatCloudEventsStructured {
		return r.routeStructured(p, ev, texts, rec), nil
	}
	rec.setHeader(ceHeader+"specversion", ceVersion)
	rec.setHeader(ceHeader+"id", rec.ID)
	for i := range p.fields {
		if len(texts[i]) > 0 {
			rec.setHeader(p.fields[i].header, texts[i])
		}
	}
	return nil, nil
}

// checkText checks the text of an attribute. An attribute that is empty or NULL is omitted, unless it is required.
func (r *Router) checkText(p *plan, f *field, text []byte) *Poison {
	why := badAttribute(text)
	switch {
	case f.name == ceType && len(text) == 0:
		why = "is NULL or empty"
	case f.name == ceTime && f.origin == fromColumns && text != nil && (len(text) < 11 || text[10] != 'T'):
		return &Poison{Cause: BadTimestamp, Message: "the column " + quoteColumn(p.relation, f.pieces[0].column) + " holds " + printable(text) + ", which is not a time of RFC 3339"}
	}
	if why == "" {
		return nil
	}
	return &Poison{Cause: BadHeaders, Message: "the CloudEvents attribute \"" + f.name + "\" " + why}
}

// routeStructured writes the event as JSON. This mode has no tombstones: without payload the event has no data.
func (r *Router) routeStructured(p *plan, ev *decoder.Event, texts [][]byte, rec *Record) *Poison {
	null := r.isPayloadNull(p, ev)
	isBytea := p.relation.Columns[p.payload].TypeOID == byteaOID
	switch {
	case null && r.config.NullPayload == NullPayloadPoison:
		return nil // poison already
	case null:
	case r.jsonData && !validJSON(rec.Value):
		return &Poison{Cause: BadPayload, Message: "the column " + quoteColumn(p.relation, p.payload) + " is not valid JSON in UTF-8, which datacontenttype requires"}
	case !r.jsonData && !isBytea && !utf8.Valid(rec.Value):
		return &Poison{Cause: BadPayload, Message: "the column " + quoteColumn(p.relation, p.payload) + " is not UTF-8"}
	}
	start := len(r.scratch)
	b := append(r.scratch, `{"specversion":"1.0","id":`...)
	b = appendString(b, rec.ID)
	for i := range p.fields {
		if len(texts[i]) > 0 {
			b = appendString(append(b, p.fields[i].prefix...), texts[i])
		}
	}
	switch {
	case null:
	case r.jsonData:
		b = append(append(b, `,"data":`...), rec.Value...)
	case isBytea:
		b = append(b, `,"data_base64":"`...)
		b = append(base64.StdEncoding.AppendEncode(b, rec.Value), '"')
	default:
		b = appendString(append(b, `,"data":`...), rec.Value)
	}
	r.scratch = append(b, '}')
	rec.Value = r.scratchFrom(start)
	rec.setHeader(headerContentType, ceStructured)
	return nil
}

// setHeader sets a header of the format. It replaces a member of the headers column with the same name.
func (r *Record) setHeader(name string, value []byte) {
	r.Headers = append(removeHeader(r.Headers, name), Header{Name: name, Value: value})
}
