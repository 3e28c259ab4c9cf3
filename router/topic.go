package router

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxTopic is the maximum length of a topic's name. With every sink the rules for names are Kafka's, which are the
// narrowest: what writes an event need not know what it is delivered to (package outbox has the same rules), and every
// other sink takes these names.
const maxTopic = 249

// part is a part of a template: literal text or, if name is not empty, the name of a role or column.
type part struct {
	literal string
	name    string
}

// parseTemplate splits a template into literals and names. Braces cannot be escaped: no legal topic has one.
func parseTemplate(s string) ([]part, error) {
	if s == "" {
		return nil, errors.New("empty template")
	}
	var parts []part
	for rest := s; rest != ""; {
		literal, after, found := strings.Cut(rest, "{")
		if literal != "" {
			parts = append(parts, part{literal: literal})
		}
		if !found {
			break
		}
		name, next, closed := strings.Cut(after, "}")
		switch {
		case !closed:
			return nil, fmt.Errorf("template %q: { without }", s)
		case name == "" || strings.Contains(name, "{"):
			return nil, fmt.Errorf("template %q: {%s} names no column", s, name)
		}
		parts = append(parts, part{name: name})
		rest = next
	}
	return parts, nil
}

// topicTemplate parses and checks the template of a topic.
func topicTemplate(s string) ([]part, error) {
	parts, err := parseTemplate(s)
	if err != nil {
		return nil, err
	}
	for _, p := range parts {
		if i := illegalByte([]byte(p.literal)); i >= 0 {
			return nil, fmt.Errorf("template %q: character %q is not allowed in a topic", s, p.literal[i])
		}
	}
	if len(parts) == 1 && parts[0].name == "" {
		if why := checkTopic([]byte(s)); why != "" {
			return nil, fmt.Errorf("template %q: %s", s, why)
		}
	}
	return parts, nil
}

// illegalByte returns the index of the first byte that is not allowed in a topic's name, or -1.
func illegalByte(b []byte) int {
	for i, c := range b {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return i
		}
	}
	return -1
}

// checkTopic returns what is wrong with a topic's name, or "".
func checkTopic(b []byte) string {
	switch {
	case len(b) == 0:
		return "the topic is empty"
	case len(b) > maxTopic:
		return fmt.Sprintf("the topic %s has more than %d characters", printable(b), maxTopic)
	case string(b) == "." || string(b) == "..":
		return fmt.Sprintf("the topic cannot be %q", b)
	}
	if i := illegalByte(b); i >= 0 {
		_, n := utf8.DecodeRune(b[i:])
		return fmt.Sprintf("the topic %s has the illegal character %s", printable(b), printable(b[i:i+n]))
	}
	return ""
}

// internalPrefix is the prefix of Kafka's internal topics.
const internalPrefix = "__"

// targetProblem returns why a topic with a legal name cannot take events, or "".
func (c *Config) targetProblem(topic string) string {
	switch {
	case topic == "":
		return ""
	case topic == c.PositionTopic:
		return fmt.Sprintf("the topic %q takes no events, because it holds position records: route them to another topic, or set delivery.position_topic to another", topic)
	case topic == c.DeadLetterTopic:
		return fmt.Sprintf("the topic %q takes no events, because it holds dead letters: route them to another topic, or set poison.topic to another", topic)
	case strings.HasPrefix(topic, internalPrefix):
		return fmt.Sprintf("the topic %q takes no events: names that begin with %s are reserved for Kafka's internal topics", topic, internalPrefix)
	}
	return ""
}

// printable quotes a value of a row, truncated by clip.
func printable(b []byte) string {
	if c := clip(b); len(c) < len(b) {
		return strconv.QuoteToASCII(string(c)) + "…"
	}
	return strconv.QuoteToASCII(string(b))
}

// clip truncates b to 80 bytes, between characters.
func clip(b []byte) []byte {
	const most = 80
	if len(b) <= most {
		return b
	}
	cut := most
	for cut > most-utf8.UTFMax && !utf8.RuneStart(b[cut]) {
		cut--
	}
	return b[:cut]
}
