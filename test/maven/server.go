package maven

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/outboxcdc/outboxcdc/test/child"
)

// Need skips a test if one of the jars can be neither fetched nor run here; with CI=true it fails.
func Need(t testing.TB, all ...*Jars) {
	t.Helper()
	child.SkipShort(t)
	for _, jars := range all {
		child.Need(t, jars.Name, jars.Available())
	}
}

// Server is a server of a test's own.
type Server struct {
	Jars  *Jars
	Dir   string                     // the folder that it runs in; it has its log
	Args  func(libs string) []string // of the JVM and of the program, after those that all have
	Ready func(context.Context) error
}

// Start starts the server, and returns when it is ready.
func (s *Server) Start(ctx context.Context) (*child.Process, error) {
	libs, err := s.Jars.Fetch(ctx)
	if err != nil {
		return nil, err
	}
	java, err := Java()
	if err != nil {
		return nil, err
	}
	log := filepath.Join(s.Dir, "log")
	proc, err := child.Start(child.Spec{
		Path: java, Args: append([]string{"-Xmx512m", "-XX:TieredStopAtLevel=1"}, s.Args(libs)...),
		Env: os.Environ(), Dir: s.Dir, LogFile: log, DeathSignal: syscall.SIGKILL,
	})
	if err != nil {
		return nil, err
	}
	if err := proc.Poll(ctx, s.Ready); err != nil {
		_ = proc.Kill()
		return nil, fmt.Errorf("start %s: %w; its log ends with:\n%s", s.Jars.Name, err, child.Tail(log))
	}
	return proc, nil
}
