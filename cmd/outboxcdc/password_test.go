package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/exit"
)

// A password command that fails may succeed later, so a command ends with 69, and not as for a wrong setting. A
// connection string that cannot be read is one.
func TestPasswordCommandFails(t *testing.T) {
	clearEnv(t)
	const more = "\nretention: {mode: truncate}\n"
	fails := writeFile(t, "fails.yaml", "postgres: {url: 'postgres://u@127.0.0.1:1/d', password_command: [sh, -c, 'echo Geh3im; exit 3']}"+more)
	missing := writeFile(t, "missing.yaml", "postgres: {url_file: /nope}"+more)
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"retain", "-c", fails}, exit.Unavailable, "postgres.password_command: run \"sh\": exit status 3"},
		{[]string{"retain", "-c", missing}, exit.Config, "postgres.url_file"},
		{[]string{"standby", "clean", "--host", "h", "-c", fails}, exit.Unavailable, "postgres.password_command: run \"sh\": exit status 3"},
		{[]string{"standby", "clean", "--host", "h", "-c", missing}, exit.Config, "postgres.url_file"},
	} {
		code, out, errs := commandLine(t, c.args...)
		if code != c.code || !strings.Contains(errs, c.want) || strings.Contains(out+errs, "Geh3im") {
			t.Errorf("%v: exit code %d, want %d; %q %q", c.args, code, c.code, out, errs)
		}
	}
}

// Settings are read without running the command, by the daemon and by doctor, which checks it only if it is used.
func TestSettingsRunNoCommand(t *testing.T) {
	clearEnv(t)
	mark := filepath.Join(t.TempDir(), "mark")
	yaml := "postgres: {url: 'postgres://u@h/d', standbys: ['host=other'], password_command: [sh, -c, 'echo Geh3im; echo \"$PGHOST:$PGPORT\" > " + mark + "']}\n"
	cfg, err := config.Load([]string{writeFile(t, "c.yaml", yaml)}, nil)
	must(t, err)
	watched, others, err := watchedHosts(cfg)
	if err != nil || len(watched) != 1 || len(others) != 0 {
		t.Errorf("%v, %v, %v", watched, others, err)
	}
	warnOfOneHost(cfg, slog.New(slog.DiscardHandler))
	_, err = (&cleaner{host: "third"}).find(cfg)
	must(t, err)
	c := doctorOf(t, yaml)
	if text, err := os.ReadFile(mark); err == nil {
		t.Errorf("the command was run for %s", text)
	}
	if c.PasswordCommand == nil || c.NoPassword {
		t.Fatal("doctor does not check the command")
	}
	password, err := c.PasswordCommand(t.Context())
	text, err2 := os.ReadFile(mark)
	if err != nil || err2 != nil || password != "Geh3im" || string(text) != "h:5432\n" {
		t.Errorf("%q, %v; run for %s", password, errors.Join(err, err2), text)
	}

	file := writeFile(t, "url", "postgres://u:own@h/d")
	c = doctorOf(t, "postgres: {url_file: "+file+", password_command: [sh, -c, 'exit 1']}\n")
	if c.PasswordCommand != nil || c.NoPassword {
		t.Error("doctor checks a command that is not used")
	}
}

// The end of a command does not wait for one that hangs.
func TestHangingPasswordCommand(t *testing.T) {
	clearEnv(t)
	cfg, err := config.Load([]string{writeFile(t, "c.yaml", "postgres: {url: 'postgres://u@h/d', standbys: [auto], password_command: [sleep, '600']}\n")}, nil)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	watched, err := standbyHosts(cfg)
	must(t, err)
	if _, err := watched[0].Connect(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	must(t, checkOnePrimary(ctx, cfg))
}
