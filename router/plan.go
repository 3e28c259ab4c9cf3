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
}

func (e *MissingColumnError) Error() string {
	if e.Problem != "" {
		return fmt.Sprintf("relation %s: column %q (named by %s) %s; remedy: set %s, or alter the column's type back", e.Relation, e.Column, e.Setting, e.Problem, e.Setting)
	}
	return fmt.Sprintf("relation %s has no column %q (named by %s); it has %s; remedy: set %s, or restore the column or the publication's column list",
		e.Relation, e.Column, e.Setting, strings.Join(e.Has, ", "), e.Setting)
}

// plan is where the configured columns are in one version of a relation: -1 for those that were not configured.
type plan struct {
	relation *decoder.Relation

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
	if p, ok := r.plans[rel]; ok {
		r.last = p
		return p, nil
	}
	b := &binding{rel: rel, columns: &r.config.Columns}
	p := &plan{relation: rel}
	c := &r.config.Columns
	for _, want := range []struct {
		column, setting string
		at              *int
	}{
		{c.AggregateType, "columns.aggregate_type", &p.typ},
		{c.EventType, "columns.event_type", &p.eventType},
		{c.Payload, "columns.payload", &p.payload},
		{c.Headers, "columns.headers", &p.headers},
		{r.config.Partition, "partition", &p.partition},
		{r.timestampColumn(), "timestamp", &p.timestamp},
		{r.config.TraceContext, "trace_context", &p.trace},
	} {
		*want.at = b.find(want.column, want.setting)
	}
	// A role that a template stands in for must exist all the same where it is named.
	b.find(c.ID, "columns.id")
	b.find(c.AggregateID, "columns.aggregate_id")
	b.needType(p.partition, "partition", "smallint, integer or bigint", int2OID, int4OID, int8OID)
	b.needType(p.timestamp, "timestamp", "timestamptz, timestamp, bigint, integer or numeric", timestamptzOID, timestampOID, int8OID, int4OID, numericOID)
	b.needType(p.trace, "trace_context", "text or varchar", textOID, varcharOID)
	p.topic = b.template(r.topic, "topic")
	p.key = b.template(r.key, "key")
	p.id = b.template(r.id, "id")
	b.noBytea(p.key, "key")
	if r.config.Format.cloudEvents() {
		p.fields = b.attributes(r.sources)
	} else {
		p.fields = b.fields(r.sources, "envelope", "{")
	}
	for _, h := range r.config.Headers {
		column, name := splitHeader(h)
		p.more = append(p.more, moreHeader{name, b.find(column, "headers")})
	}
	if b.err != nil {
		return nil, b.err
	}
	if len(r.plans) >= maxPlans {
		clear(r.plans)
	}
	r.plans[rel], r.last = p, p
	return p, nil
}

// binding looks for columns; the first problem stays.
type binding struct {
	rel     *decoder.Relation
	columns *Columns
	err     error
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

func (b *binding) fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

// needType refuses a column whose type cannot serve.
func (b *binding) needType(column int, setting, want string, oids ...uint32) {
	if column < 0 || slices.Contains(oids, b.rel.Columns[column].TypeOID) {
		return
	}
	b.fail(&MissingColumnError{
		Relation: b.rel.String(), Column: b.rel.Columns[column].Name, Setting: setting,
		Problem: fmt.Sprintf("has the type with OID %d, but has to be %s", b.rel.Columns[column].TypeOID, want),
	})
}

// noBytea refuses bytea beside other pieces: it has no text of its own.
func (b *binding) noBytea(pieces []piece, setting string) {
	if len(pieces) < 2 {
		return
	}
	for _, p := range pieces {
		if p.column >= 0 && b.rel.Columns[p.column].TypeOID == byteaOID {
			b.fail(&MissingColumnError{
				Relation: b.rel.String(), Column: b.rel.Columns[p.column].Name, Setting: setting,
				Problem: "is bytea, which cannot be a part of a longer text",
			})
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
