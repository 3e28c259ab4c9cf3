package outboxtest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// comparison finds what would break a consumer that was written for a stored schema.
type comparison struct {
	stored, current *schema
	seen            map[[2]string]bool // pairs of definitions that were compared
	problems        []string
}

// compare returns what would break a consumer: values of current that stored does not allow, and fields that are
// missing.
func compare(stored, current *schema) []string {
	c := &comparison{stored: stored, current: current, seen: map[[2]string]bool{}}
	c.value("the payload", stored, current)
	return c.problems
}

func (c *comparison) report(format string, args ...any) {
	c.problems = append(c.problems, fmt.Sprintf(format, args...))
}

// resolve returns the definition that a schema refers to.
func resolve(root, s *schema) *schema {
	if s.AnyOf != nil {
		return resolve(root, s.notNull()).orNull()
	}
	if s.Ref == "" {
		return s
	}
	if d := root.Defs[strings.TrimPrefix(s.Ref, "#/$defs/")]; d != nil {
		return d
	}
	return &schema{Comment: "the missing definition " + s.Ref}
}

// value compares the schemas of one value. path names it in messages.
func (c *comparison) value(path string, stored, current *schema) {
	pair := [2]string{stored.notNull().Ref, current.notNull().Ref}
	stored, current = resolve(c.stored, stored), resolve(c.current, current)
	if stored.Comment != current.Comment {
		c.report("%s was %s, and is %s now", path, stored.kind(), current.kind())
		return
	}
	if len(stored.Type) == 0 {
		return // a consumer has to accept everything
	}
	if !stored.allows(current) {
		c.report("%s was %s, and is %s now", path, stored.kind(), current.kind())
		return
	}
	if pair != [2]string{} {
		if c.seen[pair] {
			return
		}
		c.seen[pair] = true
	}
	c.object(path, stored, current)
	if stored.Items != nil && current.Items != nil {
		c.value("an element of "+path, stored.Items, current.Items)
	}
}

// object compares the fields of two objects.
func (c *comparison) object(path string, stored, current *schema) {
	name := func(field string) string {
		if path == "the payload" {
			return fmt.Sprintf("%q", field)
		}
		return fmt.Sprintf("%q of %s", field, path)
	}
	for _, f := range slices.Sorted(maps.Keys(stored.Properties)) {
		p := current.Properties[f]
		if p == nil {
			c.report("the field %s was removed", name(f))
			continue
		}
		if slices.Contains(stored.Required, f) && !slices.Contains(current.Required, f) {
			c.report("the field %s was always present, and is optional now", name(f))
		}
		c.value("the field "+name(f), stored.Properties[f], p)
	}
	if stored.Additional == nil {
		return
	}
	for _, f := range slices.Sorted(maps.Keys(current.Properties)) {
		c.value("the field "+name(f), stored.Additional, current.Properties[f])
	}
	if current.Additional != nil {
		c.value("a value of "+path, stored.Additional, current.Additional)
	}
}

// allows reports whether a consumer of s can read values of other, apart from their fields and elements.
func (s *schema) allows(other *schema) bool {
	if len(other.Type) == 0 || other.Encoding != s.Encoding || s.Format != "" && other.Format != s.Format {
		return false
	}
	for _, t := range other.Type {
		if !slices.Contains(s.Type, t) && !(t == "integer" && slices.Contains(s.Type, "number")) {
			return false
		}
	}
	return true
}

// kind describes the type of a value.
func (s *schema) kind() string {
	switch {
	case s.Comment != "":
		return "encoded by " + s.Comment
	case len(s.Type) == 0:
		return "any value"
	}
	text := strings.Join(s.Type, " or ")
	for _, detail := range []string{s.Format, s.Encoding} {
		if detail != "" {
			text += " (" + detail + ")"
		}
	}
	return text
}
