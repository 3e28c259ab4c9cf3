package router

import (
	"slices"
	"strings"

	"github.com/outboxcdc/outboxcdc/decoder"
)

// shape describes all ids and topics that the events of one table can have.
type shape struct {
	relation string
	column   string // of the id, for error texts
	unique   bool   // each id contains a uuid
	id       pattern
	topics   []pattern
}

// pattern describes texts with a known beginning and end.
type pattern struct {
	begin, end string
	exact      bool // begin is the whole text
}

// mayOverlap reports whether a text may match both patterns.
func (p pattern) mayOverlap(q pattern) bool {
	switch {
	case p.exact && q.exact:
		return p.begin == q.begin
	case p.exact:
		return strings.HasPrefix(p.begin, q.begin) && strings.HasSuffix(p.begin, q.end)
	case q.exact:
		return q.mayOverlap(p)
	}
	return (strings.HasPrefix(p.begin, q.begin) || strings.HasPrefix(q.begin, p.begin)) &&
		(strings.HasSuffix(p.end, q.end) || strings.HasSuffix(q.end, p.end))
}

// patternOf returns the pattern of a template.
func patternOf(pieces []piece) pattern {
	p := pattern{exact: true}
	for i := range pieces {
		switch {
		case pieces[i].column >= 0:
			p.exact, p.end = false, ""
		case p.exact:
			p.begin += pieces[i].literal
		default:
			p.end += pieces[i].literal
		}
	}
	return p
}

// shapeOf returns the shape of a version of a table.
func (m *mapping) shapeOf(p *plan) *shape {
	c := &m.config
	s := &shape{relation: p.relation.String(), id: patternOf(p.id)}
	for i := range p.id {
		if at := p.id[i].column; at >= 0 {
			s.column = p.relation.Columns[at].Name
			s.unique = s.unique || p.relation.Columns[at].TypeOID == uuidOID
		}
	}
	for _, topic := range c.Topics {
		s.topics = append(s.topics, pattern{begin: topic, exact: true})
	}
	if len(p.topic) > 0 {
		s.topics = append(s.topics, patternOf(p.topic))
	}
	if c.Topic == "" || c.Replace.Regex != "" {
		switch c.Unmatched {
		case "", UnmatchedPoison:
		case UnmatchedKeep:
			s.topics = append(s.topics, pattern{})
		default:
			s.topics = append(s.topics, pattern{begin: c.Unmatched, exact: true})
		}
	}
	return s
}

// conflict returns an error if events of two tables may have the same id in the same topic: a consumer would take the
// second event for a duplicate of the first.
func (s *shape) conflict(o *shape) *MissingColumnError {
	if s.unique || o.unique || !s.id.mayOverlap(o.id) {
		return nil
	}
	if !slices.ContainsFunc(s.topics, func(p pattern) bool { return slices.ContainsFunc(o.topics, p.mayOverlap) }) {
		return nil
	}
	return &MissingColumnError{
		Relation: s.relation, Column: s.column, Setting: "id",
		Problem: "is not a uuid, nor is that of " + o.relation + ", and records of both tables may be in one topic, where consumers take records with the same id for duplicates",
		Remedy:  `set route.id of the tables so that ids differ, e.g. "{table}:{id}", or give each table its own topics`,
	}
}

// checkDistinct compares the shape of a version of a table with the shapes of the other tables. Ids of logical
// messages are not checked: their writer chooses them.
func (r *Router) checkDistinct(rel *decoder.Relation, s *shape) *MissingColumnError {
	for i, m := range r.mappings {
		if i == rel.Source || m.shape == nil || m.config.Messages {
			continue
		}
		if e := s.conflict(m.shape); e != nil {
			return e
		}
	}
	return nil
}
