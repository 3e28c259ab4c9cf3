package config

import (
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Setting is one effective setting, without secrets.
type Setting struct {
	Path   string // e.g. "postgres.slot"
	Value  any    // string, bool, int, []string, map[string]string, map[string]int, []Source, time.Duration or ByteSize; secrets masked
	Origin string // where the value comes from, see [Config.Origin]
}

// Settings lists every setting in the order of the documentation, secrets masked.
func (c *Config) Settings() []Setting {
	r := c.Redacted()
	var out []Setting
	for _, s := range knownSettings() {
		out = append(out, Setting{Path: s.path, Value: s.value(r), Origin: c.Origin(s.path)})
	}
	return out
}

// Redacted is a copy without secrets, which may be logged and printed.
func (c *Config) Redacted() *Config {
	r := *c
	r.Postgres.URL = RedactDSN(c.Postgres.URL)
	r.Postgres.Standbys = slices.Clone(c.Postgres.Standbys)
	for i, dsn := range r.Postgres.Standbys {
		if dsn != "auto" {
			r.Postgres.Standbys[i] = RedactDSN(dsn)
		}
	}
	r.Kafka.Brokers, r.Kafka.SASL.Scopes = slices.Clone(c.Kafka.Brokers), slices.Clone(c.Kafka.SASL.Scopes)
	if c.Kafka.SASL.Password != "" {
		r.Kafka.SASL.Password = masked
	}
	r.Receiver.URL = redactReceiver(c.Receiver.URL)
	if c.Receiver.Secret != "" {
		r.Receiver.Secret = masked
	}
	r.Kafka.SASL.TokenURL = redactQuery(c.Kafka.SASL.TokenURL)
	r.Route = c.Route.clone()
	r.Outboxes = slices.Clone(c.Outboxes)
	for i := range r.Outboxes {
		r.Outboxes[i].Route = r.Outboxes[i].Route.clone()
	}
	r.Poison.Causes, r.Poison.Decisions = maps.Clone(c.Poison.Causes), maps.Clone(c.Poison.Decisions)
	r.Kafka.CreateTopics.Config = maps.Clone(c.Kafka.CreateTopics.Config)
	r.origins = maps.Clone(c.origins)
	return &r
}

// Plain is the value for JSON: durations and sizes as they are written in a file, tables as YAML.
func (s *Setting) Plain() any {
	switch v := s.Value.(type) {
	case time.Duration, ByteSize, []Source:
		return formatPlain(v)
	}
	return s.Value
}

// String is the effective configuration as YAML, with secrets masked. Without secrets, loading it gives the same
// configuration.
func (c *Config) String() string { return c.text(func(Setting) string { return "" }) }

// originColumn is the column at which origins begin, unless the line is longer.
const originColumn = 52

// WithOrigins is String with the origin of each setting as a comment.
func (c *Config) WithOrigins() string {
	return c.text(func(s Setting) string { return "# " + s.Origin })
}

// text writes the settings in their sections, each followed by its comment.
func (c *Config) text(comment func(Setting) string) string {
	var b strings.Builder
	var open []string // sections of the last line
	for _, s := range c.Settings() {
		sections := strings.Split(s.Path, ".")
		key := sections[len(sections)-1]
		sections = sections[:len(sections)-1]
		for i, name := range sections {
			if i >= len(open) || open[i] != name {
				b.WriteString(strings.Repeat("  ", i) + name + ":\n")
				open = open[:min(i, len(open))]
				open = append(open, name)
			}
		}
		line := strings.Repeat("  ", len(sections)) + key + ": " + formatYAML(s.Value)
		if remark := comment(s); remark != "" {
			line += strings.Repeat(" ", max(2, originColumn-utf8.RuneCountInString(line))) + remark
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

// LogValue is the effective configuration as a flat group of attributes, with secrets masked.
func (c *Config) LogValue() slog.Value {
	var attrs []slog.Attr
	for _, s := range c.Settings() {
		attrs = append(attrs, slog.String(s.Path, formatPlain(s.Value)))
	}
	return slog.GroupValue(attrs...)
}

func formatYAML(v any) string {
	switch v := v.(type) {
	case string:
		return quoteYAML(v)
	case []string:
		items := make([]string, len(v))
		for i, item := range v {
			items[i] = quoteYAML(item)
		}
		return "[" + strings.Join(items, ", ") + "]"
	case map[string]string:
		return "{" + joinMap(v, ": ", ", ", quoteYAML) + "}"
	case []Source:
		return formatSources(v)
	case map[string]int:
		return "{" + joinMap(v, ": ", ", ", strconv.Itoa) + "}"
	}
	return formatPlain(v)
}

// quoteYAML quotes s, and escapes references, so that YAML reads s back.
func quoteYAML(s string) string { return strconv.Quote(escapeReferences(s)) }

// joinMap writes a map in the order of its keys, as YAML or for the environment.
func joinMap[T any](m map[string]T, assign, separator string, text func(T) string) string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		shown := key
		if assign == ": " { // YAML
			shown = strconv.Quote(key)
		}
		out = append(out, shown+assign+text(m[key]))
	}
	return strings.Join(out, separator)
}

func formatPlain(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case bool:
		return strconv.FormatBool(v)
	case int:
		return strconv.Itoa(v)
	case []string:
		return strings.Join(v, ",")
	case map[string]string:
		return joinMap(v, "=", ",", func(s string) string { return s })
	case []Source:
		return formatSources(v)
	case map[string]int:
		return joinMap(v, "=", ",", strconv.Itoa)
	case time.Duration:
		return formatDuration(v)
	case ByteSize:
		return v.String()
	}
	panic("config: a setting of a type that cannot be printed") // a test prints every setting
}
