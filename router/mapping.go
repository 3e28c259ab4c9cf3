package router

import "regexp"

// mapping is the prepared configuration of one table, or of logical messages.
type mapping struct {
	config Config

	topic, key, id []part
	sources        []source       // of the format's fields
	jsonData       bool           // datacontenttype is JSON
	commitMembers  [][]byte       // see Config.commitMembers
	replace        *regexp.Regexp // nil: none
	replacements   map[string]replacement
	shape          *shape // of the newest version of the table; nil: no version is known
}

// replacement is the cached result of replace for an aggregate type.
type replacement struct {
	value   string
	matched bool
}

// newMapping prepares a valid configuration.
func newMapping(c Config) *mapping {
	m := &mapping{config: c, replacements: map[string]replacement{}, commitMembers: c.commitMembers()}
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
		m.replace, _ = compileWhole(c.Replace.Regex)
	}
	return m
}
