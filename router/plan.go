package router

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/outboxcdc/outboxcdc/decoder"
	"github.com/outboxcdc/outboxcdc/internal/advice"
)

// MissingColumnError is the error of a relation that lacks a configured column, or has one of an unsuitable type. Its
// rows cannot be routed, so no position after them may be confirmed.
type MissingColumnError struct {
	Relation string   // qualified name
	Column   string   // name of the column
	Setting  string   // setting that names the column: columns.payload, topic
	Has      []string // existing columns
	Problem  string   // why the column is unsuitable, "" if it is missing
	Remedy   string   // "" for the default remedy
}

func (e *MissingColumnError) Error() string {
	setting := "route." + e.Setting
	if strings.HasPrefix(e.Setting, "columns.") {
		setting = "outbox." + e.Setting
	}
	if e.Remedy != "" {
		return fmt.Sprintf("relation %s: column %q (named by %s) %s; remedy: %s", e.Relation, e.Column, setting, e.Problem, e.Remedy)
	}
	if e.Problem != "" {
		return fmt.Sprintf("relation %s: column %q (named by %s) %s; remedy: set %s, or alter the column's type back. %s", e.Relation, e.Column, setting, e.Problem, setting, writtenMeanwhile)
	}
	return fmt.Sprintf("relation %s has no column %q (named by %s); it has %s; remedy: set %s, or restore the column or the publication's column list. %s",
		e.Relation, e.Column, setting, strings.Join(e.Has, ", "), setting, writtenMeanwhile)
}

// writtenMeanwhile is what to do about events that the stream has as they were written, without the column.
const writtenMeanwhile = "If that is done, this event was written before: " + advice.DropAndRecover

// plan has the indexes of the configured columns in one version of a relation: -1 for a column that is not configured.
type plan struct {
	announced *decoder.Relation // Event.Relation
	relation  *decoder.Relation // relation with the columns: announced, or bodyRelation
	mapping   *mapping

	aggregateType, payload int // typ: aggregate_type
	eventType, headers     int
	partition              int
	timestamp              int
	trace                  int

	topic, key, id []piece
	extraHeaders   []extraHeader
	fields         []field // of the format
}

// piece is a literal or a column in a template.
type piece struct {
	literal string
	column  int // -1: literal
}

// extraHeader is a column that becomes a header.
type extraHeader struct {
	name   string
	column int
}

func (r *Router) bind(rel *decoder.Relation) (*plan, error) {
	p, ok := r.plans[rel]
	if !ok {
		var b *binding
		if p, b = r.plan(rel); len(b.problems) > 0 {
			return nil, b.problems[0]
		}
		if !p.mapping.config.Messages {
			shape := p.mapping.shapeOf(p)
			if e := r.checkDistinct(rel, shape); e != nil {
				return nil, e
			}
			p.mapping.shape = shape
		}
		if len(r.plans) >= maxPlans {
			clear(r.plans)
		}
		r.plans[rel] = p
	}
	r.last, r.mapping = p, p.mapping
	return p, nil
}

// plan finds the configured columns of a relation. The binding has the problems.
func (r *Router) plan(rel *decoder.Relation) (*plan, *binding) {
	m := r.mappings[rel.Source]
	p := &plan{announced: rel, relation: rel, mapping: m}
	if m.config.Messages {
		p.relation = bodyRelation(rel)
	}
	b := &binding{rel: p.relation, columns: &m.config.Columns, ignoreMissing: m.config.IgnoreMissing}
	c := &m.config.Columns
	for _, want := range []struct {
		column, setting string
		at              *int
	}{
		{c.AggregateType, "columns.aggregate_type", &p.aggregateType},
		{c.EventType, "columns.event_type", &p.eventType},
		{c.Payload, "columns.payload", &p.payload},
		{c.Headers, "columns.headers", &p.headers},
		{b.present(m.config.Partition), "partition", &p.partition},
		{m.timestampColumn(), "timestamp", &p.timestamp},
		{m.config.TraceContext, "trace_context", &p.trace},
	} {
		*want.at = b.find(want.column, want.setting)
	}
	// These columns must exist even if a template replaces their role.
	b.find(c.ID, "columns.id")
	b.find(c.AggregateID, "columns.aggregate_id")
	b.needType(p.partition, "partition", "smallint, integer or bigint", int2OID, int4OID, int8OID)
	b.needType(p.timestamp, "timestamp", "timestamptz, timestamp, bigint, integer or numeric", timestamptzOID, timestampOID, int8OID, int4OID, numericOID)
	b.needType(p.trace, "trace_context", "text or varchar", textOID, varcharOID)
	p.topic = b.template(m.topic, "topic")
	p.key = b.template(m.key, "key")
	p.id = b.template(m.id, "id")
	b.noBytea(p.key, "key")
	b.needText(p)
	if m.config.Format.cloudEvents() {
		p.fields = b.attributes(m.sources)
	} else {
		p.fields = b.fields(m.sources, true)
	}
	for _, h := range m.config.Headers {
		column, name := splitHeader(h)
		if b.present(column) == "" {
			continue
		}
		p.extraHeaders = append(p.extraHeaders, extraHeader{name, b.find(column, "headers")})
	}
	return p, b
}

