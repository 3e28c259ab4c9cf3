// Package promtest provides a real Prometheus and promtool to tests: those on the PATH, else those of Debian's package
// "prometheus", which is unpacked into the cache of fetched servers and not installed, so that no service starts.
package promtest

import (
	"context"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/debian"
)

// Tool returns the path of "prometheus" or "promtool".
func Tool(ctx context.Context, name string) (string, error) {
	return debian.Tool(ctx, "prometheus", name)
}

// NeedTool is Tool for a test, which is skipped without the tool; with CI=true it fails.
func NeedTool(t testing.TB, name string) string {
	t.Helper()
	child.SkipShort(t)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	path, err := Tool(ctx, name)
	child.Need(t, "PROMETHEUS", err)
	return path
}
