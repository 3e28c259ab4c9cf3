// Package child runs the servers that tests, the demo and the benchmarks need (PostgreSQL, Kafka) as processes of our
// own.
//
// A process started here ends when this process ends, however this process ends (on Linux; elsewhere only when it is
// closed properly). A Ctrl-C typed at the terminal reaches us and not the server. Fetched files of servers are in one
// cache folder, filled by one process at a time. Callers decide what a server needs to start and how it is stopped.
package child

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Spec describes how to start a process.
type Spec struct {
	// Path is the program, Args its arguments without the program's name.
	Path string
	Args []string
	// Name is shown by ps in place of Path. Empty means Path.
	Name string
	// Env is the whole environment of the process, Dir its working folder.
	Env []string
	Dir string
	// LogFile gets standard output and standard error, appended.
	LogFile string
	// Credential is the user that the process runs as; nil means ours.
	Credential *syscall.Credential
	// DeathSignal is sent by the kernel when we end without having stopped the process; 0 means SIGKILL. For a server
	// that cleans up after itself on some signal, use that signal.
	DeathSignal syscall.Signal
}

// Process is a running or ended process.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has been waited for
	err  error         // result of Wait; valid only after done
}

// Start starts a process.
func Start(s Spec) (*Process, error) {
	log, err := os.OpenFile(s.LogFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", s.Path, err)
	}
	defer log.Close() // the process has its own descriptor once it is started

	cmd := exec.Command(s.Path, s.Args...)
	if s.Name != "" {
		cmd.Args[0] = s.Name
	}
	cmd.Env, cmd.Dir = s.Env, s.Dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{
		// A group of its own: the terminal sends Ctrl-C to its whole foreground group, but the user wants to stop the
		// relay or the demo in order, not every server beneath it at the same moment.
		Setpgid:    true,
		Credential: s.Credential,
	}
	if s.DeathSignal == 0 {
		s.DeathSignal = syscall.SIGKILL
	}
	setDeathSignal(cmd.SysProcAttr, s.DeathSignal)

	p := &Process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The kernel sends the death signal when the *thread* that forked the
		// process ends, not when the program does, so this thread is kept
		// until the process has ended (golang.org/issue/27505).
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Path, err)
	}
	return p, nil
}

// Pid is the process id, also after the process has ended.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended and was waited for.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exited reports whether the process has ended.
func (p *Process) Exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Err returns how the process ended: nil for exit status 0. It is valid after Done.
func (p *Process) Err() error { return p.err }

// CPUTime returns the processor time that the process used, 0 until it has ended.
func (p *Process) CPUTime() time.Duration {
	if !p.Exited() || p.cmd.ProcessState == nil {
		return 0
	}
	return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
}

// Signal sends a signal. A process that has ended already is not an error.
func (p *Process) Signal(sig os.Signal) error {
	err := p.cmd.Process.Signal(sig)
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %v to process %d: %w", sig, p.Pid(), err)
	}
	return nil
}

// Freeze stops the process as SIGSTOP does and returns when all its threads are stopped: its sockets stay open and
// receive, and nothing answers.
func (p *Process) Freeze(ctx context.Context) error {
	if p.Exited() {
		return fmt.Errorf("freeze process %d: it has ended", p.Pid())
	}
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return p.Poll(ctx, func(context.Context) error { return checkStopped(p.Pid()) })
}

// Thaw continues a frozen process.
func (p *Process) Thaw() error { return p.Signal(syscall.SIGCONT) }

// Wait waits until the process has ended or ctx is done. It does not return how the process ended (see Err).
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the end of process %d: %w", p.Pid(), ctx.Err())
	}
}

// Kill ends the process at once, frozen or not, and waits for its end.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.done
	return nil
}

// Await calls done every few milliseconds until it returns nil. When ctx is done, the error includes done's last one.
func Await(ctx context.Context, done func() error) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := done()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; last error: %w", ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// Poll calls ready every few milliseconds until it returns nil, the process has ended, or ctx is done. The last two are
// errors that include ready's last error.
func (p *Process) Poll(ctx context.Context, ready func(context.Context) error) error {
	const every = 25 * time.Millisecond
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last error
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil { // a timeout says nothing about the server
			last = err
		}
		select {
		case <-p.done:
			return fmt.Errorf("it ended by itself (%s)", exitText(p.err))
		case <-ctx.Done():
			return fmt.Errorf("it did not become ready (%w); last error: %w", ctx.Err(), last)
		case <-tick.C:
		}
	}
}

func exitText(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

// Tail returns the last part of a log, for error messages.
func Tail(logFile string) string {
	const most = 2000
	f, err := os.Open(logFile)
	if err != nil {
		return "(no log: " + err.Error() + ")"
	}
	defer f.Close()
	if size, err := f.Seek(0, io.SeekEnd); err == nil && size > most {
		_, _ = f.Seek(-most, io.SeekEnd)
	} else {
		_, _ = f.Seek(0, io.SeekStart)
	}
	b, _ := io.ReadAll(io.LimitReader(f, most))
	return strings.TrimSpace(string(b))
}
