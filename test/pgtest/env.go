package pgtest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/test/child"
)

// FromEnv returns the running server named by OUTBOXCDC_TEST_POSTGRES_<major>, e.g.
// postgres://superuser:secret@db:5432/postgres?sslmode=disable; ok is false when it is not set. Stopping, starting and
// configuring such a server fails with ErrExternal.
func FromEnv(major string) (s *Server, ok bool, err error) {
	name := "OUTBOXCDC_TEST_POSTGRES_" + major
	raw := os.Getenv(name)
	if raw == "" {
		return nil, false, nil
	}
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.User == nil {
		// Without the value itself: it contains a password.
		return nil, false, fmt.Errorf("read %s: expected postgres://superuser:password@host:port/db", name)
	}
	return &Server{Major: major, outside: u}, true, nil
}

// NeedUpcoming skips the test, and says so, if there is no server of the version Upcoming.
func NeedUpcoming(t testing.TB) {
	t.Helper()
	bin, running := "OUTBOXCDC_PG_BIN_"+Upcoming, "OUTBOXCDC_TEST_POSTGRES_"+Upcoming
	if os.Getenv(bin) == "" && os.Getenv(running) == "" {
		t.Skipf("SKIPPED, NOT RUN ON POSTGRESQL %s: no build of it can be fetched, and neither %s nor %s names one", Upcoming, bin, running)
	}
}

// ForTest starts a server for one test (or benchmark), or uses the one of FromEnv, and closes it at the test's end. If
// the machine cannot have the server, the test is skipped; with CI=true it fails.
func ForTest(t testing.TB, o Options) *Server {
	t.Helper()
	child.SkipShort(t)
	if s, ok, err := FromEnv(o.Major); err != nil {
		t.Fatal(err)
	} else if ok {
		return s
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	_, err := Fetch(ctx, o.Major)
	child.Need(t, "POSTGRESQL", err)
	s, err := Start(ctx, o)
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

// Connect opens a connection and closes it at the test's end.
func Connect(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}
