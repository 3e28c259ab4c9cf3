package outbox

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/outbox"
)

// The service in docs/producers.md compiles, and its tests pass, in a module that requires only the module outbox.
func TestProducersGuide(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/producers.md")
	must(t, err)
	dir := t.TempDir()
	files := 0
	for _, m := range regexp.MustCompile("(?s)This is `([a-z_]+\\.go)`:\n\n```go\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		must(t, os.WriteFile(filepath.Join(dir, m[1]), []byte(m[2]), 0o644))
		files++
	}
	if files != 2 {
		t.Fatalf("the page has %d files, want shop.go and shop_test.go", files)
	}
	module, err := filepath.Abs("../../../outbox")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "go.mod"), fmt.Appendf(nil,
		"module shop\n\ngo 1.24.0\n\nrequire github.com/outboxcdc/outboxcdc/outbox v0.0.0\n\nreplace github.com/outboxcdc/outboxcdc/outbox => %s\n", module), 0o644))
	sums, err := os.ReadFile("../../../outbox/go.sum")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o644))
	for _, args := range []string{"vet ./...", "test ./... -update-contracts", "test -count=1 ./..."} {
		cmd := exec.Command("go", strings.Fields(args)...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", args, err, out)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "testdata", "contract", "order.OrderPaid.json")); err != nil {
		t.Error(err)
	}
}

// The SQL for other languages takes the lock that Lock takes.
func TestLockInProducersGuide(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/producers.md")
	must(t, err)
	m := regexp.MustCompile(`SELECT pg_advisory_xact_lock\((.*)\);`).FindSubmatch(page)
	if m == nil {
		t.Fatal("the page has no lock in SQL")
	}
	conn := connect(t, newDatabase(t))
	for _, key := range [][2]string{{"order", "42"}, {"ü", "a/b"}, {"x", ""}} {
		var n int64
		sql := strings.NewReplacer("'order'", "$1::text", "'42'", "$2::text").Replace(string(m[1]))
		must(t, conn.QueryRow(testContext(t), "SELECT "+sql, key[0], key[1]).Scan(&n))
		if got := outbox.LockStatement(key[0], key[1]).Args[0]; got != n {
			t.Errorf("%q: the lock is %d, and %d in SQL", key, got, n)
		}
	}
}
