// Package debian fetches programs that a test needs and does not install: apt-get downloads a package of Debian, and
// its files are unpacked into the cache of fetched servers. No service starts.
package debian

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/outboxcdc/outboxcdc/test/child"
)

// Tool returns the path of a program on the PATH, else of the one in usr/bin of a package.
func Tool(ctx context.Context, pkg, name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	dir, err := child.Fill(ctx, pkg+"-debian", func(stage string) (string, error) { return unpack(stage, pkg) })
	if err != nil {
		return "", fmt.Errorf("there is no %s, and Debian's cannot be fetched (install %s, or let apt-get reach its archive): %w", name, pkg, err)
	}
	return filepath.Join(dir, "usr", "bin", name), nil
}

// unpack fetches the package. A machine may have no package list yet, so unpack fetches one and keeps it apart from the
// machine's own.
func unpack(stage, pkg string) (string, error) {
	for _, dir := range []string{"lists/partial", "root"} {
		if err := os.MkdirAll(filepath.Join(stage, dir), 0o755); err != nil {
			return "", err
		}
	}
	own := []string{"-o", "Dir::State::Lists=" + filepath.Join(stage, "lists"), "-o", "Dir::Cache=" + stage, "-o", "APT::Sandbox::User=root"}
	err := run(stage, "apt-get", "download", pkg)
	if err != nil {
		if err = run(stage, "apt-get", append(own, "-qq", "update")...); err == nil {
			err = run(stage, "apt-get", append(own, "download", pkg)...)
		}
	}
	if err != nil {
		return "", err
	}
	debs, _ := filepath.Glob(filepath.Join(stage, pkg+"_*.deb"))
	if len(debs) != 1 {
		return "", fmt.Errorf("apt-get has downloaded %d packages", len(debs))
	}
	root := filepath.Join(stage, "root")
	return root, run(stage, "dpkg-deb", "-x", debs[0], root)
}

func run(dir, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w; its output:\n%s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}
