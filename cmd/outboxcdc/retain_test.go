package main

import (
	"strings"
	"testing"
)

// TestRetainRefuses checks what retain refuses before it connects, and that --yes and --dry-run accept a short time.
func TestRetainRefuses(t *testing.T) {
	file := writeFile(t, "outboxcdc.yaml", "postgres: {url: 'postgres://u@127.0.0.1:1/d'}\nretention: {mode: truncate, slots: [other]}\n")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--set", "retention.mode=off"}, 78, "retention.mode"},
		{[]string{"--set", "retention.keep=59m"}, 78, "give --yes"},
		{[]string{"--set", "retention.keep=59m", "--yes"}, 69, "127.0.0.1"},
		{[]string{"--set", "retention.keep=59m", "--dry-run"}, 69, "127.0.0.1"},
		{nil, 69, "127.0.0.1"},
		{[]string{"--despite-slot", "unknown"}, 2, "slot unknown is not one of those that retention waits for: outboxcdc, other"},
		{[]string{"--listen", ":0"}, 2, "--listen needs --every"},
		{[]string{"--every", "1ms"}, 2, "at least 1s"},
		{[]string{"--set", "outbox.columns.created_at="}, 78, "the age of rows is not known"},
	} {
		code, out, errs := commandLine(t, append([]string{"retain", "-c", file}, c.args...)...)
		if code != c.code || !strings.Contains(errs, c.want) || out != "" {
			t.Errorf("%v: exit code %d, want %d; %q %q", c.args, code, c.code, out, errs)
		}
	}
}
