package pgtest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// ownServer is ForTest for tests that an external server does not allow.
func ownServer(t *testing.T, o Options) *Server {
	t.Helper()
	t.Setenv("OUTBOXCDC_TEST_POSTGRES_"+o.Major, "")
	begin := time.Now()
	s := ForTest(t, o)
	t.Logf("PostgreSQL %s started in %v", o.Major, time.Since(begin).Round(time.Millisecond))
	return s
}

func queryText(t *testing.T, ctx context.Context, url, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(ctx, url)
	must(t, err)
	defer conn.Close(ctx)
	var text string
	if err := conn.QueryRow(ctx, sql).Scan(&text); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return text
}

// Every version starts, decodes logically and leaves nothing when closed.
func TestEveryMajor(t *testing.T) {
	for _, major := range Majors() {
		t.Run(major, func(t *testing.T) {
			ctx := testContext(t)
			s := ownServer(t, Options{Major: major, Settings: map[string]string{"work_mem": "5MB", "application_name": "it's"}})
			url := s.SuperURL("postgres")
			if v := queryText(t, ctx, url, "SHOW server_version"); !strings.HasPrefix(v, major+".") {
				t.Errorf("server_version is %s, want %s.x", v, major)
			}
			if v := queryText(t, ctx, url, "SHOW wal_level"); v != "logical" {
				t.Errorf("wal_level is %s", v)
			}
			if v := queryText(t, ctx, url, "SHOW work_mem"); v != "5MB" {
				t.Errorf("work_mem is %s, want the 5MB of Options.Settings", v)
			}
			if v := queryText(t, ctx, url, "SELECT encoding || ' ' || current_setting('fsync') FROM (SELECT getdatabaseencoding() encoding) e"); v != "UTF8 on" {
				t.Errorf("encoding and fsync are %s", v)
			}
			if err := s.Exec(ctx, "postgres", "SELECT pg_create_logical_replication_slot('s', 'pgoutput')"); err != nil {
				t.Error(err)
			}
			const id = "SELECT system_identifier::text FROM pg_control_system()"
			other := ownServer(t, Options{Major: major})
			if one, two := queryText(t, ctx, url, id), queryText(t, ctx, other.SuperURL("postgres"), id); one == two {
				t.Errorf("two servers have the system identifier %s", one)
			}
			pid, dir := s.Pid(), filepath.Dir(s.DataDir)
			children := childrenOf(t, pid)
			if len(children) == 0 && runtime.GOOS == "linux" {
				t.Error("found no children of the postmaster in /proc: the check below would prove nothing")
			}
			must(t, s.Close())
			for _, pid := range append(children, pid) {
				if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
					t.Errorf("process %d of the server still exists after Close (%v)", pid, err)
				}
			}
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s still exists after Close (%v)", dir, err)
			}
			if err := s.Close(); err != nil {
				t.Errorf("closing again: %v", err)
			}
		})
	}
}

// Tests that need no server of their own share one: initdb costs a second of CPU.
func TestOneServer(t *testing.T) {
	s := ownServer(t, Options{Major: "17"})
	for _, test := range []struct {
		name string
		run  func(*testing.T, *Server)
	}{
		{"StopAndStartAgain", stopAndStartAgain},
		{"PasswordsCount", testPasswords},
		{"AppendConfAndReload", appendConfAndReload},
		{"PortThatIsTaken", testTakenPort},
		{"ExternalServer", externalServer},
		{"SmartStopWaitsForClients", smartStopWaitsForClients}, // last: it stops s
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, s) })
	}
}

func stopAndStartAgain(t *testing.T, s *Server) {
	ctx := testContext(t)
	url := s.SuperURL("postgres")
	must(t, s.Exec(ctx, "postgres",
		"CREATE TABLE kept (id int)",
		"SELECT pg_create_logical_replication_slot('kept', 'pgoutput')"))
	for i, mode := range []Mode{Immediate, Fast, Smart} {
		must(t, s.Exec(ctx, "postgres", "INSERT INTO kept VALUES (1)"))
		took, err := s.Stop(ctx, mode)
		must(t, err)
		if s.Pid() != 0 {
			t.Errorf("after a stop the pid is %d", s.Pid())
		}
		if took, err := s.Stop(ctx, mode); took != 0 || err != nil {
			t.Errorf("stopping again took %v, %v", took, err)
		}
		begin := time.Now()
		must(t, s.StartAgain(ctx))
		t.Logf("the %s stop took %v, the next start %v", mode, took.Round(time.Millisecond), time.Since(begin).Round(time.Millisecond))
		want := string(rune('1' + i))
		if got := queryText(t, ctx, url, "SELECT count(*)::text FROM kept"); got != want {
			t.Errorf("after a %s stop there are %s rows, want %s", mode, got, want)
		}
		if got := queryText(t, ctx, url, "SELECT plugin::text FROM pg_replication_slots WHERE slot_name = 'kept'"); got != "pgoutput" {
			t.Errorf("after a %s stop the slot's plugin is %q", mode, got)
		}
	}
	if err := s.StartAgain(ctx); err == nil {
		t.Error("starting a running server succeeded")
	}
	if err := s.Restart(ctx); err != nil {
		t.Error(err)
	}
}

