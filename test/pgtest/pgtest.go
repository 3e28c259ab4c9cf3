// Package pgtest runs a real PostgreSQL of a chosen major version, without Docker and without an installed server.
//
// A server of this package
// - has wal_level=logical, listens on 127.0.0.1 alone and asks for passwords;
// - can be started by root, although initdb and postgres refuse root: it then runs as an unprivileged user;
// - can be stopped in the three modes of pg_ctl and started again on the same port and data directory;
// - does not outlive the process that started it (on Linux), however that process ends.
//
// The integration tests, the demo and the benchmarks use it, so only [ForTest] needs a testing.TB. Callers create the
// roles, tables and slots.
//
// Environment: OUTBOXCDC_PG_BIN_<major> names the bin directory of an installed server, to be used instead of a fetched
// one. OUTBOXCDC_TEST_POSTGRES_<major> is the URL, as a superuser, of a running server for [FromEnv]. OUTBOXCDC_CACHE
// is where fetched servers are kept.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/test/child"
)

// Superuser and Password log in to a server that Start created.
const (
	Superuser = "postgres"
	Password  = "postgres"
)

// ErrExternal is returned by operations that a server of the environment does not allow (see FromEnv).
var ErrExternal = errors.New("not possible: a server of the environment cannot be stopped, started or configured")

// Options describe the server. The zero value of every field except Major is valid.
type Options struct {
	// Major is one of Majors, or Upcoming.
	Major string
	// Settings go to postgresql.conf, over the ones of this package.
	Settings map[string]string
	// Port to listen on; 0 finds a free one.
	Port int
	// Dir is the folder of the server: data directory and log. An existing data directory is used. Empty creates a new
	// folder, which Close removes; a folder given here is kept.
	Dir string
	// BinDir is the bin directory of a server of this major version, used instead of a fetched one, and Env is what its
	// programs need in their environment (package pgfull).
	BinDir string
	Env    []string
}

// Server is one PostgreSQL server. Its methods may be called from several
// goroutines.
type Server struct {
	Major   string
	Port    int
	DataDir string
	BinDir  string
	LogFile string

	env     []string // what the programs of BinDir need besides the account's environment
	dir     string   // holds DataDir and LogFile
	made    bool     // dir was created by Start, so Close removes it
	account Account
	outside *url.URL // of a server of the environment; all of the above is empty then

	mu     sync.Mutex
	proc   *child.Process // nil before the first start
	closed bool
}

// Start creates and starts a server and returns when it answers queries.
func Start(ctx context.Context, o Options) (*Server, error) {
	bin := o.BinDir
	if bin == "" {
		var err error
		if bin, err = Fetch(ctx, o.Major); err != nil {
			return nil, err
		}
	}
	s := &Server{Major: o.Major, Port: o.Port, BinDir: bin, env: o.Env, dir: o.Dir}
	if err := s.build(ctx, o.Settings); err != nil {
		s.removeDir()
		return nil, fmt.Errorf("create a PostgreSQL %s server: %w", o.Major, err)
	}
	if err := s.StartAgain(ctx); err != nil {
		s.removeDir()
		return nil, err
	}
	return s, nil
}

// build creates everything that a start needs: folder, port, data directory.
func (s *Server) build(ctx context.Context, settings map[string]string) (err error) {
	if s.account, err = ServerAccount(); err != nil {
		return err
	}
	if s.Port == 0 {
		if s.Port, err = child.FreePort(); err != nil {
			return err
		}
	} else if err := child.CheckPort(s.Port); err != nil { // before the work of initdb
		return err
	}
	if s.dir == "" {
		s.dir, err = os.MkdirTemp("", "outboxcdc-pg"+s.Major+"-")
		s.made = true
	} else if s.dir, err = filepath.Abs(s.dir); err == nil {
		err = os.MkdirAll(s.dir, 0o755)
	}
	if err != nil {
		return fmt.Errorf("create the folder of the server: %w", err)
	}
	if err := s.account.Give(s.dir); err != nil {
		return err
	}
	s.DataDir = filepath.Join(s.dir, "data")
	s.LogFile = filepath.Join(s.dir, "postgres.log")
	if _, err := os.Stat(filepath.Join(s.DataDir, "PG_VERSION")); err != nil {
		if err := s.create(ctx); err != nil {
			return err
		}
	}
	return s.writeConf(settings)
}

