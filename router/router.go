// Package router turns an event into the record that Kafka gets, or into a verdict of poison. It is a pure function with
// a configuration: it does no I/O, reads no clock and remembers nothing but how to be quick.
//
// It promises that the bytes of key and value are those that PostgreSQL printed (bytea: those that were stored), that the
// same row gives the same record every time, which is what makes a replay harmless, and that an ordinary event costs no
// allocation. What becomes of poison, and whether a topic exists, is left to others.
package router

import (
	"errors"
	"fmt"
	"slices"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/decoder"
)

// Bounds of what a Router keeps from one event to the next. Each cache is emptied when it is full: that costs a few
// allocations, never memory.
const (
	maxTopics  = 4096
	maxNames   = 1024
	maxPlans   = 1024
	maxName    = 128     // bytes of a header name worth remembering
	maxScratch = 1 << 20 // a larger one is given back, or one huge row would be paid for until the process ends
	maxHeaders = 1 << 10
)

// Router makes records. It is not safe for concurrent use: it works in memory of its own.
type Router struct {
	*mapping // of the event at hand

	mappings []*mapping // by decoder.Relation.Source
	plans    map[*decoder.Relation]*plan
	last     *plan // of the event before: nearly always the right one

	topics map[string]string // topics found legal
	names  map[string]string // header names

	values  [][]byte // the fields' texts
	body    body     // of the message at hand
	scratch []byte   // what Route computes rather than points to: valid until the next call
}

// New returns a router for as many sources as there are configurations, numbered as decoder.Relation.Source does, or says
// what is wrong with one.
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

// Bind finds the configured columns in a version of a relation. Route does it by itself at the first event; to call it
// when the relation is announced finds a missing column before any row needs it. The error is a *MissingColumnError.
func (r *Router) Bind(rel *decoder.Relation) error {
	_, err := r.bind(rel)
	return err
}

// Fits is Bind for what a table is in the catalogs now, before any row: a column that is missing is no error, because older
// rows may still have it; one that cannot serve is.
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
		if e := r.distinct(rel, m.shape); e != nil {
			return e
		}
	}
	return nil
}

// MessageSource is the number of the source that is logical messages, or -1.
func (r *Router) MessageSource() int {
	return slices.IndexFunc(r.mappings, func(m *mapping) bool { return m.config.Messages })
}

// Skips reports whether ev is an update that is to be skipped.
func (r *Router) Skips(ev *decoder.Event) bool {
	return ev.Update && !r.mappings[ev.Relation.Source].config.UpdateIsPoison
}

// Route fills rec with the record for ev; pos becomes its header outboxcdc-position. An error that is a *Poison is a
// verdict on this event alone, and rec holds what could be made of it: key, value, headers, and the topic if that was
// found. Any other error ends the session.
//
// rec's slices are valid until the next call of Route and of the Decode that ev came from. rec itself is used again by
// its caller, so that its Headers need not be allocated again.
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
		return r.route(p, ev, pos, rec, &Poison{Cause: Update, Message: updated(ev)})
	}
	return r.route(p, ev, pos, rec, nil)
}

