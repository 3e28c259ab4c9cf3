// Package promtest provides a real Prometheus and promtool to tests: those on the PATH, else those of Debian's package
// "prometheus", which is unpacked into the cache of fetched servers and not installed, so that no service starts.
package promtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/child"
)

// Tool returns the path of "prometheus" or "promtool".
func Tool(ctx context.Context, name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	dir, err := child.Fill(ctx, "prometheus-debian", unpack)
	if err != nil {
		return "", fmt.Errorf("there is no %s, and Debian's cannot be fetched (install Prometheus, or let apt-get reach its archive): %w", name, err)
	}
	return filepath.Join(dir, "usr", "bin", name), nil
}

// NeedTool is Tool for a test, which is skipped without the tool; with CI=true it fails.
func NeedTool(t testing.TB, name string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	path, err := Tool(ctx, name)
	if err == nil {
		return path
	}
	if os.Getenv("CI") == "true" {
		t.Fatal(err)
	}
	t.Skipf("SKIPPED, THERE IS NO PROMETHEUS: %v", err)
	return ""
}

// unpack fetches the package. A machine may have no package list yet, so unpack fetches one and keeps it apart from the
// machine's own.
func unpack(stage string) (string, error) {
	for _, dir := range []string{"lists/partial", "root"} {
		if err := os.MkdirAll(filepath.Join(stage, dir), 0o755); err != nil {
			return "", err
		}
	}
	own := []string{"-o", "Dir::State::Lists=" + filepath.Join(stage, "lists"), "-o", "Dir::Cache=" + stage, "-o", "APT::Sandbox::User=root"}
	err := run(stage, "apt-get", "download", "prometheus")
	if err != nil {
		if err = run(stage, "apt-get", append(own, "-qq", "update")...); err == nil {
			err = run(stage, "apt-get", append(own, "download", "prometheus")...)
		}
	}
	if err != nil {
		return "", err
	}
	debs, _ := filepath.Glob(filepath.Join(stage, "prometheus_*.deb"))
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
