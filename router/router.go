// Package router makes the record for an event, or finds that the event is poison. It is a pure function with a
// configuration and caches: it does no I/O and reads no clock.
//
// It guarantees that the bytes of key and value are those that PostgreSQL printed (bytea: those that were stored),
// that the same row always gives the same record, so that duplicates are equal, and that an ordinary event costs no
// allocation. Package relay decides about poison, and package kafka finds out whether a topic exists.
package router

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/decoder"
)

// Limits of the caches of a Router. A full cache is emptied.
const (
	maxTopics  = 4096
	maxNames   = 1024
	maxPlans   = 1024
	maxName    = 128     // maximum length of a header name in the cache
	maxScratch = 1 << 20 // larger scratch memory is freed, so that one huge row does not cost memory for ever
	maxHeaders = 1 << 10
)

// Router makes records. It is not safe for concurrent use.
type Router struct {
	*mapping // of the current event

	mappings []*mapping // by decoder.Relation.Source
	plans    map[*decoder.Relation]*plan
	last     *plan // of the previous event, which usually has the same relation

	topics    map[string]string // cache of legal topics
	lastTopic string            // of the previous event
	names     map[string]string // cache of header names

	origin    checkpoint.Origin   // of the events
	first     checkpoint.Position // of the current transaction
	firstText []byte              // its text without the ordinal; empty: there was no transaction

	values  [][]byte // texts of the fields
	body    body     // of the current message
	scratch []byte   // computed parts of the record, valid until the next call of Route
}

// New returns a router for the sources with these configurations. decoder.Relation.Source is the index of a source.
func New(sources ...Config) (*Router, error) {
	r := &Router{plans: map[*decoder.Relation]*plan{}, topics: map[string]string{}, names: map[string]string{}}
	for _, c := range sources {
		if err := c.Validate(); err != nil {
			return nil, fmt.Errorf("router: %w", err)
		}
		r.mappings = append(r.mappings, newMapping(c))
	}
	if len(r.mappings) == 0 {
		return nil, errors.New("router: no configuration")
	}
	r.mapping = r.mappings[0]
	return r, nil
}

// SetsTimes reports whether records of a source have a time of their own, which may be far from the time at which
// they are sent.
func (r *Router) SetsTimes() bool {
	return slices.ContainsFunc(r.mappings, func(m *mapping) bool { return m.config.Timestamp != "" && m.config.Timestamp != TimestampProduce })
}

// Bind finds the configured columns in a version of a relation. Route calls it for the first event; calling it when
// the relation is announced finds a missing column earlier. The error is a *MissingColumnError.
func (r *Router) Bind(rel *decoder.Relation) error {
	_, err := r.bind(rel)
	return err
}

// Fits checks the current definition of a table. A missing column is not an error, because older rows may have it; an
// unsuitable column is.
func (r *Router) Fits(rel *decoder.Relation) error {
	p, b := r.plan(rel)
	for _, e := range b.problems {
		if e.Problem != "" {
			return e
		}
	}
	if len(b.problems) == 0 {
		m := r.mappings[rel.Source]
		m.shape = m.shapeOf(p)
		if e := r.checkDistinct(rel, m.shape); e != nil {
			return e
		}
	}
	return nil
}

// MessageSource returns the index of the source of logical messages, or -1.
func (r *Router) MessageSource() int {
	return slices.IndexFunc(r.mappings, func(m *mapping) bool { return m.config.Messages })
}

// Skips reports whether ev is never sent: a row of a table that was not attached to the outbox, or an update while
// updates are skipped.
func (r *Router) Skips(ev *decoder.Event) bool {
	return ev.Relation.Unattached || ev.Update && !r.mappings[ev.Relation.Source].config.UpdateIsPoison
}

// SetOrigin sets the origin of the following events, which is part of the header outboxcdc-position. The zero value
// means that records do not name an origin.
func (r *Router) SetOrigin(o checkpoint.Origin) {
	if r.origin != o {
		r.origin, r.firstText = o, r.firstText[:0]
	}
}

// Route fills rec with the record for ev; pos and the origin become its header outboxcdc-position. If the error is a
// *Poison, the event is poison, and rec has the parts that could be made: key, value, headers, and perhaps the topic.
// Any other error ends the session.
//
// The slices of rec are valid until the next call of Route or Decode. Callers reuse rec, so that its Headers need not
// be allocated again.
func (r *Router) Route(ev *decoder.Event, pos checkpoint.Position, rec *Record) error {
	p := r.last
	if p == nil || p.announced != ev.Relation {
		var err error
		if p, err = r.bind(ev.Relation); err != nil {
			return err
		}
	}
	if len(ev.Values) != len(ev.Relation.Columns) {
		return fmt.Errorf("route %s: %d values for %d columns of %s", pos, len(ev.Values), len(ev.Relation.Columns), ev.Relation)
	}
	r.reset(rec)
	switch {
	case p.mapping.config.Messages:
		return r.routeMessage(p, ev, pos, rec)
	case ev.Update:
		return r.route(p, ev, pos, rec, &Poison{Cause: Update, Message: updateProblem(ev)})
	}
	return r.route(p, ev, pos, rec, nil)
}