// A smart stop waits for clients; the caller's ctx ends the wait, and a harder stop can follow.
func smartStopWaitsForClients(t *testing.T, s *Server) {
	ctx := testContext(t)
	conn, err := pgx.Connect(ctx, s.SuperURL("postgres"))
	must(t, err)
	defer conn.Close(ctx)
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	if _, err := s.Stop(short, Smart); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("smart stop with a client: %v", err)
	}
	if s.Pid() == 0 {
		t.Fatal("the server ended despite its client")
	}
	if _, err := s.Stop(ctx, Fast); err != nil {
		t.Fatal(err)
	}
}

func testPasswords(t *testing.T, s *Server) {
	ctx := testContext(t)
	must(t, s.Exec(ctx, "postgres", "CREATE ROLE relay LOGIN REPLICATION PASSWORD 'p@ss w/rd'", "CREATE DATABASE shop"))
	if got := queryText(t, ctx, s.URL("shop", "relay", "p@ss w/rd"), "SELECT current_database() || '/' || current_user"); got != "shop/relay" {
		t.Errorf("logged in as %s", got)
	}
	_, err := pgx.Connect(ctx, s.URL("shop", "relay", "wrong"))
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Code != "28P01" {
		t.Errorf("a wrong password gave %v, want SQLSTATE 28P01", err)
	}
}

func appendConfAndReload(t *testing.T, s *Server) {
	ctx := testContext(t)
	must(t, s.AppendConf("wal_sender_timeout = '7s'"))
	must(t, s.Reload())
	for queryText(t, ctx, s.SuperURL("postgres"), "SHOW wal_sender_timeout") != "7s" {
		if ctx.Err() != nil {
			t.Fatal("the setting did not take effect")
		}
	}
}

// A folder given by the caller outlives Close and can be used again.
func TestGivenDirIsKept(t *testing.T) {
	ctx := testContext(t)
	dir, err := os.MkdirTemp("", "outboxcdc-kept-") // t.TempDir is closed to other users
	must(t, err)
	defer os.RemoveAll(dir)
	must(t, os.Chmod(dir, 0o755))
	var systemID string
	for i := range 2 {
		s := ownServer(t, Options{Major: "16", Dir: filepath.Join(dir, "server")})
		id := queryText(t, ctx, s.SuperURL("postgres"), "SELECT system_identifier::text FROM pg_control_system()")
		if i == 1 && id != systemID {
			t.Errorf("the second server has system identifier %s, the first had %s", id, systemID)
		}
		systemID = id
		must(t, s.Close())
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	ctx := testContext(t)
	if _, err := Fetch(ctx, "9.6"); err == nil || !strings.Contains(err.Error(), "[14 15 16 17 18]") {
		t.Errorf("an unknown version: %v", err)
	}
	t.Setenv("OUTBOXCDC_PG_BIN_17", "/nowhere")
	if _, err := Fetch(ctx, "17"); err == nil || !strings.Contains(err.Error(), "OUTBOXCDC_PG_BIN_17") {
		t.Errorf("a wrong bin directory: %v", err)
	}
	t.Setenv("OUTBOXCDC_PG_BIN_17", "")
	if _, err := Start(ctx, Options{Major: "17", Settings: map[string]string{"no_such_setting": "1"}}); err == nil || !strings.Contains(err.Error(), "no_such_setting") {
		t.Errorf("a wrong setting: %v", err)
	}
}

func testTakenPort(t *testing.T, first *Server) {
	ctx := testContext(t)
	if _, err := Start(ctx, Options{Major: "17", Port: first.Port}); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("a second server on the port of the first: %v", err)
	}
}

func externalServer(t *testing.T, own *Server) {
	ctx := testContext(t)
	t.Setenv("OUTBOXCDC_TEST_POSTGRES_17", own.SuperURL("postgres"))
	s := ForTest(t, Options{Major: "17"})
	if got := queryText(t, ctx, s.SuperURL("template1"), "SELECT current_database()::text"); got != "template1" {
		t.Errorf("SuperURL led to %s", got)
	}
	if _, err := s.Stop(ctx, Fast); !errors.Is(err, ErrExternal) {
		t.Errorf("Stop: %v", err)
	}
	if err := s.StartAgain(ctx); !errors.Is(err, ErrExternal) {
		t.Errorf("StartAgain: %v", err)
	}
	if err := s.AppendConf("x = 1"); !errors.Is(err, ErrExternal) {
		t.Errorf("AppendConf: %v", err)
	}
	if err := s.Close(); err != nil || own.Pid() == 0 {
		t.Errorf("Close: %v, and the pid of the server is %d", err, own.Pid())
	}
}

// must fails the test with an error that no step of it expects.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
