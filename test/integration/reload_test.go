package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// settingsFile is a configuration file that a test replaces atomically, as a rotation of secrets does.
type settingsFile struct {
	o    *outbox
	path string
}

// fileInstead moves settings from the environment into a file, which a test may change.
func (o *outbox) fileInstead(variables ...string) (*settingsFile, []string) {
	o.t.Helper()
	env := slices.DeleteFunc(o.env(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains(variables, name)
	})
	return &settingsFile{o, filepath.Join(o.t.TempDir(), "outboxcdc.yaml")}, env
}

func (f *settingsFile) write(format string, args ...any) {
	f.o.t.Helper()
	must(f.o.t, os.WriteFile(f.path+".new", fmt.Appendf(nil, format, args...), 0o600))
	must(f.o.t, os.Rename(f.path+".new", f.path))
}

// hangUp sends SIGHUP and waits for the metric with the result.
func (r *relay) hangUp(want float64) {
	r.t.Helper()
	before := len(r.logged("configuration reloaded; new connections use the new secrets and certificates")) +
		len(r.logged("configuration reload failed; keeping the previous configuration"))
	must(r.t, r.proc.Signal(syscall.SIGHUP))
	await(r.t, patience, "the configuration to be reloaded", func() error {
		after := len(r.logged("configuration reloaded; new connections use the new secrets and certificates")) +
			len(r.logged("configuration reload failed; keeping the previous configuration"))
		return waitFor(after > before)
	})
	m, err := r.metrics()
	must(r.t, err)
	if got := m["outboxcdc_config_last_reload_successful"]; got != want {
		r.t.Fatalf("outboxcdc_config_last_reload_successful is %v, want %v", got, want)
	}
}

// SIGHUP under load: a new password and log level take effect without disturbing the stream; a broken file changes
// nothing and is reported; settings that need a restart are named.
func TestReload(t *testing.T) {
	t.Parallel()
	rnd := newRand(t)
	o := newOutbox(t, options{})
	o.sample()
	login, _ := o.ownRole("LOGIN REPLICATION")
	f, env := o.fileInstead("OUTBOXCDC_POSTGRES_URL", "OUTBOXCDC_LOG_LEVEL")
	f.write("postgres: {url: %q}\nlog: {level: info}\n", o.pg.URL(o.name, login, password))
	r := o.startAs(slices.Concat(o.args, []string{"run", "-c", f.path}), append(env, steady))
	r.awaitState("streaming", patience)
	w := o.write(load{rand: rnd})
	w.awaitCommits(20)
	m, err := r.metrics()
	must(t, err)
	began := m["outboxcdc_config_last_reload_success_timestamp_seconds"]
	if m["outboxcdc_config_last_reload_successful"] != 1 || began == 0 {
		t.Errorf("at the start: %v at %v", m["outboxcdc_config_last_reload_successful"], began)
	}

	f.write("postgres: {url: %q, slt: x}\nlog: {level: debug}\n", o.pg.URL(o.name, login, "reload-s3cr3t"))
	r.hangUp(0)
	if r.hasDebugLines() {
		t.Error("the level of a broken file is in effect")
	}

	o.exec(`ALTER ROLE ` + login + ` PASSWORD 'reload-s3cr3t'`)
	f.write("postgres: {url: %q}\ntuning: {status_interval: 2s}\nlog: {level: debug}\n", o.pg.URL(o.name, login, "reload-s3cr3t"))
	r.hangUp(1)
	const restart = "changed settings need a restart of the daemon" // logged after the reload
	await(t, patience, restart, func() error { return waitFor(len(r.logged(restart)) > 0) })
	if named := r.logged(restart); len(named) != 1 ||
		fmt.Sprint(named[0]["settings"]) != "[tuning.status_interval]" {
		t.Errorf("settings that need a restart: %v", named)
	}
	m, err = r.metrics()
	must(t, err)
	if m["outboxcdc_config_last_reload_success_timestamp_seconds"] <= began {
		t.Error("the time of the reload is that of the start")
	}
	w.awaitCommits(20)
	noReconnects(t, r) // a reload ends no session
	o.endSessions()
	await(t, patience, "the next session", func() error { return waitFor(r.sessionsEnded() > 0) })
	r.awaitState("streaming", patience)
	o.awaitHealed()
	w.stop()
	if m, err = r.metrics(); err != nil || m[`outboxcdc_replication_reconnects_total{reason="postgres_credentials"}`] != 0 {
		t.Errorf("the new password was not the one used: %v %v", m[`outboxcdc_replication_reconnects_total{reason="postgres_credentials"}`], err)
	}
	await(t, patience, "lines of level debug", func() error { return waitFor(r.hasDebugLines()) })
	o.repeatsAtMost(o.verify(patience), 0, daemonRemembers)
	log, err := os.ReadFile(r.log)
	must(t, err)
	for _, secret := range []string{password, "reload-s3cr3t"} {
		if strings.Contains(string(log), secret) {
			t.Errorf("the log has the password %q", secret)
		}
	}
}

// hasDebugLines reports whether the log has a line of level debug.
func (r *relay) hasDebugLines() bool {
	return slices.ContainsFunc(r.entries(), func(e entry) bool { return e["level"] == "DEBUG" })
}
