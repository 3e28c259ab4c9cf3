package config

import "strings"

// keyword is one "key = value" of libpq's keyword form.
type keyword struct{ key, value string }

// parseKeywords parses libpq's keyword form, in which a value may be in single quotes and a backslash escapes a
// character. ok is false if dsn is malformed.
func parseKeywords(dsn string) (params []keyword, ok bool) {
	const space = " \t\n\r\f\v"
	rest := strings.Trim(dsn, space)
	for rest != "" {
		key, after, found := strings.Cut(rest, "=")
		key = strings.TrimRight(key, space)
		if !found || key == "" || strings.ContainsAny(key, space+`'\`) {
			return nil, false
		}
		after = strings.TrimLeft(after, space)
		value, tail, closed := cutValue(after)
		if !closed {
			return nil, false
		}
		params = append(params, keyword{key, value})
		rest = strings.TrimLeft(tail, space)
	}
	return params, len(params) > 0
}

// cutValue cuts a value from the start of s. closed is false if a quote is not closed.
func cutValue(s string) (value, tail string, closed bool) {
	quoted := strings.HasPrefix(s, "'")
	i := 0
	if quoted {
		i = 1
	}
	var b strings.Builder
	for ; i < len(s); i++ {
		switch ch := s[i]; {
		case ch == '\\':
			if i++; i < len(s) {
				b.WriteByte(s[i])
			}
		case quoted && ch == '\'':
			return b.String(), s[i+1:], true
		case !quoted && strings.IndexByte(" \t\n\r\f\v", ch) >= 0:
			return b.String(), s[i:], true
		default:
			b.WriteByte(ch)
		}
	}
	return b.String(), "", !quoted
}

func quoteKeyword(v string) string {
	if v != "" && !strings.ContainsAny(v, " \t\n\r\f\v'\\") {
		return v
	}
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(v) + "'"
}
