package process

import "strings"

// Tail keeps the end of what is written to it, at most Max bytes.
type Tail struct {
	Max  int
	kept []byte
	cut  bool // something is dropped
}

// Write implements [io.Writer]. It returns no error.
func (t *Tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if n := len(t.kept) - t.Max; n > 0 {
		t.kept, t.cut = append(t.kept[:0], t.kept[n:]...), true
	}
	return len(p), nil
}

// Text returns the end, without space around it.
func (t *Tail) Text() string { return strings.TrimSpace(string(t.kept)) }

// Lines is Text without the beginning of a line that is cut: a part of a secret could not be recognised.
func (t *Tail) Lines() string {
	text := string(t.kept)
	if t.cut {
		_, text, _ = strings.Cut(text, "\n")
	}
	return strings.TrimSpace(text)
}
