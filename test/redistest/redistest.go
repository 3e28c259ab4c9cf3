// Package redistest provides a real Redis to tests: the redis-server on the PATH, else that of Debian's package, which
// is unpacked into the cache of fetched servers and not installed, so that no service starts.
package redistest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/debian"
)

// patience bounds the start of a server.
const patience = 3 * time.Minute

// The client would write to the standard error what it returns as an error.
func init() { logging.Disable() }

// Server is a Redis of a test's own on 127.0.0.1. Every write is in its file before it is answered.
type Server struct {
	Addr  string
	Admin *redis.Client // a client that may do everything
	t     testing.TB
	dir   string
	spec  child.Spec
	proc  *child.Process
}

// Start runs a server until the end of the test, with further lines of its configuration. A test without Redis is
// skipped; with CI=true it fails.
func Start(t testing.TB, lines ...string) *Server {
	t.Helper()
	child.SkipShort(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	child.Need(t, "REDIS", Available(ctx))
	s, err := Open(ctx, lines...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	s.t = t
	return s
}

// Available returns nil when a server can run here.
func Available(ctx context.Context) error {
	_, _, err := tool(ctx)
	return err
}

// Open runs a server until Close, for a program that is no test. Of its methods, only Close is for such a program.
func Open(ctx context.Context, lines ...string) (*Server, error) {
	path, env, err := tool(ctx)
	if err != nil {
		return nil, err
	}
	port, err := child.FreePort()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "outboxcdc-redis-")
	if err != nil {
		return nil, err
	}
	s := &Server{Addr: fmt.Sprintf("127.0.0.1:%d", port), dir: dir}
	s.Admin = redis.NewClient(&redis.Options{Addr: s.Addr, Protocol: 2, DisableIdentity: true, MaxRetries: -1, DialerRetries: 1, ReadTimeout: time.Minute})
	conf := filepath.Join(dir, "redis.conf")
	text := fmt.Sprintf("port %d\nbind 127.0.0.1\ndir %s\nappendonly yes\nappendfsync always\nsave \"\"\n", port, dir) + strings.Join(lines, "\n") + "\n"
	s.spec = child.Spec{Path: path, Args: []string{conf}, Env: env, Dir: dir, LogFile: filepath.Join(dir, "log"), DeathSignal: syscall.SIGKILL}
	if err := errors.Join(os.WriteFile(conf, []byte(text), 0o600), s.start()); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Start starts a server that was killed, with what it has stored.
func (s *Server) Start() {
	s.t.Helper()
	if err := s.start(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *Server) start() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if s.proc, err = child.Start(s.spec); err != nil {
		return err
	}
	if err := s.proc.Poll(ctx, func(ctx context.Context) error { return s.Admin.Ping(ctx).Err() }); err != nil {
		return fmt.Errorf("start Redis: %w; its log ends with:\n%s", err, child.Tail(s.spec.LogFile))
	}
	return nil
}

// Kill ends the server with SIGKILL.
func (s *Server) Kill() {
	s.t.Helper()
	if err := s.proc.Kill(); err != nil {
		s.t.Fatal(err)
	}
}

// Freeze and Thaw stop the process and continue it.
func (s *Server) Freeze() {
	s.t.Helper()
	if err := s.proc.Freeze(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
}

// Thaw continues a frozen process.
func (s *Server) Thaw() {
	s.t.Helper()
	if err := s.proc.Thaw(); err != nil {
		s.t.Fatal(err)
	}
}

// Do sends a command as the administrator, and fails the test if the server refuses it.
func (s *Server) Do(args ...any) any {
	s.t.Helper()
	v, err := s.Admin.Do(context.Background(), args...).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		s.t.Fatalf("%v: %v", args, err)
	}
	return v
}

// Close ends the server, and removes what it has stored.
func (s *Server) Close() {
	_ = s.Admin.Close()
	if s.proc != nil {
		_ = s.proc.Kill()
	}
	_ = os.RemoveAll(s.dir)
}

// tool returns the program and its environment.
func tool(ctx context.Context) (path string, env []string, err error) {
	if path, err := exec.LookPath("redis-server"); err == nil {
		return path, os.Environ(), nil
	}
	root, err := debian.Unpack(ctx, "redis-tools", "redis-server", "libjemalloc2", "liblzf1", "libatomic1")
	if err != nil {
		return "", nil, fmt.Errorf("there is no redis-server, and Debian's cannot be fetched (install redis-server, or let apt-get reach its archive): %w", err)
	}
	libs, _ := filepath.Glob(filepath.Join(root, "usr", "lib", "*-linux-gnu"))
	return filepath.Join(root, "usr", "bin", "redis-server"), append(os.Environ(), "LD_LIBRARY_PATH="+strings.Join(libs, ":")), nil
}
