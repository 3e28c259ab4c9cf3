package pgfull

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// Every build runs as a server with contrib, and its pg_basebackup copies that server into one that starts as its
// standby.
func TestEveryMajor(t *testing.T) {
	for _, major := range Majors() {
		t.Run(major, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			b := ForTest(t, major)
			primary := start(t, ctx, b, pgtest.Options{})
			if err := primary.Exec(ctx, "postgres", "CREATE EXTENSION btree_gist", "CREATE TABLE copied (id int)"); err != nil {
				t.Fatal(err)
			}

			dir := folder(t, b)
			if _, err := b.Run(ctx, dir, "pg_basebackup", "--pgdata", filepath.Join(dir, "data"), "--write-recovery-conf", "--checkpoint", "fast",
				"--dbname", primary.SuperURL("postgres")); err != nil {
				t.Fatal(err)
			}
			standby := start(t, ctx, b, pgtest.Options{Dir: dir})
			var copied, recovering bool
			if err := pgtest.Connect(t, standby.SuperURL("postgres")).QueryRow(ctx,
				"SELECT to_regclass('copied') IS NOT NULL, pg_is_in_recovery()").Scan(&copied, &recovering); err != nil {
				t.Fatal(err)
			}
			if !copied || !recovering {
				t.Errorf("the copy of pg_basebackup has the table: %v, is a standby: %v", copied, recovering)
			}
		})
	}
}

// pg_upgrade brings a cluster of each version to the next, with the tools of both builds.
func TestUpgrade(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	before, after := ForTest(t, "17"), ForTest(t, "18")
	dirs := map[*Build]string{before: folder(t, before), after: folder(t, after)}
	for _, b := range []*Build{before, after} {
		s := start(t, ctx, b, pgtest.Options{Dir: dirs[b]})
		if b == before {
			if err := s.Exec(ctx, "postgres", "CREATE TABLE kept (id int)"); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.Stop(ctx, pgtest.Fast); err != nil {
			t.Fatal(err)
		}
	}
	if err := after.Upgrade(ctx, before, dirs[before], dirs[after]); err != nil {
		t.Fatal(err)
	}
	s := start(t, ctx, after, pgtest.Options{Dir: dirs[after]})
	if err := s.Exec(ctx, "postgres", "SELECT id FROM kept"); err != nil {
		t.Error(err)
	}
}

func start(t *testing.T, ctx context.Context, b *Build, o pgtest.Options) *pgtest.Server {
	t.Helper()
	s, err := pgtest.Start(ctx, b.Options(o))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// folder returns a temporary folder that the servers' user owns and reaches; t.TempDir is beneath one that it cannot
// enter.
func folder(t *testing.T, b *Build) string {
	t.Helper()
	dir, err := os.MkdirTemp("", fmt.Sprintf("outboxcdc-pgfull%s-", b.Major))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := b.Folder(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}
