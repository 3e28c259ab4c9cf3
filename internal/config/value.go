package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// raw is an unparsed value: text, a list of texts, a mapping of plain values, or the tables of outboxes.
type raw struct {
	text    string
	list    []string
	isList  bool
	isTree  bool    // a mapping, or a list whose items are not texts
	isEmpty bool    // with isTree: an empty mapping or list
	pairs   []pair  // with isTree: a mapping of plain values
	entries []entry // with isList and isTree: the tables of outboxes
}

// pair is a key of a mapping and its value.
type pair struct{ key, value string }

// quote quotes a text for a message, and cuts a long text.
func quote(s string) string {
	if r := []rune(s); len(r) > 80 {
		return strconv.Quote(string(r[:80])) + "…"
	}
	return strconv.Quote(s)
}

// parse parses r as a value of the type of zero.
func parse(r raw, zero any) (any, error) {
	switch zero.(type) {
	case []string:
		return parseList(r)
	case map[string]string:
		return parseMap(r, func(text string) (string, error) { return text, nil })
	case map[string]int:
		return parseMap(r, parseInt)
	}
	if r.isTree || r.isList {
		return nil, fmt.Errorf("must be a single value, not a list or a mapping")
	}
	switch zero.(type) {
	case string:
		return r.text, nil
	case bool:
		return parseBool(r.text)
	case int:
		return parseInt(r.text)
	case time.Duration:
		d, err := time.ParseDuration(r.text)
		if err != nil {
			return nil, fmt.Errorf("%s is not a duration; write a number with a unit, e.g. 500ms, 30s or 5m", quote(r.text))
		}
		return d, nil
	case ByteSize:
		return ParseByteSize(r.text)
	}
	panic(fmt.Sprintf("config: no parser for %T", zero)) // a test parses every setting
}

func parseList(r raw) (any, error) {
	if r.isTree {
		if r.isEmpty {
			return []string{}, nil
		}
		return nil, errors.New("must be a list of texts; in [ ] quote a text with a colon")
	}
	items := r.list
	if !r.isList {
		if strings.TrimSpace(r.text) == "" {
			return []string{}, nil
		}
		items = strings.Split(r.text, ",")
	}
	list := make([]string, 0, len(items))
	for _, item := range items {
		list = append(list, strings.TrimSpace(item))
	}
	return list, nil
}

func parseInt(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("%s is not a whole number", quote(text))
	}
	return n, nil
}

// parseMap parses a mapping, or text of the form key=value,key=value.
func parseMap[T any](r raw, parse func(string) (T, error)) (map[string]T, error) {
	pairs := r.pairs
	switch {
	case r.isTree && !r.isEmpty && pairs == nil, r.isList && len(r.list) > 0:
		return nil, errors.New("must be a mapping of single values")
	case !r.isTree && !r.isList:
		for item := range strings.SplitSeq(r.text, ",") {
			if strings.TrimSpace(item) == "" {
				continue
			}
			key, value, ok := strings.Cut(item, "=")
			if !ok {
				return nil, fmt.Errorf("%s is not key=value", quote(item))
			}
			pairs = append(pairs, pair{strings.TrimSpace(key), strings.TrimSpace(value)})
		}
	}
	out := make(map[string]T, len(pairs))
	for _, p := range pairs {
		if _, ok := out[p.key]; ok {
			return nil, fmt.Errorf("the key %s occurs twice", quote(p.key))
		}
		v, err := parse(p.value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.key, err)
		}
		out[p.key] = v
	}
	return out, nil
}

func parseBool(text string) (any, error) {
	switch text {
	case "true", "True", "TRUE":
		return true, nil
	case "false", "False", "FALSE":
		return false, nil
	}
	return nil, fmt.Errorf("%s is neither true nor false", quote(text))
}

// ByteSize is a number of bytes, written like 16MiB.
type ByteSize int64

// byteUnits are the units of sizes, binary and decimal.
var byteUnits = []struct {
	name  string
	bytes int64
}{
	{"GiB", 1 << 30},
	{"MiB", 1 << 20},
	{"KiB", 1 << 10},
	{"GB", 1e9},
	{"MB", 1e6},
	{"kB", 1e3},
	{"KB", 1e3},
	{"B", 1},
}

// ParseByteSize parses a whole number with a unit: B, KiB, MiB, GiB, kB, MB or GB; without a unit, bytes.
func ParseByteSize(text string) (ByteSize, error) {
	number, factor := text, int64(1)
	for _, u := range byteUnits {
		if rest, ok := strings.CutSuffix(text, u.name); ok {
			number, factor = strings.TrimSpace(rest), u.bytes
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s is not a size; write a whole number with a unit, e.g. 512KiB or 16MiB", quote(text))
	}
	if n > math.MaxInt64/factor || n < math.MinInt64/factor {
		return 0, fmt.Errorf("%s is too large", quote(text))
	}
	return ByteSize(n * factor), nil
}

// String is the exact size in the largest binary unit that divides it.
func (b ByteSize) String() string {
	for _, u := range byteUnits[:3] {
		if b != 0 && int64(b)%u.bytes == 0 {
			return strconv.FormatInt(int64(b)/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10) + "B"
}

// formatDuration drops the zero parts that Duration.String keeps: 5m rather than 5m0s.
func formatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
