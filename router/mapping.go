package router

import "regexp"

// mapping is a configuration made ready: how the rows of one table, or the bodies of messages, become records.
type mapping struct {
	config Config

	topic, key, id []part
	sources        []source       // of the format's fields
	jsonData       bool           // datacontenttype is JSON
	replace        *regexp.Regexp // nil: none
	replaced       map[string]routed
	shape          *shape // of the version of the table that was seen last; nil: none was
}

// routed is what replace has made of an aggregate type.
type routed struct {
	value   string
	matched bool
}

// newMapping takes a configuration that Validate has seen.
func newMapping(c Config) *mapping {
	m := &mapping{config: c, replaced: map[string]routed{}}
	if c.Topic != "" {
		m.topic, _ = parseTemplate(c.Topic)
	}
	for _, t := range []struct {
		parts            *[]part
		template, column string
	}{{&m.key, c.Key, c.Columns.AggregateID}, {&m.id, c.ID, c.Columns.ID}} {
		*t.parts = []part{{name: t.column}}
		if t.template != "" {
			*t.parts, _ = parseTemplate(t.template)
		}
	}
	m.sources, _ = c.sources()
	m.jsonData = isJSONData(m.sources)
	if c.Replace.Regex != "" {
		m.replace, _ = whole(c.Replace.Regex)
	}
	return m
}
