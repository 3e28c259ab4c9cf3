package config

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/goccy/go-yaml/ast"
)

// Source is a table of outbox events: an entry of outboxes, or the single table of outbox with its columns and route.
type Source struct {
	// Table is schema and name, as in outbox.table.
	Table   string  `yaml:"table" default:""`
	Columns Columns `yaml:"columns"`
	// Order is outbox.order of this table.
	Order []string `yaml:"order" default:""`
	Route Route    `yaml:"route"`
}

// Name returns schema and name as in the catalogs: without quotes, and in lower case unless quoted.
func (s *Source) Name() (schema, name string) {
	schema, name, _ = parseTable(s.Table)
	return schema, name
}

// Sources are all tables of outbox events: those of outboxes, otherwise that of outbox, otherwise none.
func (c *Config) Sources() []Source {
	switch {
	case len(c.Outboxes) > 0:
		return c.Outboxes
	case c.Outbox.Table == "":
		return nil
	}
	return []Source{{Table: c.Outbox.Table, Columns: c.Outbox.Columns, Order: c.Outbox.Order, Route: c.Route}}
}

// SourceProblem is an error about a setting, such as columns.id or route.topic, of the i-th source. If the entry does
// not set it, the error names the setting from which the value comes.
func (c *Config) SourceProblem(i int, setting, problem string) error {
	if len(c.Outboxes) > 0 {
		path := entryPath(i) + setting
		if where := c.origins[path]; where != "" {
			return &Error{Where: where, Path: path, Problem: problem}
		}
		problem += fmt.Sprintf(" (it applies to %s, which does not set %s)", strings.TrimSuffix(entryPath(i), "."), setting)
	}
	if strings.HasPrefix(setting, "columns.") {
		setting = "outbox." + setting
	}
	return c.Problem(setting, problem)
}

// entryPath is the prefix of paths of the i-th entry in messages.
func entryPath(i int) string { return fmt.Sprintf("outboxes[%d].", i) }

// entry has the settings of an entry of outboxes. It is applied last, because settings that it omits come from
// outbox.columns and route, which a later source may set.
type entry []assignment

type assignment struct {
	setting *setting
	value   raw
	where   string
}

// entrySettings are the settings that an entry can have.
var entrySettings = sync.OnceValue(func() []*setting {
	var out []*setting
	walkFields(reflect.TypeFor[Source](), "", nil, &out)
	return out
})

var entryTree = sync.OnceValue(func() tree { return treeOf(entrySettings()) })

// entries reads the list of outboxes.
func (d *document) entries(path string, items []ast.Node) *raw {
	r := &raw{isList: true, isTree: true}
	for i, item := range items {
		e := &document{name: d.name, anchors: d.anchors, variables: d.variables, tree: entryTree(), known: entrySettings(), prefix: fmt.Sprintf("%s[%d].", path, i)}
		var list entry
		scratch := Source{}
		e.set = func(s *setting, r raw, where string) error {
			if s.shared {
				return errors.New("applies to all tables; set it at the top level, under route")
			}
			if err := s.store(&scratch, r); err != nil {
				return err
			}
			list = append(list, assignment{s, r, where})
			return nil
		}
		e.section("", item)
		d.errs = append(d.errs, e.errs...)
		r.entries = append(r.entries, list)
	}
	return r
}

// keepOutboxes keeps the entries until applyOutboxes.
func (c *Config) keepOutboxes(r raw) error {
	switch {
	case r.isList && r.isTree: // entries
		c.entries = r.entries
	case r.isList && len(r.list) == 0, !r.isList && !r.isTree && (r.text == "" || r.text == "[]"):
		c.entries = nil
	case !r.isList && !r.isTree:
		return errors.New("a list of tables cannot be written as text; write it in a file")
	default:
		return errors.New("must be a list of tables, each with table, columns and route")
	}
	return nil
}

// applyOutboxes makes a source of each entry, with the settings of outbox.columns and route that the entry omits.
func (c *Config) applyOutboxes() error {
	var errs []error
	for i, e := range c.entries {
		s := Source{Columns: c.Outbox.Columns, Order: slices.Clone(c.Outbox.Order), Route: c.Route.clone()}
		for _, a := range e {
			path := entryPath(i) + a.setting.path
			if err := a.setting.store(&s, a.value); err != nil {
				errs = append(errs, &Error{Where: a.where, Path: path, Problem: err.Error()})
			}
			c.origins[path] = a.where
		}
		c.Outboxes = append(c.Outboxes, s)
	}
	c.entries = nil
	if len(c.Outboxes) > 0 && c.origins["outbox.table"] == "" {
		c.Outbox.Table = "" // without the default
	}
	return errors.Join(errs...)
}

func (r *Route) clone() Route {
	out := *r
	out.Topics, out.Partitions = maps.Clone(r.Topics), maps.Clone(r.Partitions)
	out.Fields, out.Headers = maps.Clone(r.Fields), slices.Clone(r.Headers)
	return out
}

// formatSources is a list of entries on one line of YAML, including inherited settings.
func formatSources(list []Source) string {
	items := make([]string, len(list))
	for i := range list {
		items[i] = formatSection(&list[i], "")
	}
	return "[" + strings.Join(items, ", ") + "]"
}

func formatSection(s *Source, section string) string {
	t := entryTree()
	var items []string
	for _, key := range t.sections[section] {
		path := join(section, key)
		leaf, ok := t.leaves[path]
		switch {
		case !ok:
			items = append(items, key+": "+formatSection(s, path))
		case !leaf.shared:
			items = append(items, key+": "+formatYAML(leaf.value(s)))
		}
	}
	return "{" + strings.Join(items, ", ") + "}"
}

// sources validates the tables.
func (v *validation) sources() {
	c := v.c
	if len(c.Outboxes) > 0 && c.Outbox.Table != "" {
		v.report("outboxes", fmt.Sprintf("outbox.table is set too (%s); name all tables in outboxes, or only one in outbox", c.Origin("outbox.table")))
	}
	if c.Outbox.Table != "" || len(c.Outboxes) == 0 && c.Messages.Prefix == "" {
		_, _, problem := parseTable(c.Outbox.Table)
		v.report("outbox.table", problem)
	}
	v.columns("outbox.", &c.Outbox.Columns)
	v.route("", &c.Route)
	seen := map[[2]string]int{}
	for i := range c.Outboxes {
		s, prefix := &c.Outboxes[i], entryPath(i)
		schema, name, problem := parseTable(s.Table)
		if s.Table == "" {
			problem = "is missing; name the table of this entry, e.g. public.outbox"
		}
		v.report(prefix+"table", problem)
		if other, twice := seen[[2]string{schema, name}]; twice && problem == "" {
			v.report(prefix+"table", fmt.Sprintf("%s is also the table of outboxes[%d]", quote(s.Table), other))
		}
		seen[[2]string{schema, name}] = i
		// Inherited settings were validated above.
		own := &validation{c: c}
		own.columns(prefix, &s.Columns)
		own.route(prefix, &s.Route)
		for _, err := range own.errs {
			if e, ok := errors.AsType[*Error](err); ok && e.Where != "" {
				v.errs = append(v.errs, e)
			}
		}
	}
}
