package retention

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/process"
)

// Command is an [Archive] that gives the rows to a command on its standard input. Only a command that has read
// everything and ends with exit status 0 has them.
type Command struct {
	Args   []string
	Output io.Writer     // of its standard output and standard error
	Idle   time.Duration // how long it may take without reading anything, and for its end

	kill func(pid int, s syscall.Signal) error // nil: syscall.Kill
}

// ArchiveIdle is the Idle of the product: long enough for an upload that is tried again a few times.
const ArchiveIdle = 10 * time.Minute

// killWait is how long a command that is stopped has for its end.
const killWait = 5 * time.Second

var (
	errIdle    = errors.New("it has not read anything for too long")
	errStopped = errors.New("a process that it has started ran on, and was stopped")
)

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
	defer input.Close() //nolint:errcheck // closed below, where it counts
	output, says, err := os.Pipe()
	if err != nil {
		return err
	}
	defer output.Close() //nolint:errcheck // only read
	cmd := exec.Command(c.Args[0], c.Args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a pipeline of a shell is stopped as a whole
	cmd.Env = append(os.Environ(), "OUTBOXCDC_SCHEMA="+leaf.Schema, "OUTBOXCDC_TABLE="+leaf.Name,
		"OUTBOXCDC_OLDEST="+age.Oldest.UTC().Format(time.RFC3339Nano), "OUTBOXCDC_NEWEST="+age.Newest.UTC().Format(time.RFC3339Nano))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = read, says, says
	err = cmd.Start()
	_ = says.Close()
	if err != nil {
		return err
	}
	last := process.Tail{Max: tailBytes}
	ended, silent := make(chan struct{}), make(chan struct{})
	go func() {
		process.AwaitExit(cmd.Process.Pid)
		close(ended)
	}()
	go func() { // until no process has the output open
		_, _ = io.Copy(io.MultiWriter(c.Output, &last), output)
		close(silent)
	}()
	idle := time.AfterFunc(c.Idle, func() { stop(errIdle) })
	defer idle.Stop()
	go func() {
		select {
		case <-ended:
		case <-ctx.Done():
		}
		_ = input.SetWriteDeadline(time.Unix(1, 0))
	}()
	wrote := write(&watched{input, idle, c.Idle})
	if wrote == nil {
		idle.Reset(c.Idle)
		if wrote = input.Close(); wrote == nil {
			select {
			case <-ended:
			case <-ctx.Done():
			}
		}
	}
	idle.Stop()
	failed := c.end(cmd, wrote, ended, silent)
	_ = input.Close()
	_ = output.Close() // a process that has left the group may still have it
	<-silent
	switch left, _ := io.CopyN(io.Discard, read, 1); {
	case errors.Is(context.Cause(ctx), errIdle):
		return fmt.Errorf("it was stopped: %w%s", errIdle, quoted(&last))
	case wrote != nil && !errors.Is(wrote, os.ErrDeadlineExceeded):
		return fmt.Errorf("write the rows: %w", wrote)
	case failed != nil:
		return fmt.Errorf("%w%s", failed, quoted(&last))
	case wrote != nil, left > 0:
		return fmt.Errorf("it has ended before it had read all rows%s", quoted(&last))
	}
	return nil
}

// end waits for the end of the command, and of the processes that have its output open. If the command has not got all
// rows, or takes too long, its process group is stopped: none of it may see the end of a part of the rows, and take it
// for the whole. Until the command was waited for, nothing else can have its process id, or a group of that id.
func (c *Command) end(cmd *exec.Cmd, wrote error, ended, silent <-chan struct{}) (failed error) {
	kill := c.kill
	if kill == nil {
		kill = syscall.Kill
	}
	stop := wrote != nil
	select {
	case <-ended:
	default:
		stop = true
	}
	if stop {
		_ = kill(-cmd.Process.Pid, syscall.SIGTERM)
	}
	patience, cancel := context.WithTimeout(context.Background(), min(killWait, c.Idle))
	defer cancel()
	for _, done := range []<-chan struct{}{ended, silent} {
		select {
		case <-done:
		case <-patience.Done():
			failed = errStopped
		}
	}
	if stop || failed != nil {
		_ = kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	err := cmd.Wait()
	go process.Reap(cmd.Process.Pid)
	return cmp.Or(err, failed)
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

// tailBytes is how much of the output an error quotes.
const tailBytes = 500

// quoted is the end of the output, for an error.
func quoted(t *process.Tail) string {
	if text := t.Text(); text != "" {
		return ": " + text
	}
	return ""
}
