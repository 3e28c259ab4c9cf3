package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/outboxcdc/outboxcdc/internal/exit"
)

// TestWrongUsage checks that too many or too few arguments are wrong usage, as an unknown flag is, and that the command
// does nothing.
func TestWrongUsage(t *testing.T) {
	lines := []string{"config from-debezium", "help nope", "help run nope"}
	root := newRootCommand()
	addCompletion(root)
	eachCommand(root, func(c *cobra.Command) {
		path := strings.TrimSpace(strings.TrimPrefix(c.CommandPath(), root.Name()))
		lines = append(lines, path+" nope nope nope", path+" --nope")
	})
	if len(lines) < 50 {
		t.Errorf("%d lines; are those of cobra's own commands among them?", len(lines))
	}
	ended, end := context.WithCancel(t.Context())
	end() // a command that starts ends at once
	for _, line := range lines {
		var out, errs bytes.Buffer
		code := execute(ended, strings.Fields(line), &out, &errs)
		if code != exit.Usage || out.Len() > 0 || !strings.HasPrefix(errs.String(), "outboxcdc: ") ||
			strings.Count(errs.String(), "\n") != 2 || !strings.HasSuffix(errs.String(), " --help\" for usage.\n") {
			t.Errorf("outboxcdc %s: %d, and it says %q %q", line, code, out.String(), errs.String())
		}
	}
}

// TestDidYouMean checks the suggestions for a misspelled command, flag or setting.
func TestDidYouMean(t *testing.T) {
	for line, want := range map[string]string{
		"rnu":              `did you mean "run"?`,
		"config valdate":   `did you mean "validate"?`,
		"peek --limt 3":    "did you mean --limit?",
		"run --slot x":     "did you mean --set postgres.slot=…?",
		"run --log-level":  "unknown flag: --log-level\n",
		"something":        "unknown command \"something\" for \"outboxcdc\"\n",
		"dlq list --payld": "did you mean --payload?",
	} {
		if code, _, errs := said(t, strings.Fields(line)...); code != exit.Usage || !strings.Contains(errs, want) {
			t.Errorf("outboxcdc %s: %d %q, want %q", line, code, errs, want)
		}
	}
	if code, out, _ := said(t, "--version"); code != exit.OK || !strings.HasPrefix(out, "outboxcdc version ") {
		t.Errorf("--version: %d %q", code, out)
	}
}

// TestHelp checks that help for an existing command succeeds.
func TestHelp(t *testing.T) {
	for line, has := range map[string]string{"help": "Available Commands", "help dlq retry": "outboxcdc dlq retry", "help help": "help for any command", "help completion bash": "bash"} {
		if code, out, errs := said(t, strings.Fields(line)...); code != exit.OK || errs != "" || !strings.Contains(out, has) {
			t.Errorf("%s: %d %q %q", line, code, out, errs)
		}
	}
}
