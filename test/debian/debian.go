// Package debian fetches programs that a test needs and does not install: apt-get downloads a package of Debian, and
// its files are unpacked into the cache of fetched servers. No service starts.
package debian

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/outboxcdc/outboxcdc/test/child"
)

// Tool returns the path of a program on the PATH, else of the one in usr/bin of a package.
func Tool(ctx context.Context, pkg, name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	dir, err := Unpack(ctx, pkg)
	if err != nil {
		return "", fmt.Errorf("there is no %s, and Debian's cannot be fetched (install %s, or let apt-get reach its archive): %w", name, pkg, err)
	}
	return filepath.Join(dir, "usr", "bin", name), nil
}

// Unpack returns a folder with the files of a package, and of further ones such as its libraries.
func Unpack(ctx context.Context, pkg string, further ...string) (dir string, err error) {
	return child.Fill(ctx, pkg+"-debian", func(stage string) (string, error) {
		return unpack(stage, append([]string{pkg}, further...))
	})
}

// unpack fetches the packages. A machine may have no package list yet, so unpack fetches one and keeps it apart from
// the machine's own.
func unpack(stage string, pkgs []string) (string, error) {
	for _, dir := range []string{"lists/partial", "root"} {
		if err := os.MkdirAll(filepath.Join(stage, dir), 0o755); err != nil {
			return "", err
		}
	}
	own := []string{"-o", "Dir::State::Lists=" + filepath.Join(stage, "lists"), "-o", "Dir::Cache=" + stage, "-o", "APT::Sandbox::User=root"}
	err := run(stage, "apt-get", append([]string{"download"}, pkgs...)...)
	if err != nil {
		if err = run(stage, "apt-get", append(own, "-qq", "update")...); err == nil {
			err = run(stage, "apt-get", slices.Concat(own, []string{"download"}, pkgs)...)
		}
	}
	if err != nil {
		return "", err
	}
	root := filepath.Join(stage, "root")
	for _, pkg := range pkgs {
		debs, _ := filepath.Glob(filepath.Join(stage, pkg+"_*.deb"))
		if len(debs) != 1 {
			return "", fmt.Errorf("apt-get has downloaded %d packages %s", len(debs), pkg)
		}
		if err := run(stage, "dpkg-deb", "-x", debs[0], root); err != nil {
			return "", err
		}
	}
	return root, nil
}

func run(dir, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w; its output:\n%s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}
