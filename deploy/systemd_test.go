// Package deploy tests the files for supervisors in this directory against the product.
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

// unit returns the directives of the unit by name.
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

// TestUnit checks that the unit restarts according to the exit codes, waits for the drain, and names existing settings.
func TestUnit(t *testing.T) {
	u := unit(t)
	cfg := config.Default()
	if got := only(t, u, "Type"); got != "notify" {
		t.Errorf("Type=%s", got)
	}
	// A crash of a Go program has exit code 2, so 2 must cause a restart, as 1 does.
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
		if _, env, ok := strings.Cut(line, "Environment="); ok { // also in comments
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

// TestUnitVerifies checks the unit with systemd-analyze.
func TestUnitVerifies(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("SKIPPED, systemd-analyze IS NOT INSTALLED: TestUnit has checked the rest")
	}
	text, err := os.ReadFile(unitFile)
	if err != nil {
		t.Fatal(err)
	}
	// The binary need not be installed.
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
