package pgtest

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/outboxcdc/outboxcdc/test/child"
)

// Mode is a shutdown mode of pg_ctl.
type Mode string

const (
	// Smart waits until every client has left.
	Smart Mode = "smart"
	// Fast disconnects the clients, lets each walsender send what is left, and writes a checkpoint.
	Fast Mode = "fast"
	// Immediate is a crash: recovery follows at the next start.
	Immediate Mode = "immediate"
)

// signal returns the signal that pg_ctl stop sends for the mode.
func (m Mode) signal() (sig syscall.Signal, ok bool) {
	switch m {
	case Smart:
		return syscall.SIGTERM, true
	case Fast:
		return syscall.SIGINT, true
	case Immediate:
		return immediate, true
	}
	return 0, false
}

const immediate = syscall.SIGQUIT

// Stop stops the server and returns, when its process has ended, how long that took. A server that has already ended
// took no time.
//
// Smart waits for the clients, and every mode except Immediate for the walsenders, so the caller's ctx should have a
// deadline. After the deadline the server is still stopping, and Stop may be called again with a harder mode.
func (s *Server) Stop(ctx context.Context, mode Mode) (time.Duration, error) {
	// The lock is not held while waiting: a harder Stop must be possible.
	s.mu.Lock()
	proc := s.proc
	s.mu.Unlock()
	switch {
	case s.outside != nil:
		return 0, ErrExternal
	case proc == nil:
		return 0, nil
	}
	sig, ok := mode.signal()
	if !ok {
		return 0, fmt.Errorf("stop PostgreSQL: no mode %q (smart, fast, immediate)", mode)
	}
	begin := time.Now()
	if proc.Exited() {
		return 0, nil
	}
	if err := proc.Signal(sig); err != nil {
		return 0, fmt.Errorf("stop PostgreSQL %s (%s): %w", s.Major, mode, err)
	}
	if err := proc.Wait(ctx); err != nil {
		return time.Since(begin), fmt.Errorf("stop PostgreSQL %s (%s): %w", s.Major, mode, err)
	}
	return time.Since(begin), nil
}

// Restart is a fast stop and a start. If the clients' walsenders keep the server running until ctx is done, it fails
// and the server is still stopping.
func (s *Server) Restart(ctx context.Context) error {
	if _, err := s.Stop(ctx, Fast); err != nil {
		return err
	}
	return s.StartAgain(ctx)
}

// Pid returns the process id of the postmaster, 0 when the server is not running or not ours.
func (s *Server) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil || s.proc.Exited() {
		return 0
	}
	return s.proc.Pid()
}

func stopNow(ctx context.Context, proc *child.Process) error {
	if err := proc.Signal(immediate); err != nil {
		return err
	}
	return proc.Wait(ctx)
}