// StartAgain starts a server that was stopped or killed, on its port and data
// directory, and returns when it answers queries.
func (s *Server) StartAgain(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.outside != nil:
		return ErrExternal
	case s.closed:
		return errors.New("start PostgreSQL: the server was closed")
	case s.proc != nil && !s.proc.Exited():
		return errors.New("start PostgreSQL: the server is running")
	}
	if err := child.CheckPort(s.Port); err != nil {
		return fmt.Errorf("start PostgreSQL %s: %w", s.Major, err)
	}
	proc, err := child.Start(child.Spec{
		Path:       filepath.Join(s.BinDir, "postgres"),
		Args:       []string{"-D", s.DataDir},
		Env:        append(s.account.Env(s.dir), s.env...),
		Dir:        s.dir,
		LogFile:    s.LogFile,
		Credential: s.account.credential,
		// Shut down at once: the server then ends its children and frees its shared memory, which SIGKILL would
		// prevent.
		DeathSignal: immediate,
	})
	if err != nil {
		return fmt.Errorf("start PostgreSQL %s: %w", s.Major, err)
	}
	if err := proc.Poll(ctx, s.ping); err != nil {
		_ = proc.Signal(immediate)
		<-proc.Done()
		return fmt.Errorf("start PostgreSQL %s on port %d: %w; its log ends with:\n%s", s.Major, s.Port, err, child.Tail(s.LogFile))
	}
	s.proc = proc
	return nil
}

// ping succeeds when the server accepts connections, which it does not during recovery.
func (s *Server) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.SuperURL("postgres"))
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// URL returns the connection URL of a database for a role.
func (s *Server) URL(dbname, user, password string) string {
	u := url.URL{
		Scheme:   "postgres",
		Host:     "127.0.0.1:" + strconv.Itoa(s.Port),
		Path:     "/" + dbname,
		User:     url.UserPassword(user, password),
		RawQuery: "sslmode=disable",
	}
	if s.outside != nil {
		u.Scheme, u.Host, u.RawQuery = s.outside.Scheme, s.outside.Host, s.outside.RawQuery
	}
	return u.String()
}

// SuperURL returns the connection URL of a database for the superuser.
func (s *Server) SuperURL(dbname string) string {
	user, password := Superuser, Password
	if s.outside != nil {
		user = s.outside.User.Username()
		password, _ = s.outside.User.Password()
	}
	return s.URL(dbname, user, password)
}

// Exec runs statements in a database as the superuser, each by itself and outside a transaction, as CREATE DATABASE
// requires.
func (s *Server) Exec(ctx context.Context, dbname string, statements ...string) error {
	conn, err := pgx.Connect(ctx, s.SuperURL(dbname))
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL %s: %w", s.Major, err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("run %q: %w", sql, err)
		}
	}
	return nil
}

// Close stops the server at once and removes its folder, unless the folder was given in Options.Dir. Closing twice, or
// closing a server of the environment, does nothing.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.outside != nil {
		return nil
	}
	s.closed = true
	if s.proc != nil {
		// The server gives its children five seconds to end, then kills them.
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := stopNow(ctx, s.proc); err != nil {
			_ = s.proc.Kill()
			s.removeDir()
			return fmt.Errorf("close PostgreSQL %s: %w; it was killed", s.Major, err)
		}
	}
	s.removeDir()
	return nil
}

func (s *Server) removeDir() {
	if s.made && s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
}
