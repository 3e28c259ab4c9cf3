package daemon

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/outboxcdc/outboxcdc/test/child"
)

func TestParseMetrics(t *testing.T) {
	got := ParseMetrics("# HELP a a state\n# TYPE a gauge\na{state=\"waiting for it\"} 1\nb 2.5e+06\n\nbroken\n")
	if want := map[string]float64{`a{state="waiting for it"}`: 1, "b": 2.5e6}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("OUTBOXCDC_LOG_LEVEL", "debug")
	t.Setenv("PGHOST", "elsewhere")
	env := Environment("OUTBOXCDC_X=1")
	if slices.ContainsFunc(env, func(s string) bool { return s == "OUTBOXCDC_LOG_LEVEL=debug" || s == "PGHOST=elsewhere" }) ||
		!slices.Contains(env, "OUTBOXCDC_X=1") || !slices.Contains(env, "PATH="+os.Getenv("PATH")) {
		t.Errorf("%q", env)
	}
}

func TestExitCode(t *testing.T) {
	start := func(script string) *child.Process {
		t.Helper()
		p, err := child.Start(child.Spec{Path: "/bin/sh", Args: []string{"-c", script}, LogFile: filepath.Join(t.TempDir(), "log"), DeathSignal: syscall.SIGKILL})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for script, want := range map[string]int{"exit 0": 0, "exit 79": 79, "kill -9 $$": 137} {
		p := start(script)
		<-p.Done()
		if got := ExitCode(p); got != want {
			t.Errorf("%s: %d, want %d", script, got, want)
		}
	}
	p := start("trap 'exit 3' TERM; while :; do sleep 0.01; done")
	if err := Stop(t.Context(), p); err == nil || ExitCode(p) != 3 && ExitCode(p) != 143 { // 143: the signal came before the trap
		t.Errorf("stop: %v, exit code %d", err, ExitCode(p))
	}
}
