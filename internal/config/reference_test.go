package config

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestReference checks that docs/configuration.md has the generated lists. The text around them is written by hand.
func TestReference(t *testing.T) {
	const file, begin, end = "../../docs/configuration.md", "<!-- begin: generated -->\n", "<!-- end: generated -->\n"
	text, err := os.ReadFile(file)
	must(t, err)
	head, rest, ok := strings.Cut(string(text), begin)
	_, tail, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no %s … %s", file, begin, end)
	}
	holdFile(t, file, head+begin+referenceLists(t)+end+tail)
}

// tuning and receiver are the sections with their own parts of the reference.
const (
	tuning   = "tuning"
	receiver = "receiver"
)

func referenceLists(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	section := func(path string) string {
		s, _, ok := strings.Cut(path, ".")
		if !ok {
			return ""
		}
		return s
	}
	def, last := Default(), "-"
	row := func(s *setting) {
		meaning := meanings[s.path]
		if parent := s.path[:max(0, strings.LastIndexByte(s.path, '.'))]; strings.Contains(parent, ".") && firstOf(parent, s.path) {
			meaning = strings.TrimSuffix(meaning, ".") + ". (`" + parent + "`: " + meanings[parent] + ")"
		}
		if s.live {
			meaning += " *SIGHUP.*"
		}
		kind, _, _ := strings.Cut(s.kind(), ": ") // without examples
		if value := formatYAML(s.value(def)); !slices.Contains([]string{`""`, "[]", "{}"}, value) {
			kind += ", default `" + value + "`"
		}
		text := fmt.Sprintf("- `%s`: %s. %s", s.path, kind, meaning)
		b.WriteString(strings.ReplaceAll(wrapped(text), "\n", "\n  ") + "\n")
	}
	main := 0
	for _, s := range knownSettings() {
		name := section(s.path)
		if s.part != "" || name == tuning || name == receiver {
			continue
		}
		if main++; name != last {
			last = name
			if name == "" {
				b.WriteString("\n### At the top level\n\n")
			} else {
				fmt.Fprintf(&b, "\n### %s\n\n%s\n\n", name, wrapped(meanings[name]))
			}
		}
		row(s)
	}
	if main > 64 {
		t.Errorf("%d settings in the main part, want 64 at most: is the new one tuning?", main)
	}
	for _, name := range []string{receiver, tuning} {
		b.WriteString("\n### " + name + "\n\n" + wrapped(meanings[name]) + "\n\n")
		for _, s := range knownSettings() {
			if section(s.path) == name {
				row(s)
			}
		}
	}
	b.WriteString("\n### Commands that read the table\n\nSettings for `audit`, `recover`, `backfill`, `replay` and `retain`. The daemon does not use them.\n\n")
	for _, s := range knownSettings() {
		if s.part == "table" {
			row(s)
		}
	}
	b.WriteString("\n### Tables that were made for Debezium\n\nSettings for outbox tables that were created for Debezium's event router.\n\n")
	for _, s := range knownSettings() {
		if s.part == "debezium" {
			row(s)
		}
	}
	b.WriteString("\n### The preset debezium\n\nIt changes these defaults:\n\n| setting | default |\n| --- | --- |\n")
	c, err := loadText("preset: debezium\n")
	must(t, err)
	for _, s := range c.Settings() {
		if s.Origin == originPreset {
			fmt.Fprintf(&b, "| `%s` | `%s` |\n", s.Path, formatYAML(s.Value))
		}
	}
	return b.String() + "\n"
}

// wrapped breaks a paragraph into lines of at most 118 characters.
func wrapped(text string) string {
	var b strings.Builder
	column := 0
	for word := range strings.FieldsSeq(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case column == 0:
		case column+1+n > 118:
			b.WriteByte('\n')
			column = 0
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += n
	}
	return b.String()
}

// firstOf reports whether the setting at path is the first one of its section.
func firstOf(section, path string) bool {
	return join(section, knownTree().sections[section][0]) == path
}
