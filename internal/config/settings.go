package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// setting is one leaf of the tree of settings: a field of [Config].
type setting struct {
	path    string
	field   []int    // index of the field in Config, for reflect
	zero    any      // the zero value of the setting's type, which decides how text is parsed
	def     string   // the default, as in the environment
	choices []string // the values of an enumeration
	secret  bool
	shared  bool   // of route: applies to all tables
	live    bool   // may change while the daemon runs
	part    string // part of the reference, "" for the main part
	allowed string // description of the allowed values, if the type does not suffice
}

// knownSettings are all settings, from the tags of Config.
var knownSettings = sync.OnceValue(func() []*setting {
	var out []*setting
	walkFields(reflect.TypeFor[Config](), "", nil, &out)
	return out
})

func paths(settings []*setting) []string {
	var out []string
	for _, s := range settings {
		out = append(out, s.path)
	}
	return out
}

func walkFields(t reflect.Type, prefix string, index []int, out *[]*setting) {
	for f := range t.Fields() {
		key := f.Tag.Get("yaml")
		if key == "" {
			continue // not a setting
		}
		path, at := prefix+key, append(slices.Clone(index), f.Index...)
		def, leaf := f.Tag.Lookup("default")
		if !leaf {
			walkFields(f.Type, path+".", at, out)
			continue
		}
		*out = append(*out, &setting{
			path: path, field: at, zero: reflect.Zero(f.Type).Interface(), def: def,
			choices: strings.Fields(f.Tag.Get("oneof")),
			part:    f.Tag.Get("part"), allowed: f.Tag.Get("value"),
			secret: f.Tag.Get("secret") != "", shared: f.Tag.Get("shared") != "", live: f.Tag.Get("live") != "",
		})
	}
}

// tree has the settings by path, and the keys of each section in order.
type tree struct {
	leaves   map[string]*setting
	sections map[string][]string // "" is the root
}

var knownTree = sync.OnceValue(func() tree { return treeOf(knownSettings()) })

func treeOf(settings []*setting) tree {
	t := tree{leaves: map[string]*setting{}, sections: map[string][]string{}}
	for _, s := range settings {
		t.leaves[s.path] = s
		section, rest := "", s.path
		for {
			key, after, more := strings.Cut(rest, ".")
			if !slices.Contains(t.sections[section], key) {
				t.sections[section] = append(t.sections[section], key)
			}
			if !more {
				break
			}
			section, rest = join(section, key), after
		}
	}
	return t
}

func join(section, key string) string {
	if section == "" {
		return key
	}
	return section + "." + key
}

// envPrefix is the prefix of the environment variables of settings.
const envPrefix = "OUTBOXCDC_"

// EnvName is the environment variable that sets the setting at path: postgres.slot → OUTBOXCDC_POSTGRES_SLOT.
func EnvName(path string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
}

// value is the value of the setting in c, a *Config or, for a setting of an entry, a *Source.
func (s *setting) value(c any) any {
	return reflect.ValueOf(c).Elem().FieldByIndex(s.field).Interface()
}

// store parses r and sets the setting in c, a *Config or, for a setting of an entry, a *Source. The error does not
// contain place and path.
func (s *setting) store(c any, r raw) error {
	if _, tables := s.zero.([]Source); tables {
		return c.(*Config).keepOutboxes(r)
	}
	v, err := parse(r, s.zero)
	if err != nil {
		if s.secret {
			return fmt.Errorf("the value (not shown) is not text")
		}
		return err
	}
	if problem := s.checkChoice(v); problem != "" {
		return fmt.Errorf("%s", problem)
	}
	reflect.ValueOf(c).Elem().FieldByIndex(s.field).Set(reflect.ValueOf(v))
	return nil
}

// checkChoice says what is wrong with v if s is an enumeration, "" if nothing is.
func (s *setting) checkChoice(v any) string {
	text, isText := v.(string)
	if len(s.choices) == 0 || !isText || slices.Contains(s.choices, text) {
		return ""
	}
	return fmt.Sprintf("%s is unknown; write %s", quote(text), strings.Join(s.choices, " | "))
}
