package retention

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// Command is an [Archive] that gives the rows to a command on its standard input. Only a command that has read
// everything and ends with exit status 0 has them.
type Command struct {
	Args   []string
	Output io.Writer     // of its standard output and standard error
	Idle   time.Duration // how long it may take without reading anything, and for its end
}

// ArchiveIdle is the Idle of the product: long enough for an upload that is tried again a few times.
const ArchiveIdle = 10 * time.Minute

// killWait is how long a command that is stopped has for its end.
const killWait = 5 * time.Second

var errIdle = errors.New("it has not read anything for too long")

// Store implements [Archive].
func (c *Command) Store(ctx context.Context, leaf *Leaf, age Age, write func(io.Writer) error) error {
	if err := c.store(ctx, leaf, age, write); err != nil {
		return fmt.Errorf("%s: %w", c.Args[0], err)
	}
	return nil
}

func (c *Command) store(ctx context.Context, leaf *Leaf, age Age, write func(io.Writer) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	// The read end stays open here: what is left in the pipe at the end was not read by the command.
	read, input, err := os.Pipe()
	if err != nil {
		return err
	}
	defer read.Close()  //nolint:errcheck // nothing is written to it
	defer input.Close() //nolint:errcheck // closed below, where it counts; otherwise when no process is left
	cmd := exec.CommandContext(ctx, c.Args[0], c.Args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a pipeline of a shell is stopped as a whole
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = killWait
	cmd.Env = append(os.Environ(), "OUTBOXCDC_SCHEMA="+leaf.Schema, "OUTBOXCDC_TABLE="+leaf.Name,
		"OUTBOXCDC_OLDEST="+age.Oldest.UTC().Format(time.RFC3339Nano), "OUTBOXCDC_NEWEST="+age.Newest.UTC().Format(time.RFC3339Nano))
	var last tail
	cmd.Stdin, cmd.Stdout, cmd.Stderr = read, c.Output, io.MultiWriter(c.Output, &last)
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		ended <- cmd.Wait()
		_ = input.SetWriteDeadline(time.Unix(1, 0)) // no process reads any more
	}()
	idle := time.AfterFunc(c.Idle, func() { stop(errIdle) })
	defer idle.Stop()
	wrote := write(&watched{input, idle, c.Idle})
	if wrote != nil {
		stop(wrote)
	} else {
		idle.Reset(c.Idle)
		wrote = input.Close()
	}
	failed := <-ended
	if wrote != nil { // no process of its may see the end of its input, and take a part for the whole
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = input.Close()
	}
	switch left, _ := io.CopyN(io.Discard, read, 1); {
	case errors.Is(context.Cause(ctx), errIdle):
		return fmt.Errorf("it was stopped: %w%s", errIdle, last.text())
	case wrote != nil && !errors.Is(wrote, os.ErrDeadlineExceeded):
		return fmt.Errorf("write the rows: %w", wrote)
	case failed != nil:
		return fmt.Errorf("%w%s", failed, last.text())
	case wrote != nil, left > 0:
		return fmt.Errorf("it has ended before it had read all rows%s", last.text())
	}
	return nil
}

// watched is the input of a command. Each write gives it more time.
type watched struct {
	*os.File
	idle *time.Timer
	time time.Duration
}

func (w *watched) Write(p []byte) (int, error) {
	n, err := w.File.Write(p)
	w.idle.Reset(w.time)
	return n, err
}

// tail keeps the end of what a command has written to its standard error.
type tail struct{ kept []byte }

const tailBytes = 500

func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	t.kept = t.kept[max(0, len(t.kept)-tailBytes):]
	return len(p), nil
}

func (t *tail) text() string {
	if s := strings.TrimSpace(string(t.kept)); s != "" {
		return ": " + s
	}
	return ""
}
