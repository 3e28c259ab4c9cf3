package fromdebezium

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// readProperties reads Java's properties format:
// https://docs.oracle.com/javase/8/docs/api/java/util/Properties.html#load-java.io.Reader-
func readProperties(text string) (map[string]string, error) {
	if !utf8.ValidString(text) {
		return nil, errors.New("the file is not UTF-8")
	}
	out := map[string]string{}
	lines := strings.Split(strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\r", "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		line := strings.TrimLeft(lines[i], " \t\f")
		if line == "" || line[0] == '#' || line[0] == '!' {
			continue
		}
		for continued(line) && i+1 < len(lines) {
			i++
			line = line[:len(line)-1] + strings.TrimLeft(lines[i], " \t\f")
		}
		key, value := splitProperty(line)
		k, err := unescape(key)
		if err == nil {
			value, err = unescape(value)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		out[k] = value
	}
	return out, nil
}

// continued reports whether the line ends with an odd number of backslashes, so that the next line continues it.
func continued(line string) bool {
	n := len(line) - len(strings.TrimRight(line, `\`))
	return n%2 == 1
}

// splitProperty splits a line at the first =, : or white space that is not escaped.
func splitProperty(line string) (key, value string) {
	i := 0
	for ; i < len(line) && !strings.ContainsRune("=: \t\f", rune(line[i])); i++ {
		if line[i] == '\\' {
			i++
		}
	}
	i = min(i, len(line))
	key, rest := line[:i], strings.TrimLeft(line[i:], " \t\f")
	if rest != "" && (rest[0] == '=' || rest[0] == ':') {
		rest = strings.TrimLeft(rest[1:], " \t\f")
	}
	return key, rest
}

func unescape(s string) (string, error) {
	if !strings.Contains(s, `\`) {
		return s, nil
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		switch s[i] {
		case 't':
			b.WriteByte('\t')
		case 'n':
			b.WriteByte('\n')
		case 'r':
			b.WriteByte('\r')
		case 'f':
			b.WriteByte('\f')
		case 'u':
			if i+5 > len(s) {
				return "", fmt.Errorf(`%q ends inside a \u escape`, s)
			}
			u, err := strconv.ParseUint(s[i+1:i+5], 16, 16)
			if err != nil {
				return "", fmt.Errorf(`%q has a malformed \u escape`, s)
			}
			if utf16.IsSurrogate(rune(u)) {
				return "", fmt.Errorf(`%q has a character of two \u escapes: write it as UTF-8`, s)
			}
			b.WriteRune(rune(u))
			i += 4
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String(), nil
}
