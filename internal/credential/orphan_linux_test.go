package credential

import (
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestNothingRunsOn: what a command has started is killed when the command ends, and then is no zombie, although
// orphans become children of this process, as they do of the first one of a container.
func TestNothingRunsOn(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) })
	for script, want := range map[string]string{
		"sleep 300 >/dev/null 2>&1 & echo Geh3im":                         "",
		"(sleep 300 & sleep 300 & wait) >/dev/null 2>&1 & echo Geh3im":    "",
		"sleep 300 & echo Geh3im":                                         "kept its output open",
		"sleep 300 2>/dev/null & echo Geh3im; exit 3":                     "exit status 3",
		"(sleep 300 & sleep 300 & wait) & echo Geh3im >&2; kill -KILL $$": `signal: killed: "Geh3im"`,
	} {
		got, err := Run(t.Context(), sh(script), nil)
		if want == "" && (got != "Geh3im" || err != nil) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %q, %v", script, got, err)
		}
		for end := time.Now().Add(20 * time.Second); !errors.Is(unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil), unix.ECHILD); {
			if time.Now().After(end) {
				t.Fatalf("%s: there is still a process", script)
			}
			time.Sleep(time.Millisecond)
		}
	}
}
