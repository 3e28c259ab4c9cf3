package main

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/internal/exit"
)

func said(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = execute(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

// TestCompletion checks that each shell gets a script, that another word is wrong usage, and that values of flags are
// completed.
func TestCompletion(t *testing.T) {
	for shell, has := range map[string]string{
		"bash": "complete -o default -F __start_outboxcdc", "zsh": "#compdef outboxcdc", "fish": "complete -c outboxcdc", "powershell": "Register-ArgumentCompleter",
	} {
		code, out, errs := said(t, "completion", shell)
		if code != exit.OK || errs != "" || !strings.Contains(out, has) {
			t.Errorf("%s: %d %q", shell, code, errs)
		}
	}
	for _, args := range [][]string{{"completion"}, {"completion", "tcsh"}} {
		if code, _, errs := said(t, args...); code != exit.Usage || errs == "" {
			t.Errorf("%q: %d %q", args, code, errs)
		}
	}
	for line, want := range map[string]string{
		"version -o |":    "text json :4",
		"peek --output |": "text json :4",
		"run -c |":        "yaml yml :8",
		"dl|":             "dlq :4",
		"dlq re|":         "retry :4",
	} {
		args := append([]string{"__completeNoDesc"}, strings.Split(strings.TrimSuffix(line, "|"), " ")...)
		_, out, _ := said(t, args...)
		if got := strings.Join(strings.Fields(out), " "); got != want {
			t.Errorf("%s completes to %q, not %q", line, got, want)
		}
	}
}

// TestCompletionInBash completes with the script in bash.
func TestCompletionInBash(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("bash is not installed; TestCompletion has checked the script")
	}
	_, script, _ := said(t, "completion", "bash")
	cmd := exec.CommandContext(t.Context(), bash, "--norc", "-n")
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
