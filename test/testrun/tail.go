package main

import (
	"slices"
	"strings"
)

// tail keeps the end of an output: it has what matters, and a test may print a lot.
type tail struct {
	lines []string
	size  int
	cut   bool
}

const tailBytes = 256 << 10

func (t *tail) add(s string) {
	t.lines = append(t.lines, s)
	t.size += len(s)
	for t.size > tailBytes && len(t.lines) > 1 {
		t.size -= len(t.lines[0])
		t.lines = t.lines[1:]
		t.cut = true
	}
}

func (t *tail) text() string {
	s := strings.Join(t.lines, "")
	if t.cut {
		s = "[the beginning is omitted]\n" + s
	}
	if s != "" && !strings.HasSuffix(s, "\n") {
		s += "\n"
	}
	return s
}

// beginning returns the first lines, shortened: a test prints what is wrong before it prints long logs.
func (t *tail) beginning() string {
	const most, width = 5, 300
	lines := strings.Split(strings.TrimSpace(t.ownOutput()), "\n")
	for i, line := range lines {
		if len(line) > width {
			lines[i] = line[:width] + "…"
		}
	}
	return "        " + strings.Join(lines[:min(most, len(lines))], "\n        ") + "\n"
}

// ownOutput returns the text without go test's own lines about a test: start, pause, failure.
func (t *tail) ownOutput() string {
	told := *t
	told.lines = slices.DeleteFunc(slices.Clone(t.lines), func(line string) bool {
		line = strings.TrimLeft(line, " ")
		return strings.HasPrefix(line, "=== RUN") || strings.HasPrefix(line, "=== PAUSE") || strings.HasPrefix(line, "=== CONT") ||
			strings.HasPrefix(line, "--- FAIL")
	})
	return told.text()
}

// reason returns the last line of a skipped test, without its source position.
func (t *tail) reason() string {
	for _, line := range slices.Backward(t.lines) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "--- ") || strings.HasPrefix(line, "=== ") {
			continue
		}
		if _, why, ok := strings.Cut(line, ".go:"); ok {
			if _, why, ok = strings.Cut(why, ": "); ok {
				return why
			}
		}
		return line
	}
	return "no reason given"
}