// route fills the record from a row. It makes every part even if another one is poison, because a dead letter has all
// parts. It returns the first poison; first is one that was found before.
func (r *Router) route(p *plan, ev *decoder.Event, pos checkpoint.Position, rec *Record, first *Poison) error {
	poison := func(q *Poison) {
		if q != nil && first == nil {
			first = q
		}
	}
	poison(r.routeID(p, ev, rec))
	poison(r.routeTopic(p, ev, rec))
	q, err := r.routeKey(p, ev, rec)
	if err != nil {
		return fmt.Errorf("route %s: %w", pos, err)
	}
	poison(q)
	if q, err = r.routeValue(p, ev, rec); err != nil {
		return fmt.Errorf("route %s: %w", pos, err)
	}
	poison(q)
	poison(r.routeHeaders(p, ev, pos, rec))
	if q, err = r.routeFormat(p, ev, rec); err != nil {
		return fmt.Errorf("route %s: %w", pos, err)
	}
	poison(q)
	poison(r.routePartition(p, ev, rec))
	poison(r.routeTimestamp(p, ev, rec))

	if first != nil {
		first.ID, first.Position = string(rec.ID), pos
		if first.Topic == "" {
			first.Topic = rec.Topic
		}
		return first
	}
	return nil
}

func (r *Router) reset(rec *Record) {
	if cap(r.scratch) > maxScratch {
		r.scratch = nil
	}
	r.scratch = r.scratch[:0]
	headers := rec.Headers
	if cap(headers) > maxHeaders {
		headers = nil
	}
	*rec = Record{Headers: headers[:0]}
}

// templateText returns the text of a template: the value if the template is one column, else a text in scratch. null
// is the index of a column that is NULL, or -1.
func (r *Router) templateText(pieces []piece, ev *decoder.Event) (b []byte, null int) {
	if len(pieces) == 1 && pieces[0].column >= 0 {
		v := ev.Values[pieces[0].column]
		if v.Null {
			return nil, pieces[0].column
		}
		return v.Data, -1
	}
	start := len(r.scratch)
	for i := range pieces {
		p := &pieces[i]
		if p.column < 0 {
			r.scratch = append(r.scratch, p.literal...)
			continue
		}
		v := ev.Values[p.column]
		if v.Null {
			r.scratch = r.scratch[:start]
			return nil, p.column
		}
		r.scratch = append(r.scratch, v.Data...)
	}
	return r.scratchFrom(start), -1
}

// routeID sets the id. An id without any text from a column would be that of other events as well: it counts as NULL.
func (r *Router) routeID(p *plan, ev *decoder.Event, rec *Record) *Poison {
	id, null := r.templateText(p.id, ev)
	if null >= 0 {
		return &Poison{Cause: NullID, Message: "the column " + quoteColumn(p.relation, null) + " is NULL"}
	}
	empty := -1
	for i := range p.id {
		at := p.id[i].column
		if at >= 0 && len(ev.Values[at].Data) > 0 {
			rec.ID = id
			return nil
		}
		empty = max(empty, at)
	}
	return &Poison{Cause: NullID, Message: "the id is empty: column " + quoteColumn(p.relation, empty) + " has an empty text"}
}

func (r *Router) routeKey(p *plan, ev *decoder.Event, rec *Record) (*Poison, error) {
	key, null := r.templateText(p.key, ev)
	if null >= 0 {
		rec.PartitionBy = rec.ID
		if r.config.NullKey == NullKeyAllow {
			return nil, nil
		}
		return &Poison{Cause: NullKey, Message: "the column " + quoteColumn(p.relation, null) + " is NULL"}, nil
	}
	if len(p.key) == 1 && p.key[0].column >= 0 {
		var err error
		if key, err = r.columnBytes(p, p.key[0].column, key); err != nil {
			return nil, err
		}
	}
	rec.Key, rec.PartitionBy = key, key
	return nil, nil
}

func (r *Router) routeValue(p *plan, ev *decoder.Event, rec *Record) (*Poison, error) {
	if r.isPayloadNull(p, ev) {
		switch r.config.NullPayload {
		case NullPayloadEmpty:
			rec.Value = []byte{}
		case NullPayloadPoison:
			return &Poison{Cause: NullPayload, Message: "the column " + quoteColumn(p.relation, p.payload) + " is NULL"}, nil
		}
		return nil, nil
	}
	var err error
	rec.Value, err = r.columnBytes(p, p.payload, ev.Values[p.payload].Data)
	return nil, err
}

