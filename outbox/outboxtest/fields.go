package outboxtest

import (
	"reflect"
	"strings"
)

// field is a field of a struct as encoding/json writes it.
type field struct {
	name     string
	typ      reflect.Type
	depth    int  // number of embedded structs around it
	tagged   bool // the name is from a tag
	optional bool // omitempty or omitzero
	quoted   bool // the option string
}

// jsonFields returns the fields of a struct that encoding/json writes. Of several fields with one name it writes the
// one that is embedded the least deeply, then the one with a tag; if there are still several, it writes none.
func jsonFields(t reflect.Type) []field {
	var all []field
	collectFields(t, field{}, map[reflect.Type]bool{}, &all)
	var chosen []field
	for i, f := range all {
		dominant := true
		for j, other := range all {
			if i != j && other.name == f.name && !f.dominates(other) {
				dominant = false
			}
		}
		if dominant {
			chosen = append(chosen, f)
		}
	}
	return chosen
}

func (f *field) dominates(other field) bool {
	if f.depth != other.depth {
		return f.depth < other.depth
	}
	return f.tagged && !other.tagged
}

// collectFields appends the fields of a struct and of those embedded in it. outer is what they inherit: the depth,
// and that they are optional because an embedded pointer may be nil. around has the structs that contain it.
func collectFields(t reflect.Type, outer field, around map[reflect.Type]bool, all *[]field) {
	if around[t] {
		return
	}
	around[t] = true
	defer delete(around, t)
	for i := range t.NumField() {
		f := t.Field(i)
		tag := f.Tag.Get("json")
		name, options, _ := strings.Cut(tag, ",")
		elem := f.Type
		if elem.Kind() == reflect.Pointer {
			elem = elem.Elem()
		}
		embedded := f.Anonymous && elem.Kind() == reflect.Struct
		switch {
		case tag == "-", !f.IsExported() && !embedded:
			continue
		case embedded && name == "":
			inner := field{depth: outer.depth + 1, optional: outer.optional || f.Type != elem}
			collectFields(elem, inner, around, all)
			continue
		case !f.IsExported():
			continue
		}
		has := func(option string) bool { return strings.Contains(","+options+",", ","+option+",") }
		g := field{name: name, typ: f.Type, depth: outer.depth, tagged: name != "", quoted: has("string") && canQuote(elem)}
		if name == "" {
			g.name = f.Name
		}
		k := f.Type.Kind()
		g.optional = outer.optional || has("omitzero") || has("omitempty") && k != reflect.Struct && k != reflect.Array
		*all = append(*all, g)
	}
}

// canQuote reports whether the option string has an effect on a type.
func canQuote(t reflect.Type) bool {
	switch k := t.Kind(); {
	case k >= reflect.Bool && k <= reflect.Float64, k == reflect.String:
		return true
	}
	return false
}
