package config

import (
	"fmt"
	"strings"
)

// suggestKey is the end of a message about an unknown key: a setting of that name in another section, a similar key, or
// all keys of the section.
func (d *document) suggestKey(section, key string) string {
	for _, s := range d.known { // a setting of that name in another section
		dot := strings.LastIndexByte(s.path, '.')
		if s.path == key || s.path[dot+1:] == key {
			if dot < 0 {
				return fmt.Sprintf("; did you mean %q, at the top level%s?", key, d.ofEntry())
			}
			return fmt.Sprintf("; did you mean %q, under %q?", s.path[dot+1:], s.path[:dot])
		}
	}
	siblings := d.tree.sections[section]
	if best := Nearest(key, siblings); best != "" {
		return fmt.Sprintf("; did you mean %q?", best)
	}
	in := "at the top level" + d.ofEntry()
	if section != "" {
		in = "under " + section
	}
	return fmt.Sprintf("; known %s: %s", in, strings.Join(siblings, ", "))
}

// ofEntry is " of the entry" within a list of tables.
func (d *document) ofEntry() string {
	if d.prefix == "" {
		return ""
	}
	return " of the entry"
}

// Nearest is the candidate most similar to s, "" if none is similar enough.
func Nearest(s string, candidates []string) string {
	best, bestDistance := "", max(2, len(s)/3)+1
	for _, c := range candidates {
		if n := distance(strings.ToLower(s), strings.ToLower(c), bestDistance); n < bestDistance {
			best, bestDistance = c, n
		}
	}
	return best
}

// distance is the Levenshtein distance of a and b, at most limit.
func distance(a, b string, limit int) int {
	if len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return min(row[len(b)], limit)
}