// routeFormat replaces the value, which is the payload, by the value of the format. It runs after routeHeaders,
// because the trace id is in a header.
func (r *Router) routeFormat(p *plan, ev *decoder.Event, rec *Record) (*Poison, error) {
	switch {
	case r.config.Format == FormatEnvelope:
		return r.routeEnvelope(p, ev, rec)
	case r.config.Format.cloudEvents():
		return r.routeCloudEvent(p, ev, rec)
	}
	return nil, nil
}

func (r *Router) routeHeaders(p *plan, ev *decoder.Event, pos checkpoint.Position, rec *Record) *Poison {
	if rec.ID != nil {
		rec.Headers = append(rec.Headers, Header{Name: headerID, Value: rec.ID})
	}
	if p.eventType >= 0 && !ev.Values[p.eventType].Null {
		rec.Headers = append(rec.Headers, Header{Name: headerType, Value: ev.Values[p.eventType].Data})
	}
	var poison *Poison
	if p.headers >= 0 && !ev.Values[p.headers].Null {
		own := len(rec.Headers)
		if why := r.appendMembers(ev.Values[p.headers].Data, rec); why != "" {
			rec.Headers = rec.Headers[:own] // without the members before the invalid one
			poison = &Poison{Cause: BadHeaders, Message: "the column " + quoteColumn(p.relation, p.headers) + " " + why}
		}
	}
	if p.trace >= 0 {
		r.traceContext(ev.Values[p.trace].Data, rec)
	}
	for i := range p.extraHeaders {
		m := &p.extraHeaders[i]
		rec.Headers = removeHeader(rec.Headers, m.name)
		rec.Headers = append(rec.Headers, Header{Name: m.name, Value: ev.Values[m.column].Data})
	}
	if r.config.PositionHeader {
		start := len(r.scratch)
		r.appendPosition(pos)
		rec.Headers = append(rec.Headers, Header{Name: headerPosition, Value: r.scratchFrom(start)})
	}
	return poison
}

// appendPosition appends the text of a position to scratch. All of it except for the ordinal is the same in a
// transaction.
func (r *Router) appendPosition(pos checkpoint.Position) {
	first := pos
	first.Ordinal = 0
	if len(r.firstText) == 0 || r.first != first {
		text := checkpoint.AppendHeader(r.firstText[:0], first, r.origin)
		r.first, r.firstText = first, text[:len(text)-1]
	}
	r.scratch = append(r.scratch, r.firstText...)
	r.scratch = strconv.AppendUint(r.scratch, uint64(pos.Ordinal), 10)
}

// removeHeader removes the headers with a name.
func removeHeader(headers []Header, name string) []Header {
	return slices.DeleteFunc(headers, func(h Header) bool { return h.Name == name })
}

// isBlank reports whether b is empty or only white space, as Java's String.trim defines it.
func isBlank(b []byte) bool {
	for _, c := range b {
		if c > ' ' {
			return false
		}
	}
	return true
}

func (r *Router) routePartition(p *plan, ev *decoder.Event, rec *Record) *Poison {
	if p.partition < 0 || ev.Values[p.partition].Null {
		return nil
	}
	n, ok := partitionNumber(ev.Values[p.partition].Data)
	if !ok {
		return &Poison{Cause: BadPartition, Message: "the column " + quoteColumn(p.relation, p.partition) + " holds " + printable(ev.Values[p.partition].Data) + ", no number of a partition"}
	}
	rec.Partition, rec.OwnPartition = n, true
	return nil
}

func (r *Router) routeTimestamp(p *plan, ev *decoder.Event, rec *Record) *Poison {
	if r.config.Timestamp == TimestampCommit {
		rec.Timestamp = ev.Begin.CommitTime.UnixMilli()
		return nil
	}
	if p.timestamp < 0 || ev.Values[p.timestamp].Null {
		return nil
	}
	text := ev.Values[p.timestamp].Data
	var err error
	if rec.Timestamp, err = millis(text, p.relation.BaseType(p.timestamp)); err != nil {
		return &Poison{Cause: BadTimestamp, Message: "the column " + quoteColumn(p.relation, p.timestamp) + " holds " + printable(text) + ", which " + err.Error()}
	}
	rec.RowTime = true
	return nil
}

// timestampColumn returns the column of the record's time, or "".
func (m *mapping) timestampColumn() string {
	switch m.config.Timestamp {
	case TimestampProduce, TimestampCommit:
		return ""
	}
	return m.config.Timestamp
}
