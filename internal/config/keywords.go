package config

import "strings"

// keyword is one "key = value" of libpq's keyword form.
type keyword struct{ key, value string }

// parseKeywords reads libpq's keyword form: values bare or in single quotes, a backslash escapes. ok is false for
// anything else.
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

// cutValue reads one value from the front of s; closed is false when a quote is not.
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
