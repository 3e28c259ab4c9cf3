package config

import (
	"encoding/json"
	"slices"
	"strings"
	"time"
)

// object is a JSON object. encoding/json sorts the keys, so the output depends only on the settings.
type object map[string]any

// Schema is a JSON Schema (2020-12) of the configuration file, for editors. It refuses unknown settings and invalid
// values. Only [Load] finds contradictions between settings.
func Schema() []byte {
	def := Default()
	root := schemaOf(knownTree(), "", func(path string) string { return path })
	for _, s := range knownSettings() {
		at(root, s.path)["default"] = jsonDefault(s.value(def))
	}
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "outboxcdc.yaml"
	root["description"] = "Settings of outboxcdc"
	out, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		panic("config: the schema is not JSON: " + err.Error())
	}
	return append(out, '\n')
}

// at returns the schema of the setting at path.
func at(root object, path string) object {
	for key := range strings.SplitSeq(path, ".") {
		root = root["properties"].(object)[key].(object)
	}
	return root
}

// section is the schema of a mapping with these keys. It may be null, which YAML reads if all lines of the section are
// commented out.
func section(properties object) object {
	return object{"type": []string{"object", "null"}, "properties": properties, "additionalProperties": false}
}

// schemaOf is the schema of the section at path. described maps the path of a setting to the path of its description.
func schemaOf(t tree, path string, described func(path string) string) object {
	properties := object{}
	for _, key := range t.sections[path] {
		at := join(path, key)
		var p object
		if s, leaf := t.leaves[at]; leaf {
			p = s.schema()
		} else {
			p = schemaOf(t, at, described)
		}
		if meaning := meanings[described(at)]; meaning != "" {
			p["description"] = meaning
		}
		properties[key] = p
	}
	return section(properties)
}

// referencePattern matches a reference to the environment or a file, which a value of any type may be.
const referencePattern = `\$\{(env|file):`

// schema is the schema of a value of the setting.
func (s *setting) schema() object {
	or := func(pattern string) string { return "^(" + pattern + ")$|" + referencePattern }
	plain := []string{"string", "number", "boolean"} // the types as which YAML may read an unquoted text
	var out object
	switch s.zero.(type) {
	case bool:
		out = object{"type": []string{"boolean", "string"}, "pattern": or("true|True|TRUE|false|False|FALSE")}
	case int:
		out = object{"type": []string{"integer", "string"}, "pattern": or(`[+-]?[0-9]+`)}
	case time.Duration:
		out = object{"type": []string{"string", "integer"}, "pattern": or(`[+-]?(0|([0-9]*\.?[0-9]*(ns|us|µs|μs|ms|s|m|h))+)`), "maximum": 0, "minimum": 0}
	case ByteSize:
		out = object{"type": []string{"string", "integer"}, "pattern": or(`[+-]?[0-9]+ *(GiB|MiB|KiB|GB|MB|kB|KB|B)?`)}
	case []string:
		out = object{"type": append([]string{"array"}, plain...), "items": object{"type": plain}}
	case map[string]string:
		out = object{"type": []string{"object", "string"}, "additionalProperties": object{"type": plain}}
	case map[string]int:
		out = object{"type": []string{"object", "string"}, "additionalProperties": object{"type": []string{"integer", "string"}, "pattern": or(`[+-]?[0-9]+`)}}
	case []Source:
		return object{"type": []string{"array", "string"}, "items": sourceSchema()}
	default:
		out = object{"type": plain}
		if len(s.choices) > 0 {
			out = object{"anyOf": []object{{"enum": s.choices}, {"type": "string", "pattern": referencePattern}}}
		}
	}
	return out
}

// sourceSchema is the schema of an entry of outboxes. Its settings have the descriptions of outbox and route.
func sourceSchema() object {
	described := func(path string) string {
		if path == "table" || strings.HasPrefix(path, "columns") {
			return "outbox." + path
		}
		return path
	}
	t := entryTree()
	own := tree{leaves: t.leaves, sections: map[string][]string{}}
	for section, keys := range t.sections {
		own.sections[section] = slices.DeleteFunc(slices.Clone(keys), func(key string) bool {
			s, leaf := t.leaves[join(section, key)]
			return leaf && s.shared // applies to all tables
		})
	}
	out := schemaOf(own, "", described)
	out["type"], out["required"] = "object", []string{"table"}
	return out
}

// jsonDefault is a default value as in a file.
func jsonDefault(v any) any {
	switch v := v.(type) {
	case time.Duration, ByteSize:
		return formatPlain(v)
	case map[string]string:
		if len(v) == 0 {
			return object{}
		}
	case map[string]int:
		if len(v) == 0 {
			return object{}
		}
	}
	return v
}