// binding finds columns in a relation, and collects problems.
type binding struct {
	rel           *decoder.Relation
	columns       *Columns
	ignoreMissing bool // Config.IgnoreMissing
	problems      []*MissingColumnError
}

// present returns the column, or "" if it is missing and IgnoreMissing is set.
func (b *binding) present(column string) string {
	if b.ignoreMissing && b.rel.Index(column) < 0 {
		return ""
	}
	return column
}

// find returns the index of a configured column, -1 for one that is configured as "".
func (b *binding) find(column, setting string) int {
	if column == "" {
		return -1
	}
	if i := b.rel.Index(column); i >= 0 {
		return i
	}
	e := &MissingColumnError{Relation: b.rel.String(), Column: column, Setting: setting}
	for _, c := range b.rel.Columns {
		e.Has = append(e.Has, c.Name)
	}
	b.fail(e)
	return -1
}

func (b *binding) fail(e *MissingColumnError) { b.problems = append(b.problems, e) }

// needText refuses columns without a text where one is needed (bytea), and types other than JSON and text for
// headers. Types that users have created are accepted.
func (b *binding) needText(p *plan) {
	const firstOwn = 16384
	for _, role := range []struct {
		columns []piece
		setting string
	}{
		{p.id, "id"},
		{p.topic, "topic"},
		{[]piece{{column: p.aggregateType}}, "columns.aggregate_type"},
		{[]piece{{column: p.eventType}}, "columns.event_type"},
	} {
		for _, c := range role.columns {
			if c.column >= 0 && b.rel.Columns[c.column].TypeOID == byteaOID {
				b.reject(c.column, role.setting, "is bytea, which has no text")
			}
		}
	}
	if p.headers >= 0 && b.rel.Columns[p.headers].TypeOID < firstOwn {
		b.needType(p.headers, "columns.headers", "jsonb, json, text or varchar", jsonbOID, jsonOID, textOID, varcharOID)
	}
}

// reject adds a problem of an existing column.
func (b *binding) reject(column int, setting, why string) {
	b.fail(&MissingColumnError{Relation: b.rel.String(), Column: b.rel.Columns[column].Name, Setting: setting, Problem: why})
}

// needType refuses a column of another type. A domain counts as the type that it is based on.
func (b *binding) needType(column int, setting, want string, oids ...uint32) {
	if column < 0 || slices.Contains(oids, b.rel.BaseType(column)) {
		return
	}
	oid := b.rel.Columns[column].TypeOID
	b.reject(column, setting, fmt.Sprintf("is %s, but has to be %s", cmp.Or(b.rel.TypeNames[oid], typeName(oid)), want))
}

// noBytea refuses bytea columns in templates of several pieces, because bytea has no text.
func (b *binding) noBytea(pieces []piece, setting string) {
	if len(pieces) < 2 {
		return
	}
	for _, p := range pieces {
		if p.column >= 0 && b.rel.Columns[p.column].TypeOID == byteaOID {
			b.reject(p.column, setting, "is bytea, which cannot be a part of a longer text")
		}
	}
}

// template returns the pieces of a template.
func (b *binding) template(parts []part, setting string) []piece {
	var out []piece
	for _, part := range parts {
		p := piece{literal: part.literal, column: -1}
		if part.name != "" {
			name := b.columns.templateColumn(part.name)
			if name == tableName && b.rel.Index(name) < 0 {
				p.literal = b.rel.Name
			} else {
				p.column = b.find(name, setting)
			}
		}
		out = append(out, p)
	}
	return out
}

// tableName in a template means the table's name, unless the table has a column of that name.
const tableName = "table"

// quoteColumn returns the quoted name of a column.
func quoteColumn(rel *decoder.Relation, column int) string {
	return strconv.Quote(rel.Columns[column].Name)
}
