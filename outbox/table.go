package outbox

import (
	"fmt"
	"regexp"
	"strings"
)

// identifier is a name in SQL: quoted, or folded to lower case.
const identifier = `("(?:[^"\x00]|"")+"|[A-Za-z_\x{80}-\x{10ffff}][A-Za-z0-9_$\x{80}-\x{10ffff}]*)`

var tableName = regexp.MustCompile(`^` + identifier + `\.` + identifier + `$`)

// quoteTable reads the name of a table as the daemon's outbox.table, and returns it quoted.
func quoteTable(text string) (string, error) {
	m := tableName.FindStringSubmatch(text)
	if m == nil {
		return "", fmt.Errorf(`the table %q is not schema.table; a part that needs them has double quotes, e.g. public.outbox or "My Schema"."Outbox"`, text)
	}
	return foldIdentifier(m[1]) + "." + foldIdentifier(m[2]), nil
}

// foldIdentifier quotes an identifier that is not quoted. As the server does in a UTF-8 database, it folds only ASCII
// letters.
func foldIdentifier(s string) string {
	if strings.HasPrefix(s, `"`) {
		return s
	}
	return quoteIdentifier(strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, s))
}

func quoteIdentifier(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }
