package child

import (
	"os"
	"testing"
)

// SkipShort skips a test that needs a server, with -short. CI does not run such tests with -short, so with CI=true it
// fails.
func SkipShort(t testing.TB) {
	t.Helper()
	if !testing.Short() {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("-short runs no server, and CI has to run it")
	}
	t.Skip("-short runs no server")
}

// Need skips a test if err is not nil: there is no what here. With CI=true it fails.
func Need(t testing.TB, what string, err error) {
	t.Helper()
	switch {
	case err == nil:
	case os.Getenv("CI") == "true":
		t.Fatal(err)
	default:
		t.Skipf("SKIPPED, THERE IS NO %s: %v", what, err)
	}
}
