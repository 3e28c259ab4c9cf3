package router

import (
	"slices"
	"strings"

	"github.com/outboxcdc/outboxcdc/decoder"
)

// shape is what can be said of all ids and all topics that one table gives.
type shape struct {
	relation string
	column   string // of the id, for people
	unique   bool   // a uuid is in each id
	id       pattern
	topics   []pattern
}

// pattern stands for texts of which the beginning and the end are known.
type pattern struct {
	begin, end string
	exact      bool // begin is all of it
}

// mayMeet is false only if no text fits both.
func (p pattern) mayMeet(q pattern) bool {
	switch {
	case p.exact && q.exact:
		return p.begin == q.begin
	case p.exact:
		return strings.HasPrefix(p.begin, q.begin) && strings.HasSuffix(p.begin, q.end)
	case q.exact:
		return q.mayMeet(p)
	}
	return (strings.HasPrefix(p.begin, q.begin) || strings.HasPrefix(q.begin, p.begin)) &&
		(strings.HasSuffix(p.end, q.end) || strings.HasSuffix(q.end, p.end))
}

// patternOf is that of a template in one relation.
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

// shape says what a version of a table gives.
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

// clash says that two tables may give one id to two events of one topic, so that a consumer would take the second for a
// repeat of the first. It is nil if that cannot be. What is in a message's id is its writer's business.
func (s *shape) clash(o *shape) *MissingColumnError {
	if s.unique || o.unique || !s.id.mayMeet(o.id) {
		return nil
	}
	if !slices.ContainsFunc(s.topics, func(p pattern) bool { return slices.ContainsFunc(o.topics, p.mayMeet) }) {
		return nil
	}
	return &MissingColumnError{
		Relation: s.relation, Column: s.column, Setting: "id",
		Problem: "is no uuid, nor is that of " + o.relation + ", and records of both tables may go to one topic, where two of the same id would be taken for one",
		Remedy:  `set route.id of the tables so that it tells them apart, e.g. "{table}:{id}", or give them topics of their own`,
	}
}

// distinct compares a version of a table with what the other tables are now.
func (r *Router) distinct(rel *decoder.Relation, s *shape) *MissingColumnError {
	for i, m := range r.mappings {
		if i == rel.Source || m.shape == nil || m.config.Messages {
			continue
		}
		if e := s.clash(m.shape); e != nil {
			return e
		}
	}
	return nil
}
