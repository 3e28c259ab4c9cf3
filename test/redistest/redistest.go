// Package redistest provides a real Redis to tests and to the demo: the redis-server on the PATH, else that of Debian's
// package, which is unpacked into the cache of fetched servers and not installed, so that no service starts.
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

// Node is a Redis of our own on 127.0.0.1. Every write is in its file before it is answered.
type Node struct {
	Addr  string
	Admin *redis.Client // a client that may do everything
	dir   string
	spec  child.Spec
	proc  *child.Process
}

// Server is a node of a test. What fails on it fails the test.
type Server struct {
	*Node
	t testing.TB
}

// Available returns nil when a server can run here.
func Available(ctx context.Context) error {
	_, _, err := tool(ctx)
	return err
}

// Open finds the program, or fetches it, and starts a node, with further lines of its configuration.
func Open(ctx context.Context, lines ...string) (*Node, error) {
	path, env, err := tool(ctx)
	if err != nil {
		return nil, err
	}
	port, err := child.FreePort()
	if err != nil {
		return nil, err
	}
	n := &Node{}
	if n.dir, err = os.MkdirTemp("", "outboxcdc-redis-"); err != nil {
		return nil, err
	}
	n.Addr = fmt.Sprintf("127.0.0.1:%d", port)
	n.Admin = redis.NewClient(&redis.Options{Addr: n.Addr, Protocol: 2, DisableIdentity: true, MaxRetries: -1, DialerRetries: 1, ReadTimeout: time.Minute})
	conf := filepath.Join(n.dir, "redis.conf")
	text := fmt.Sprintf("port %d\nbind 127.0.0.1\ndir %s\nappendonly yes\nappendfsync always\nsave \"\"\n", port, n.dir) + strings.Join(lines, "\n") + "\n"
	n.spec = child.Spec{Path: path, Args: []string{conf}, Env: env, Dir: n.dir, LogFile: filepath.Join(n.dir, "log"), DeathSignal: syscall.SIGKILL}
	if err := errors.Join(os.WriteFile(conf, []byte(text), 0o600), n.StartAgain(ctx)); err != nil {
		_ = n.Close()
		return nil, err
	}
	return n, nil
}

// Start runs a server until the end of the test, as Open does. A test without Redis is skipped; with CI=true it fails.
func Start(t testing.TB, lines ...string) *Server {
	t.Helper()
	child.SkipShort(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	child.Need(t, "REDIS", Available(ctx))
	n, err := Open(ctx, lines...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return &Server{Node: n, t: t}
}

// Start starts a server that was killed, with what it has stored.
func (s *Server) Start() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.StartAgain(ctx); err != nil {
		s.t.Fatal(err)
	}
}

// StartAgain starts a node that was killed, with what it has stored.
func (n *Node) StartAgain(ctx context.Context) (err error) {
	if n.proc, err = child.Start(n.spec); err != nil {
		return err
	}
	if err := n.proc.Poll(ctx, func(ctx context.Context) error { return n.Admin.Ping(ctx).Err() }); err != nil {
		return fmt.Errorf("start Redis: %w; its log ends with:\n%s", err, child.Tail(n.spec.LogFile))
	}
	return nil
}

// Entries returns the entries of a stream after the one with an id; "": all of them.
func (n *Node) Entries(ctx context.Context, stream, after string) (all []redis.XMessage, err error) {
	const page = 5000
	for from := after; ; {
		begin := "-"
		if from != "" {
			begin = "(" + from
		}
		some, err := n.Admin.XRangeN(ctx, stream, begin, "+", page).Result()
		if err != nil {
			return nil, err
		}
		if all = append(all, some...); len(some) < page {
			return all, nil
		}
		from = some[page-1].ID
	}
}

// Kill ends the server with SIGKILL.
func (s *Server) Kill() {
	s.t.Helper()
	if err := s.Node.Kill(); err != nil {
		s.t.Fatal(err)
	}
}

// Kill ends the node with SIGKILL.
func (n *Node) Kill() error { return n.proc.Kill() }

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

// Close ends the node and removes its files.
func (n *Node) Close() error {
	_ = n.Admin.Close()
	if n.proc != nil {
		_ = n.proc.Kill()
	}
	return os.RemoveAll(n.dir)
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
