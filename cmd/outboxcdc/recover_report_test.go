package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/internal/audit"
	"github.com/outboxcdc/outboxcdc/internal/progress"
	"github.com/outboxcdc/outboxcdc/internal/recovery"
)

// TestLaterKeys: each comparison counts the keys with later events, prints the first ones, and writes all of them to
// the file, instead of those of the comparison before.
func TestLaterKeys(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	var out strings.Builder
	o := &operator{out: &out, meter: progress.New(os.Stderr), keysFile: file, hasOrder: true}
	for _, keys := range []int{shownKeys + 5, 2} {
		out.Reset()
		for n := range keys {
			must(t, o.Later(n+1, "order", fmt.Sprint("k", keys, "/", n)))
		}
		o.Compared(&recovery.Found{Result: &audit.Result{}, LaterKeys: keys})
		printed := strings.Count(out.String(), "    order\t")
		if want := fmt.Sprintf("%d keys have later events", keys); printed != min(keys, shownKeys) || !strings.Contains(out.String(), want) {
			t.Errorf("%d of %d keys are printed:\n%s", printed, keys, out.String())
		}
		if more := strings.Contains(out.String(), "and 5 more: --later-keys FILE"); more != (keys > shownKeys) {
			t.Errorf("prints:\n%s", out.String())
		}
		b, err := os.ReadFile(file)
		if err != nil || strings.Count(string(b), "\n") != keys || !strings.HasPrefix(string(b), "order\t"+quoted(fmt.Appendf(nil, "k%d/0", keys), true)+"\n") {
			t.Errorf("the file has %q, %v", b, err)
		}
	}
	broken := &operator{out: io.Discard, meter: progress.New(os.Stderr), keysFile: filepath.Join(file, "no", "folder")}
	if err := broken.Later(1, "order", "k"); err == nil {
		t.Error("a file that cannot be created is no error")
	}
}
