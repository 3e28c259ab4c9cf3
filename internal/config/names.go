package config

import (
	"fmt"
	"strings"
	"unicode"
)

// parseTable parses schema.table with SQL's rules for quoted and unquoted identifiers. problem is "" if text is valid.
func parseTable(text string) (schema, name, problem string) {
	var parts []string
	rest := text
	for {
		part, after, ok := cutIdentifier(rest)
		if !ok {
			return "", "", quote(text) + ` is not a table name; write schema.table, with double quotes around a part that needs them, e.g. public.outbox or "My Schema"."Outbox"`
		}
		parts = append(parts, part)
		if after == "" {
			break
		}
		rest = after[1:] // after starts with a dot
	}
	switch len(parts) {
	case 1:
		return "", "", fmt.Sprintf("%s has no schema; write e.g. %s", quote(text), "public."+strings.TrimSpace(text))
	case 2:
	default:
		return "", "", fmt.Sprintf("%s has %d parts; write schema.table without the database", quote(text), len(parts))
	}
	for _, p := range parts {
		if problem := checkIdentifier("a schema and a table", p); problem != "" {
			return "", "", problem
		}
	}
	return parts[0], parts[1], ""
}

// cutIdentifier cuts an identifier from the start of s. after is "" or starts with a dot.
func cutIdentifier(s string) (ident, after string, ok bool) {
	if strings.HasPrefix(s, `"`) {
		return cutQuoted(s)
	}
	end := strings.IndexByte(s, '.')
	if end < 0 {
		end = len(s)
	}
	ident = s[:end]
	for i, r := range ident {
		letter := r == '_' || r >= 0x80 || unicode.IsLetter(r)
		if !letter && (i == 0 || (r != '$' && (r < '0' || r > '9'))) {
			return "", "", false
		}
	}
	// As the server does in a UTF-8 database, only ASCII letters are folded.
	fold := func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}
	return strings.Map(fold, ident), s[end:], ident != ""
}

func cutQuoted(s string) (ident, after string, ok bool) {
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		if s[i] != '"' {
			b.WriteByte(s[i])
			continue
		}
		if i+1 < len(s) && s[i+1] == '"' { // a doubled quote is one quote
			b.WriteByte('"')
			i++
			continue
		}
		after = s[i+1:]
		return b.String(), after, b.Len() > 0 && (after == "" || after[0] == '.')
	}
	return "", "", false // no closing quote
}

// maxTopic is the maximum length of a topic name in Kafka.
const maxTopic = 249

// checkTopicTemplate checks a template of literal text and {column}. The values of columns are checked for each row.
func checkTopicTemplate(t string) string {
	if t == "" {
		return `is empty; write a topic name or a template, e.g. outbox.event.{aggregate_type}`
	}
	literal, columns := 0, 0
	for rest := t; rest != ""; {
		open := strings.IndexAny(rest, "{}")
		if open < 0 {
			open = len(rest)
		}
		if i := strings.IndexFunc(rest[:open], illegalInTopic); i >= 0 {
			return fmt.Sprintf("%s has %q, which is not allowed in a topic name; use A–Z, a–z, 0–9, . _ - and {column}", quote(t), []rune(rest[i:])[0])
		}
		literal += open
		if open == len(rest) {
			break
		}
		column, after, ok := strings.Cut(rest[open+1:], "}")
		switch {
		case rest[open] == '}' || !ok || strings.Contains(column, "{"):
			return quote(t) + " has unbalanced braces; write {column}"
		case strings.TrimSpace(column) == "":
			return quote(t) + " has empty braces; name a column in them, e.g. {aggregate_type}"
		case strings.TrimSpace(column) != column:
			return quote(t) + " has spaces inside its braces; write {" + strings.TrimSpace(column) + "}"
		case len(column) > maxIdentifier:
			return fmt.Sprintf("%s names a column of more than %d bytes; PostgreSQL has none", quote(t), maxIdentifier)
		}
		columns++
		rest = after
	}
	if literal > maxTopic {
		return fmt.Sprintf("is %d bytes long without its columns; Kafka allows at most %d", literal, maxTopic)
	}
	if columns == 0 && (t == "." || t == "..") {
		return quote(t) + " is not allowed as a topic name in Kafka"
	}
	return ""
}

// checkTopic checks the name of a topic.
func checkTopic(t string) string {
	problem := checkTopicTemplate(t)
	if problem == "" && strings.Contains(t, "{") {
		problem = quote(t) + " contains a column; write the name of a topic"
	}
	return problem
}

func illegalInTopic(r rune) bool {
	switch {
	case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '_', r == '-':
		return false
	}
	return true
}
