// Package deploy tests the files for supervisors in this directory against the product.
package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/config"
)

const (
	unitFile        = "systemd/outboxcdc.service"
	auditUnitFile   = "systemd/outboxcdc-audit.service"
	auditTimerFile  = "systemd/outboxcdc-audit.timer"
	retainUnitFile  = "systemd/outboxcdc-retain.service"
	retainTimerFile = "systemd/outboxcdc-retain.timer"
)

var unitFiles = []string{unitFile, auditUnitFile, auditTimerFile, retainUnitFile, retainTimerFile}

// TestMain lets the tests read the copy of this directory that test/mutants makes for a wrong rule.
func TestMain(m *testing.M) {
	if dir := os.Getenv("OUTBOXCDC_TEST_DEPLOY"); dir != "" {
		if err := os.Chdir(dir); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// unit returns the directives of the daemon's unit by name.
func unit(t *testing.T) map[string][]string {
	t.Helper()
	return directives(t, unitFile)
}

func directives(t *testing.T, file string) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
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
	// With a limit, a Kafka or Postgres that is away for long would end the daemon for good.
	if got := only(t, u, "StartLimitIntervalSec"); got != "0" {
		t.Errorf("StartLimitIntervalSec=%s", got)
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
	checkSecretsAndSandbox(t, unitFile, 2)
}

// checkSecretsAndSandbox checks that a unit names existing settings, and gives its process no privileges.
func checkSecretsAndSandbox(t *testing.T, file string, secrets int) {
	t.Helper()
	u := directives(t, file)
	cfg := config.Default()
	known := map[string]bool{}
	for _, s := range cfg.Settings() {
		known[config.EnvName(s.Path)] = true
	}
	text, err := os.ReadFile(file)
	must(t, err)
	named := 0
	for line := range strings.Lines(string(text)) {
		if _, env, ok := strings.Cut(line, "Environment="); ok { // also in comments
			name, value, _ := strings.Cut(strings.TrimSpace(env), "=")
			if name == "TMPDIR" {
				continue
			}
			_, credential, _ := strings.Cut(value, "%d/")
			if value == "/dev/null" && known[name] { // the process does not read it
				continue
			}
			if !known[name] || !strings.Contains(string(text), "LoadCredential="+credential+":") {
				t.Errorf("%s=%s: no such setting or credential", name, value)
			}
			named++
		}
	}
	if named != secrets {
		t.Errorf("%d secrets are named, not %d", named, secrets)
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

// TestAuditUnit checks that the audit runs as the daemon does, with its settings, secrets and restrictions, and that
// the timer starts it often enough for --since.
func TestAuditUnit(t *testing.T) {
	u, daemon := directives(t, auditUnitFile), unit(t)
	checkSecretsAndSandbox(t, auditUnitFile, 2)
	differsIn(t, u, "StartLimitIntervalSec", "StartLimitBurst", "RestartSec", "RestartPreventExitStatus", "TimeoutStartSec")
	if !slices.Equal(u["Environment"], append(slices.Clone(daemon["Environment"]), "TMPDIR=/var/tmp")) {
		t.Errorf("Environment=%q", u["Environment"])
	}
	// An audit with findings is not repeated. One that could not compare is repeated a few times, and then the unit fails.
	if only(t, u, "Type") != "oneshot" || only(t, u, "RestartPreventExitStatus") != "1 2 77 78" {
		t.Errorf("Type=%s RestartPreventExitStatus=%s", u["Type"], u["RestartPreventExitStatus"])
	}
	if burst, err := strconv.Atoi(only(t, u, "StartLimitBurst")); err != nil || burst < 2 || only(t, u, "StartLimitIntervalSec") != "1h" || only(t, u, "RestartSec") != "10min" {
		t.Errorf("%s starts in %s, one each %s", u["StartLimitBurst"], u["StartLimitIntervalSec"], u["RestartSec"])
	}
	start, run := strings.Fields(only(t, u, "ExecStart")), strings.Fields(only(t, daemon, "ExecStart"))
	if len(start) != 8 || start[0] != run[0] || start[1] != "audit" || !slices.Equal(start[2:4], run[2:4]) || start[4] != "--since" || start[6] != "--metrics" ||
		filepath.Dir(start[7]) != "/var/lib/"+only(t, u, "StateDirectory") {
		t.Fatalf("ExecStart=%q", start)
	}
	since, err := time.ParseDuration(start[5])
	if err != nil || since < 25*time.Hour {
		t.Errorf("--since %s", start[5])
	}
	timer := directives(t, auditTimerFile)
	if !strings.HasPrefix(only(t, timer, "OnCalendar"), "*-*-* ") || only(t, timer, "Persistent") != "yes" || only(t, timer, "WantedBy") != "timers.target" {
		t.Errorf("%q", timer)
	}
}

// differsIn checks that a unit which ends by itself has the directives of the daemon, which runs until it is stopped,
// except for those that differ for this reason, and those of the unit itself.
func differsIn(t *testing.T, u map[string][]string, own ...string) {
	t.Helper()
	daemon := unit(t)
	own = append(own, "Description", "Type", "NotifyAccess", "ExecStart", "ExecReload", "WatchdogSec", "TimeoutStopSec", "MemoryMax", "WantedBy", "StateDirectory", "Environment")
	for name, values := range daemon {
		if !slices.Contains(own, name) && !slices.Equal(u[name], values) {
			t.Errorf("%s=%q, and the daemon has %q", name, u[name], values)
		}
	}
	for name := range u {
		if !slices.Contains(own, name) && daemon[name] == nil {
			t.Errorf("%s=%q, and the daemon has none", name, u[name])
		}
	}
}

// TestRetainUnit checks that retain runs with the daemon's settings and restrictions, and with a role of its own, and
// that the timer is the only one that starts it again.
func TestRetainUnit(t *testing.T) {
	u := directives(t, retainUnitFile)
	checkSecretsAndSandbox(t, retainUnitFile, 1)
	differsIn(t, u, "StartLimitIntervalSec", "Restart", "RestartSec", "RestartPreventExitStatus", "LoadCredential")
	if u["Restart"] != nil || only(t, u, "Type") != "oneshot" {
		t.Errorf("Type=%s Restart=%s", u["Type"], u["Restart"])
	}
	if got := only(t, u, "LoadCredential"); strings.HasSuffix(got, "/postgres_url") {
		t.Errorf("LoadCredential=%s: the daemon's role does not own the tables", got)
	}
	start, run := strings.Fields(only(t, u, "ExecStart")), strings.Fields(only(t, unit(t), "ExecStart"))
	if len(start) != 6 || start[0] != run[0] || start[1] != "retain" || !slices.Equal(start[2:4], run[2:4]) || start[4] != "--metrics" ||
		filepath.Dir(start[5]) != "/var/lib/"+only(t, u, "StateDirectory") {
		t.Errorf("ExecStart=%q", start)
	}
	timer := directives(t, retainTimerFile)
	if only(t, timer, "OnCalendar") != "*:0/10" || only(t, timer, "WantedBy") != "timers.target" {
		t.Errorf("%q", timer)
	}
}

// TestUnitsPublish runs the lines of the units that copy the metrics for node_exporter.
func TestUnitsPublish(t *testing.T) {
	for _, file := range []string{auditUnitFile, retainUnitFile} {
		t.Run(filepath.Base(file), func(t *testing.T) { unitPublishes(t, file) })
	}
}

func unitPublishes(t *testing.T, unitFile string) {
	text, err := os.ReadFile(unitFile)
	must(t, err)
	_, line, found := strings.Cut(string(text), "\n#ExecStopPost=+/bin/sh -c '")
	line, _, ends := strings.Cut(line, "'\n")
	if !found || !ends {
		t.Fatal("no such line")
	}
	state, collector := t.TempDir(), t.TempDir()
	from := "/var/lib/" + only(t, directives(t, unitFile), "StateDirectory")
	script := strings.NewReplacer("/var/lib/node_exporter/textfile", collector, from, state).Replace(line)
	_, file, _ := strings.Cut(only(t, directives(t, unitFile), "ExecStart"), "--metrics "+from+"/")
	must(t, os.WriteFile(filepath.Join(state, file), []byte("outboxcdc_audit_rows 1\n"), 0o600))
	for range 2 {
		if out, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", script).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	entries, err := os.ReadDir(collector)
	if err != nil || len(entries) != 1 || filepath.Ext(entries[0].Name()) != ".prom" {
		t.Fatalf("%v %v", entries, err)
	}
	info, err := entries[0].Info()
	if err != nil || info.Mode().Perm() != 0o644 || info.Size() == 0 {
		t.Errorf("%v %v", info, err)
	}
}

// TestUnitVerifies checks the units with systemd-analyze.
func TestUnitVerifies(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("SKIPPED, systemd-analyze IS NOT INSTALLED: TestUnit has checked the rest")
	}
	// The binary need not be installed.
	self, err := os.Executable()
	must(t, err)
	dir := t.TempDir()
	for _, name := range unitFiles {
		text, err := os.ReadFile(name)
		must(t, err)
		text = []byte(strings.ReplaceAll(string(text), "/usr/local/bin/outboxcdc", self))
		text = []byte(strings.Replace(string(text), "\n#ExecStopPost=", "\nExecStopPost=", 1)) // the line for node_exporter, too
		must(t, os.WriteFile(filepath.Join(dir, filepath.Base(name)), text, 0o600))
	}
	for _, name := range unitFiles {
		file := filepath.Join(dir, filepath.Base(name))
		if out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", file).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

// must fails the test with an error that no step of it expects.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
