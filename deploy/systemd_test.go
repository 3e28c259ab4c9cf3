// Package deploy holds the tests of what is beside it: files for supervisors, held against the product that they start.
package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/config"
)

const unitFile = "systemd/outboxcdc.service"

// unit is the directives of the unit, by name.
func unit(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(unitFile)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if ok && !strings.HasPrefix(name, "#") {
			all[name] = append(all[name], value)
		}
	}
	return all
}

func only(t *testing.T, u map[string][]string, name string) string {
	t.Helper()
	if len(u[name]) != 1 {
		t.Fatalf("%s is there %d times", name, len(u[name]))
	}
	return u[name][0]
}

// The unit does what the exit codes ask for, waits for the drain, and names settings that exist.
func TestUnit(t *testing.T) {
	u := unit(t)
	cfg := config.Default()
	if got := only(t, u, "Type"); got != "notify" {
		t.Errorf("Type=%s", got)
	}
	// Go ends with 2 when it crashes, so that must be restarted, as must 1.
	if got := only(t, u, "RestartPreventExitStatus"); got != "65 77 78 79" || only(t, u, "Restart") != "on-failure" {
		t.Errorf("RestartPreventExitStatus=%s Restart=%s", got, only(t, u, "Restart"))
	}
	if stop, err := time.ParseDuration(only(t, u, "TimeoutStopSec")); err != nil || stop < cfg.ShutdownTimeout+10*time.Second {
		t.Errorf("TimeoutStopSec=%v, shutdown_timeout is %v", stop, cfg.ShutdownTimeout)
	}
	if _, err := time.ParseDuration(only(t, u, "WatchdogSec")); err != nil {
		t.Errorf("WatchdogSec: %v", err)
	}
	if got := only(t, u, "ExecReload"); !strings.Contains(got, "-HUP $MAINPID") {
		t.Errorf("ExecReload=%s", got)
	}
	known := map[string]bool{}
	for _, s := range cfg.Settings() {
		known[config.EnvName(s.Path)] = true
	}
	text, err := os.ReadFile(unitFile)
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for line := range strings.Lines(string(text)) {
		if _, env, ok := strings.Cut(line, "Environment="); ok { // the ones to uncomment, too
			name, value, _ := strings.Cut(strings.TrimSpace(env), "=")
			_, credential, _ := strings.Cut(value, "%d/")
			if !known[name] || !strings.Contains(string(text), "LoadCredential="+credential+":") {
				t.Errorf("%s=%s: no such setting or credential", name, value)
			}
			named++
		}
	}
	if named < 2 {
		t.Errorf("%d secrets are named", named)
	}
	for _, name := range []string{"DynamicUser", "NoNewPrivileges", "PrivateDevices", "MemoryDenyWriteExecute"} {
		if got := only(t, u, name); got != "yes" {
			t.Errorf("%s=%s", name, got)
		}
	}
	if !slices.Equal(u["CapabilityBoundingSet"], []string{""}) {
		t.Errorf("CapabilityBoundingSet=%q", u["CapabilityBoundingSet"])
	}
}

// systemd itself understands every line of it.
func TestUnitVerifies(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("SKIPPED, THERE IS NO systemd-analyze: TestUnit has looked at what is ours")
	}
	text, err := os.ReadFile(unitFile)
	if err != nil {
		t.Fatal(err)
	}
	// The binary that it starts need not be installed here.
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "outboxcdc.service")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(text), "/usr/local/bin/outboxcdc", self)), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", file).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}