// route makes the record of a row. Every part is made whatever is wrong with another, because a dead letter carries them
// all. The first cause counts: first is one from before.
func (r *Router) route(p *plan, ev *decoder.Event, pos checkpoint.Position, rec *Record, first *Poison) error {
	poison := func(q *Poison) {
		if q != nil && first == nil {
			first = q
		}
	}
	if null := r.routeID(p, ev, rec); null >= 0 {
		poison(&Poison{Cause: NullID, Message: "the column " + quoted(p.relation, null) + " is NULL"})
	}
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

// text is what a template gives: the value itself if it is one column, else all of it in scratch. null is the column that
// is NULL, or -1.
func (r *Router) text(pieces []piece, ev *decoder.Event) (b []byte, null int) {
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
	return r.since(start), -1
}

func (r *Router) routeID(p *plan, ev *decoder.Event, rec *Record) (null int) {
	rec.ID, null = r.text(p.id, ev)
	return null
}

func (r *Router) routeKey(p *plan, ev *decoder.Event, rec *Record) (*Poison, error) {
	key, null := r.text(p.key, ev)
	if null >= 0 {
		rec.PartitionBy = rec.ID
		if r.config.NullKey == NullKeyAllow {
			return nil, nil
		}
		return &Poison{Cause: NullKey, Message: "the column " + quoted(p.relation, null) + " is NULL"}, nil
	}
	if len(p.key) == 1 && p.key[0].column >= 0 {
		var err error
		if key, err = r.raw(p, p.key[0].column, key); err != nil {
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
			return &Poison{Cause: NullPayload, Message: "the column " + quoted(p.relation, p.payload) + " is NULL"}, nil
		}
		return nil, nil
	}
	var err error
	rec.Value, err = r.raw(p, p.payload, ev.Values[p.payload].Data)
	return nil, err
}

// routeFormat makes of the payload, which is the value so far, what the format has for a value. It comes after the
// headers: the trace is in them.
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
		if why := r.members(ev.Values[p.headers].Data, rec); why != "" {
			rec.Headers = rec.Headers[:own] // all members or none
			poison = &Poison{Cause: BadHeaders, Message: "the column " + quoted(p.relation, p.headers) + " " + why}
		}
	}
	if p.trace >= 0 {
		r.traceContext(ev.Values[p.trace].Data, rec)
	}
	for i := range p.more {
		m := &p.more[i]
		rec.Headers = without(rec.Headers, m.name)
		rec.Headers = append(rec.Headers, Header{Name: m.name, Value: ev.Values[m.column].Data})
	}
	if r.config.PositionHeader {
		start := len(r.scratch)
		r.scratch, _ = pos.AppendText(r.scratch) // its error is always nil
		rec.Headers = append(rec.Headers, Header{Name: headerPosition, Value: r.since(start)})
	}
	return poison
}

// without takes a header out: a member of the headers column, or of the trace, with the name of a configured one.
func without(headers []Header, name string) []Header {
	return slices.DeleteFunc(headers, func(h Header) bool { return h.Name == name })
}

// blank: nothing but white space, as Java's String.trim sees it.
func blank(b []byte) bool {
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
		return &Poison{Cause: BadPartition, Message: "the column " + quoted(p.relation, p.partition) + " holds " + printable(ev.Values[p.partition].Data) + ", no number of a partition"}
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
	if rec.Timestamp, err = millis(text, p.relation.Columns[p.timestamp].TypeOID); err != nil {
		return &Poison{Cause: BadTimestamp, Message: "the column " + quoted(p.relation, p.timestamp) + " holds " + printable(text) + ", which " + err.Error()}
	}
	return nil
}

// timestampColumn is the column that holds the record's time, or "".
func (m *mapping) timestampColumn() string {
	switch m.config.Timestamp {
	case TimestampProduce, TimestampCommit:
		return ""
	}
	return m.config.Timestamp
}

// raw is the value of a column as it goes to Kafka: bytea as it was stored, all else as PostgreSQL printed it. A domain
// over bytea is not seen to be one, the stream does not say what a domain is made of: its text goes out.
func (r *Router) raw(p *plan, column int, text []byte) ([]byte, error) {
	if p.relation.Columns[column].TypeOID != byteaOID {
		return text, nil
	}
	start := len(r.scratch)
	var err error
	if r.scratch, err = appendBytea(r.scratch, text); err != nil {
		// Not poison: it is the connection that sets bytea_output, so every row would be refused.
		return nil, fmt.Errorf("column %s: %w", quoted(p.relation, column), err)
	}
	return r.since(start), nil
}

// since is the scratch memory written from start on. Its capacity ends with it: what is appended later must not be
// reachable through it. Should the scratch move as it grows, this stays where it is.
func (r *Router) since(start int) []byte { return r.scratch[start:len(r.scratch):len(r.scratch)] }
