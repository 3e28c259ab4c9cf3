package outboxtest

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// schema is the part of JSON Schema (2020-12) that describes what encoding/json writes. The zero value allows
// everything.
type schema struct {
	Dialect string `json:"$schema,omitempty"`
	// Comment names the Go type of a value that is encoded by its own MarshalJSON, whose form is not known.
	Comment string `json:"$comment,omitempty"`
	Ref     string `json:"$ref,omitempty"`
	// Type has one name, or two of which the second is "null".
	Type       types              `json:"type,omitempty"`
	Format     string             `json:"format,omitempty"`
	Encoding   string             `json:"contentEncoding,omitempty"`
	Properties map[string]*schema `json:"properties,omitempty"`
	Required   []string           `json:"required,omitempty"` // the fields that are always written
	Additional *schema            `json:"additionalProperties,omitempty"`
	Items      *schema            `json:"items,omitempty"`
	AnyOf      []*schema          `json:"anyOf,omitempty"` // a reference, or null
	Defs       map[string]*schema `json:"$defs,omitempty"`
}

// types is a name or a list of names.
type types []string

func (t types) MarshalJSON() ([]byte, error) {
	if len(t) == 1 {
		return json.Marshal(t[0])
	}
	return json.Marshal([]string(t))
}

func (t *types) UnmarshalJSON(b []byte) error {
	if strings.HasPrefix(string(b), "[") {
		return json.Unmarshal(b, (*[]string)(t))
	}
	*t = types{""}
	return json.Unmarshal(b, &(*t)[0])
}

const null = "null"

// orNull returns s, with null allowed too.
func (s *schema) orNull() *schema {
	switch {
	case s.Ref != "":
		return &schema{AnyOf: []*schema{s, {Type: types{null}}}}
	case len(s.Type) == 1:
		n := *s
		n.Type = types{s.Type[0], null}
		return &n
	}
	return s // it allows null already
}

// notNull is the reverse of orNull.
func (s *schema) notNull() *schema {
	switch {
	case s.AnyOf != nil:
		return s.AnyOf[0]
	case len(s.Type) == 2:
		n := *s
		n.Type = s.Type[:1]
		return &n
	}
	return s
}

// schemaOf returns the schema of what json.Marshal writes for values of a type.
func schemaOf(t reflect.Type) *schema {
	g := &generator{names: map[reflect.Type]string{}, open: map[reflect.Type]bool{}, defs: map[string]*schema{}}
	s := *g.schema(t)
	s.Dialect = "https://json-schema.org/draft/2020-12/schema"
	if len(g.defs) > 0 {
		s.Defs = g.defs
	}
	return &s
}

// generator makes the schema of one payload. A struct that contains itself becomes a definition.
type generator struct {
	open  map[reflect.Type]bool // the structs that contain the present one
	names map[reflect.Type]string
	defs  map[string]*schema
}

var (
	timeType      = reflect.TypeFor[time.Time]()
	rawType       = reflect.TypeFor[json.RawMessage]()
	numberType    = reflect.TypeFor[json.Number]()
	marshalerType = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
	byteType      = reflect.TypeFor[byte]()
)

// implements reports whether json.Marshal uses a method for values of a type. Methods of pointers are used where it
// has an address, which it has in most payloads.
func implements(t, method reflect.Type) bool {
	return t.Implements(method) || t.Kind() != reflect.Pointer && t.Kind() != reflect.Interface && reflect.PointerTo(t).Implements(method)
}

func (g *generator) schema(t reflect.Type) *schema {
	switch {
	case t == timeType:
		return &schema{Type: types{"string"}, Format: "date-time"}
	case t == rawType:
		return &schema{}
	case t == numberType:
		return &schema{Type: types{"number"}}
	case t.Kind() == reflect.Pointer:
		return g.schema(t.Elem()).orNull()
	case implements(t, marshalerType):
		return &schema{Comment: t.String()}
	case implements(t, textMarshaler):
		return &schema{Type: types{"string"}}
	}
	switch t.Kind() {
	case reflect.Bool:
		return &schema{Type: types{"boolean"}}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return &schema{Type: types{"integer"}}
	case reflect.Float32, reflect.Float64:
		return &schema{Type: types{"number"}}
	case reflect.String:
		return &schema{Type: types{"string"}}
	case reflect.Interface:
		return &schema{}
	case reflect.Slice:
		if t.Elem() == byteType {
			return &schema{Type: types{"string", null}, Encoding: "base64"}
		}
		return &schema{Type: types{"array", null}, Items: g.schema(t.Elem())}
	case reflect.Array:
		return &schema{Type: types{"array"}, Items: g.schema(t.Elem())}
	case reflect.Map:
		return &schema{Type: types{"object", null}, Additional: g.schema(t.Elem())}
	case reflect.Struct:
		return g.object(t)
	}
	panic("outboxtest: json.Marshal cannot encode the type " + t.String())
}

// object returns the schema of a struct.
func (g *generator) object(t reflect.Type) *schema {
	if g.open[t] {
		if g.names[t] == "" {
			g.names[t] = fmt.Sprintf("%s.%d", t.Name(), len(g.names)+1)
		}
		return &schema{Ref: "#/$defs/" + g.names[t]}
	}
	g.open[t] = true
	s := &schema{Type: types{"object"}, Properties: map[string]*schema{}}
	for _, f := range jsonFields(t) {
		p := g.schema(f.typ)
		if f.quoted && len(p.Type) > 0 {
			p = &schema{Type: slices.Concat(types{"string"}, p.Type[1:])}
		}
		if f.optional && isNilOmitted(f.typ) {
			p = p.notNull()
		}
		s.Properties[f.name] = p
		if !f.optional {
			s.Required = append(s.Required, f.name)
		}
	}
	slices.Sort(s.Required)
	delete(g.open, t)
	if name := g.names[t]; name != "" {
		g.defs[name] = s
		return &schema{Ref: "#/$defs/" + name}
	}
	return s
}

// isNilOmitted reports whether null is the value nil of the type itself, which an optional field does not have.
func isNilOmitted(t reflect.Type) bool {
	mayBeNil := func(t reflect.Type) bool {
		return t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map
	}
	return mayBeNil(t) && !(t.Kind() == reflect.Pointer && mayBeNil(t.Elem()))
}
