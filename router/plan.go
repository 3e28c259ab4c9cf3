package router

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/outboxcdc/outboxcdc/decoder"
)

// MissingColumnError says that a version of a relation lacks a column that the configuration names, or has one of a type
// that cannot serve. Rows of it cannot be routed, so nothing from here on may be confirmed.
type MissingColumnError struct {
	Relation string   // qualified name
	Column   string   // which
	Setting  string   // the setting that names it: columns.payload, topic
	Has      []string // the columns that there are
	Problem  string   // "" if it is missing, else why it cannot serve
	Remedy   string   // "" if it is the usual one
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
		return fmt.Sprintf("relation %s: column %q (named by %s) %s; remedy: set %s, or alter the column's type back", e.Relation, e.Column, setting, e.Problem, setting)
	}
	return fmt.Sprintf("relation %s has no column %q (named by %s); it has %s; remedy: set %s, or restore the column or the publication's column list",
		e.Relation, e.Column, setting, strings.Join(e.Has, ", "), setting)
}

// plan is where the configured columns are in one version of a relation: -1 for those that were not configured.
type plan struct {
	announced *decoder.Relation // what events come with
	relation  *decoder.Relation // what columns are looked for in: the same, or bodies
	mapping   *mapping

	typ, payload       int // typ: aggregate_type
	eventType, headers int
	partition          int
	timestamp          int
	trace              int

	topic, key, id []piece
	more           []moreHeader
	fields         []field // of the format
}

// piece is a piece of a template: a literal, or a column.
type piece struct {
	literal string
	column  int // -1: literal
}

// moreHeader is a column that becomes a header.
type moreHeader struct {
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
			if e := r.distinct(rel, shape); e != nil {
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

// plan looks for everything that the configuration names; what is wrong is in the binding.
func (r *Router) plan(rel *decoder.Relation) (*plan, *binding) {
	m := r.mappings[rel.Source]
	p := &plan{announced: rel, relation: rel, mapping: m}
	if m.config.Messages {
		p.relation = bodies(rel)
	}
	b := &binding{rel: p.relation, columns: &m.config.Columns, ignore: m.config.IgnoreMissing}
	c := &m.config.Columns
	for _, want := range []struct {
		column, setting string
		at              *int
	}{
		{c.AggregateType, "columns.aggregate_type", &p.typ},
		{c.EventType, "columns.event_type", &p.eventType},
		{c.Payload, "columns.payload", &p.payload},
		{c.Headers, "columns.headers", &p.headers},
		{b.present(m.config.Partition), "partition", &p.partition},
		{m.timestampColumn(), "timestamp", &p.timestamp},
		{m.config.TraceContext, "trace_context", &p.trace},
	} {
		*want.at = b.find(want.column, want.setting)
	}
	// A role that a template stands in for must exist all the same where it is named.
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
		p.fields = b.fields(m.sources, "envelope", "{")
	}
	for _, h := range m.config.Headers {
		column, name := splitHeader(h)
		if b.present(column) == "" {
			continue
		}
		p.more = append(p.more, moreHeader{name, b.find(column, "headers")})
	}
	return p, b
}

// binding looks for columns.
type binding struct {
	rel      *decoder.Relation
	columns  *Columns
	ignore   bool // columns that are no role's and missing
	problems []*MissingColumnError
}

// present is the column, or "" if it is missing and that is ignored.
func (b *binding) present(column string) string {
	if b.ignore && b.rel.Index(column) < 0 {
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

// needText refuses types that cannot serve where a text is needed: bytea has none of its own, and headers are JSON. What
// a type that was made in the database is made of, the stream does not say.
func (b *binding) needText(p *plan) {
	const firstOwn = 16384
	for _, role := range []struct {
		columns []piece
		setting string
	}{
		{p.id, "id"},
		{p.topic, "topic"},
		{[]piece{{column: p.typ}}, "columns.aggregate_type"},
		{[]piece{{column: p.eventType}}, "columns.event_type"},
	} {
		for _, c := range role.columns {
			if c.column >= 0 && b.rel.Columns[c.column].TypeOID == byteaOID {
				b.cannot(c.column, role.setting, "is bytea, and has to have a text")
			}
		}
	}
	if p.headers >= 0 && b.rel.Columns[p.headers].TypeOID < firstOwn {
		b.needType(p.headers, "columns.headers", "jsonb, json, text or varchar", jsonbOID, jsonOID, textOID, varcharOID)
	}
}

// cannot refuses a column for what it is.
func (b *binding) cannot(column int, setting, why string) {
	b.fail(&MissingColumnError{Relation: b.rel.String(), Column: b.rel.Columns[column].Name, Setting: setting, Problem: why})
}

// needType refuses a column whose type cannot serve.
func (b *binding) needType(column int, setting, want string, oids ...uint32) {
	if column < 0 || slices.Contains(oids, b.rel.Columns[column].TypeOID) {
		return
	}
	b.cannot(column, setting, fmt.Sprintf("is %s, but has to be %s", typeName(b.rel.Columns[column].TypeOID), want))
}

// noBytea refuses bytea beside other pieces: it has no text of its own.
func (b *binding) noBytea(pieces []piece, setting string) {
	if len(pieces) < 2 {
		return
	}
	for _, p := range pieces {
		if p.column >= 0 && b.rel.Columns[p.column].TypeOID == byteaOID {
			b.cannot(p.column, setting, "is bytea, which cannot be a part of a longer text")
		}
	}
}

// template finds the columns of a template.
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

// tableName in a template stands for the table's name, unless it has a column that is called so.
const tableName = "table"

// quoted names a column for people.
func quoted(rel *decoder.Relation, column int) string { return strconv.Quote(rel.Columns[column].Name) }
