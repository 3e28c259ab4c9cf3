package config

import (
	"strings"
	"time"
)

// kind describes the allowed values.
func (s *setting) kind() string {
	switch s.zero.(type) {
	case bool:
		return "true or false"
	case int:
		return "whole number"
	case time.Duration:
		return "duration: 500ms, 30s, 5m, 1h30m"
	case ByteSize:
		return "size: 512KiB, 16MiB, 1GiB"
	case []string:
		return "list of texts"
	case map[string]string:
		return "mapping"
	case map[string]int:
		return "mapping to numbers"
	case []Source:
		return "list of tables; only in files"
	}
	switch {
	case s.allowed != "":
		return s.allowed
	case len(s.choices) > 0:
		return strings.Join(s.choices, " | ")
	}
	return "text"
}

// sampleWidth is the width of comments in the sample.
const sampleWidth = 110

// Sample is a configuration file with every setting, its default and its meaning, all commented out: removing a # sets
// a setting.
func Sample() string {
	var b strings.Builder
	comment(&b, "", "Every setting of outboxcdc with its default. Remove the # before a setting to set it. Each setting is also an environment variable: "+
		EnvName("kafka.compression")+" for kafka.compression. A value may contain ${env:NAME} or ${file:/path}. `outboxcdc config validate` checks the result, "+
		"`outboxcdc config print --origin` shows it, and docs/configuration.md has more.")
	var open []string
	for _, s := range knownSettings() {
		sections := strings.Split(s.path, ".")
		key := sections[len(sections)-1]
		sections = sections[:len(sections)-1]
		for i, name := range sections {
			if i >= len(open) || open[i] != name {
				indent := strings.Repeat("  ", i)
				b.WriteString("\n")
				comment(&b, indent, meanings[strings.Join(sections[:i+1], ".")])
				b.WriteString(indent + name + ":\n")
				open = append(open[:min(i, len(open))], name)
			}
		}
		if len(sections) == 0 {
			b.WriteString("\n")
		}
		open = open[:len(sections)]
		indent := strings.Repeat("  ", len(sections))
		comment(&b, indent, meanings[s.path])
		b.WriteString(indent + "#" + key + ": " + formatYAML(s.value(Default())))
		if len(s.choices) > 0 {
			b.WriteString("  # " + s.kind())
		}
		b.WriteString("\n")
	}
	return b.String()
}

// comment writes a text as a comment, wrapped at sampleWidth.
func comment(b *strings.Builder, indent, text string) {
	line := indent + "#"
	for _, word := range strings.Fields(text) {
		if len([]rune(line))+1+len([]rune(word)) > sampleWidth {
			b.WriteString(line + "\n")
			line = indent + "#"
		}
		line += " " + word
	}
	if text != "" {
		b.WriteString(line + "\n")
	}
}
