package integration

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// command is a command that runs beside the test. No person answers its questions.
type command struct {
	t     *testing.T
	cmd   *exec.Cmd
	file  string // what it prints
	ended chan struct{}
}

func (o *outbox) startCommand(env []string, args ...string) *command {
	o.t.Helper()
	c := &command{t: o.t, cmd: exec.Command(testSuite.binary, slices.Concat(o.args, args)...), ended: make(chan struct{})}
	c.cmd.Env = append(append(cleanEnv(), o.env()...), env...)
	in, err := c.cmd.StdinPipe()
	must(o.t, err)
	out, err := os.CreateTemp(o.t.TempDir(), "out")
	must(o.t, err)
	c.file, c.cmd.Stdout, c.cmd.Stderr = out.Name(), out, out
	must(o.t, c.cmd.Start())
	go func() {
		_ = c.cmd.Wait() // its status is in ProcessState
		close(c.ended)
	}()
	o.t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		<-c.ended
		_ = errors.Join(in.Close(), out.Close())
	})
	return c
}

func (c *command) output() string {
	c.t.Helper()
	b, err := os.ReadFile(c.file)
	must(c.t, err)
	return string(bytes.TrimSpace(b))
}

// wait waits for the end and returns the exit code.
func (c *command) wait(d time.Duration) (exit int) {
	c.t.Helper()
	select {
	case <-c.ended:
	case <-time.After(d):
		c.t.Fatalf("the command runs after %v:\n%s", d, c.output())
	}
	return c.cmd.ProcessState.ExitCode()
}

// interrupt sends SIGINT, after which the command must end soon.
func (c *command) interrupt() (exit int) {
	c.t.Helper()
	must(c.t, c.cmd.Process.Signal(syscall.SIGINT))
	return c.wait(busyAllowance)
}

// SIGINT at the question ends the command, and drops the slot that it has created.
func TestRecoverInterruptedAtQuestion(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	env := o.deduplicating(fence)
	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
	o.insert("order", "k", 1, 3)
	c := o.startCommand(env, "recover")
	await(t, patience, "the question", func() error {
		if !strings.Contains(c.output(), "send 3 rows? [y/N]") {
			return os.ErrNotExist
		}
		return nil
	})
	if code := c.interrupt(); code != 1 {
		t.Errorf("exit code %d, want 1:\n%s", code, c.output())
	}
	if n := slots(o); n != 0 {
		t.Errorf("%d slots are left:\n%s", n, c.output())
	}
}

// The server releases the lock of a run that has ended a little later. A run that goes on keeps it.
func TestRecoverLock(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	env := o.deduplicating(fence)
	o.exec(`SELECT pg_advisory_lock(hashtext('outboxcdc recover'), hashtext($1))`, o.name)
	o.recover(env, 69)
	began := o.query(`SELECT clock_timestamp()::text`) // the server may end the session of the first command later
	c := o.startCommand(env, "recover", "--yes")
	await(t, patience, "the command to try the lock in vain", func() error {
		tried := o.query(`SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle'
			AND query LIKE 'SELECT pg_try_advisory_lock%' AND backend_start > '` + began + `'`)
		return waitFor(tried != "0")
	})
	o.exec(`SELECT pg_advisory_unlock_all()`)
	if code := c.wait(patience); code != 0 {
		t.Errorf("exit code %d:\n%s", code, c.output())
	}
}

// newGap creates an outbox whose slot was dropped, with rows that Kafka does not have.
func newGap(t *testing.T, rows int) (o *outbox, env []string) {
	t.Helper()
	o = newOutbox(t, options{})
	env = append(o.deduplicating(fence), "OUTBOXCDC_OUTBOX_ORDER=n")
	o.deliver(env, "order", "k", 1, 10)
	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
	for n := 0; n < rows; n += 100 {
		o.insert("order", fmt.Sprint("k", n/100%7), 11+n, 100)
	}
	return o, env
}

// Ctrl-C while records are sent: the command says how many Kafka has, and the second run sends exactly the rest.
func TestRecoverInterrupted(t *testing.T) {
	t.Parallel()
	const rows = 20_000 // at the rate below, enough for seconds between the records and the signal
	o, env := newGap(t, rows)
	o.proves("F87", "slot dropped, %d rows missing; SIGINT in the middle of `recover`, then `recover` again", rows)
	c := o.startCommand(env, "recover", "--yes", "--rate", "1000")
	o.awaitRecords(10 + 500)
	if code := c.interrupt(); code != 1 || !strings.Contains(c.output(), "interrupted: ") {
		t.Errorf("exit code %d:\n%s", code, c.output())
	}
	sent := len(o.readAll()) - 10
	if want := fmt.Sprintf("%d records were sent before this error; run the command again", sent); sent >= rows || !strings.Contains(c.output(), want) {
		t.Errorf("no %q of %d rows:\n%s", want, rows, c.output())
	}
	if out := o.recover(env, 0); !strings.Contains(out, fmt.Sprintf("\n%d records sent", rows-sent)) {
		t.Errorf("%d of %d rows were sent before:\n%s", sent, rows, out)
	}
	o.startStreaming(env...)
	o.repeatsAtMost(o.verify(patience), 0, "the second run subtracts what Kafka has")
	o.outcome("the interrupted run exits with 1 and says how many records Kafka has, the second one sends exactly the rest")
}

// Of two runs at a time the second one is refused, and says which connection to look for.
func TestRecoverTwice(t *testing.T) {
	t.Parallel()
	const rows = 10_000
	o, env := newGap(t, rows)
	o.proves("F88", "slot dropped, %d rows missing; two `recover` at a time", rows)
	first := o.startCommand(env, "recover", "--yes", "--rate", "750")
	o.awaitRecords(11)
	out := o.recover(env, 69)
	says(t, out, "another recover, backfill or slot adopt of slot "+o.name+" is running (PID ", "connected from 127.0.0.1 since 20", "remedy: wait until it has ended")
	select {
	case <-first.ended:
		t.Errorf("the first run has ended meanwhile, so this proved nothing:\n%s", first.output())
	default:
	}
	if code := first.wait(patience); code != 0 {
		t.Errorf("the first run: exit code %d:\n%s", code, first.output())
	}
	o.startStreaming(env...)
	o.repeatsAtMost(o.verify(patience), 0, "one run sends")
	o.outcome("the second run exits with 69 and names the first one's connection")
}
