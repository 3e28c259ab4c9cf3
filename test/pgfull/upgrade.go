package pgfull

import (
	"context"
	"os"
	"path/filepath"
	"regexp"

	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// checksums is the line of pg_controldata about a cluster with checksums.
var checksums = regexp.MustCompile(`(?m)^Data page checksum version: +[1-9]`)

// Upgrade runs pg_upgrade of this build. from and to are the folders ([pgtest.Options].Dir) of two servers that were
// stopped cleanly: of one of the older build, and of a new and empty one of this build.
func (b *Build) Upgrade(ctx context.Context, older *Build, from, to string) error {
	oldData, newData := filepath.Join(from, "data"), filepath.Join(to, "data")
	// 18 creates clusters with checksums, 17 without.
	if state, err := older.Run(ctx, from, "pg_controldata", "--pgdata", oldData); err != nil {
		return err
	} else if !checksums.MatchString(state) {
		if _, err := older.Run(ctx, from, "pg_checksums", "--enable", "--no-sync", "--pgdata", oldData); err != nil {
			return err
		}
	}
	// Servers of pgtest require passwords.
	for _, data := range []string{oldData, newData} {
		file := filepath.Join(data, "pg_hba.conf")
		usual, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte("local all all trust\n"), 0o600); err != nil {
			return err
		}
		defer os.WriteFile(file, usual, 0o600) //nolint:errcheck // a start with the wrong file fails
	}
	_, err := b.Run(ctx, to, "pg_upgrade", "--username", pgtest.Superuser, "--socketdir", to, "--no-sync",
		"--old-bindir", older.BinDir, "--new-bindir", b.BinDir, "--old-datadir", oldData, "--new-datadir", newData)
	return err
}
