package router

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/outboxcdc/outboxcdc/decoder"
)

// MissingColumnError says that a version of a relation lacks a column that the configuration names. Rows of it cannot be
// routed, so nothing from here on may be confirmed.
type MissingColumnError struct {
	Relation string   // qualified name
	Column   string   // what is missing
	Setting  string   // the setting that names it: columns.payload, topic
	Has      []string // the columns that there are
}

func (e *MissingColumnError) Error() string {
	return fmt.Sprintf("relation %s has no column %q (named by %s); it has %s; remedy: set %s, or restore the column or the publication's column list",
		e.Relation, e.Column, e.Setting, strings.Join(e.Has, ", "), e.Setting)
}

// plan is where the configured columns are in one version of a relation: -1 for those that were not configured.
type plan struct {
	relation *decoder.Relation

	id, key, payload   int
	eventType, headers int

	topic []topicPart
}

type topicPart struct {
	literal string
	column  int // -1: literal
}

func (r *Router) bind(rel *decoder.Relation) (*plan, error) {
	if p, ok := r.plans[rel]; ok {
		r.last = p
		return p, nil
	}
	p := &plan{relation: rel}
	c := &r.config.Columns
	var unused int // aggregate_type matters only to the topic; where it is named it must exist all the same
	for _, want := range []struct {
		column, setting string
		at              *int
	}{
		{c.ID, "columns.id", &p.id},
		{c.AggregateType, "columns.aggregate_type", &unused},
		{c.AggregateID, "columns.aggregate_id", &p.key},
		{c.EventType, "columns.event_type", &p.eventType},
		{c.Payload, "columns.payload", &p.payload},
		{c.Headers, "columns.headers", &p.headers},
	} {
		var err error
		if *want.at, err = find(rel, want.column, want.setting); err != nil {
			return nil, err
		}
	}
	for _, part := range r.topic {
		t := topicPart{literal: part.literal, column: -1}
		if part.name != "" {
			var err error
			if t.column, err = find(rel, c.templateColumn(part.name), "topic"); err != nil {
				return nil, err
			}
		}
		p.topic = append(p.topic, t)
	}
	if len(r.plans) >= maxPlans {
		clear(r.plans)
	}
	r.plans[rel], r.last = p, p
	return p, nil
}

// find returns the index of a configured column, -1 for one that is configured as "".
func find(rel *decoder.Relation, column, setting string) (int, error) {
	if column == "" {
		return -1, nil
	}
	if i := rel.Index(column); i >= 0 {
		return i, nil
	}
	err := &MissingColumnError{Relation: rel.String(), Column: column, Setting: setting}
	for _, c := range rel.Columns {
		err.Has = append(err.Has, c.Name)
	}
	return -1, err
}

// quoted names a column for people.
func quoted(rel *decoder.Relation, column int) string { return strconv.Quote(rel.Columns[column].Name) }
