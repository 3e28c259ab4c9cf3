package integration

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// Only one dlq command at a time handles dead letters: a second one is refused, in either order, and no dead letter is
// sent twice. That also holds when the command's output has no reader any more, or cannot be written.
func TestDeadLetterCareAlone(t *testing.T) {
	t.Parallel()
	o := newLetterOutbox(t, nil)
	command := func(args ...string) *exec.Cmd {
		cmd := exec.Command(testSuite.binary, slices.Concat(o.args, []string{"dlq"}, args)...)
		cmd.Env = append(o.env(), o.policy("dead_letter")...)
		cmd.Stderr = &bytes.Buffer{}
		return cmd
	}
	one := func(cmd *exec.Cmd, words string, left int) {
		t.Helper()
		_ = cmd.Run()
		if notes := fmt.Sprint(cmd.Stderr); cmd.ProcessState.ExitCode() != 1 || !strings.Contains(notes, "write the output") || !strings.Contains(notes, words) {
			t.Errorf("exit code %v, want 1: %s", cmd.ProcessState, notes)
		}
		if all, _ := o.dlq(0, "list"); len(all) != left {
			t.Errorf("%d dead letters are open, want %d", len(all), left)
		}
	}
	unread, broken, err := os.Pipe()
	must(t, err)
	must(t, unread.Close())
	cmd := command("retry", "--all", "--topic", o.topic("order"))
	cmd.Stdout = broken
	one(cmd, "broken pipe", len(allPoison)-1)
	must(t, broken.Close())
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	must(t, err)
	defer full.Close()
	for _, verb := range []string{"drop", "list"} {
		cmd = command(verb)
		if verb == "drop" {
			cmd.Args = append(cmd.Args, "--all")
		}
		cmd.Stdout = full
		one(cmd, "no space", len(allPoison)-2)
	}

	o.evictBlocked(command("retry", "--all", "--topic", o.topic("order")))

	var all []*exec.Cmd
	for range 3 {
		cmd := command("retry", "--all", "--topic", o.topic("order"))
		must(t, cmd.Start())
		all = append(all, cmd)
	}
	passed := 0
	for _, cmd := range all {
		_ = cmd.Wait()
		switch notes := fmt.Sprint(cmd.Stderr); {
		case cmd.ProcessState.ExitCode() == 0:
			passed++
		case cmd.ProcessState.ExitCode() != 69 || !strings.Contains(notes, "in use"):
			t.Errorf("beside another: %v: %s", cmd.ProcessState, notes)
		}
	}
	if passed == 0 {
		t.Error("all commands were refused")
	}
	o.checkOpen()
	seen := o.retries()
	if delete(seen, o.sentTwice); len(seen) != len(allPoison)-2 {
		t.Errorf("%v were sent again, want %d and %q", seen, len(allPoison)-2, o.sentTwice)
	}
}

// evictBlocked takes the group from a command that is blocked writing its first line: the command sends no other dead
// letter, and reports that this one is not marked as handled.
func (o *letterOutbox) evictBlocked(cmd *exec.Cmd) {
	o.t.Helper()
	before := o.retries()
	r, w, err := os.Pipe()
	must(o.t, err)
	defer r.Close()
	fillPipe(o.t, w)
	cmd.Stdout = w
	must(o.t, cmd.Start())
	must(o.t, w.Close())
	await(o.t, patience, "a dead letter to be sent", func() error { return waitFor(len(o.retries()) > len(before)) })
	await(o.t, patience, "the write of its line to block", func() error { return waitFor(writesToPipe(cmd.Process.Pid)) })
	must(o.t, kafkatest.Evict(testContext(o.t), o.kafka.Brokers(), "outboxcdc-dlq-"+o.name))
	o.awaitHeartbeat(cmd.Process.Pid)
	_, _ = io.Copy(io.Discard, r)
	_ = cmd.Wait()
	if notes := fmt.Sprint(cmd.Stderr); cmd.ProcessState.ExitCode() != 69 || !strings.Contains(notes, "the group is not ours any more") {
		o.t.Errorf("%v, want 69: %s", cmd.ProcessState, notes)
	}
	after := o.retries()
	for mark := range before {
		delete(after, mark)
	}
	if len(after) != 1 {
		o.t.Errorf("sent without the group: %v, want one, sent before the group was taken", after)
	}
	for o.sentTwice = range after {
	}
}

// fillPipe writes until a pipe takes no further byte.
func fillPipe(t *testing.T, w *os.File) {
	t.Helper()
	raw, err := w.SyscallConn()
	must(t, err)
	must(t, raw.Write(func(fd uintptr) bool {
		for _, size := range []int{4096, 1} {
			for err = nil; err == nil || errors.Is(err, syscall.EINTR); {
				_, err = syscall.Write(int(fd), make([]byte, size))
			}
		}
		return true
	}))
	if !errors.Is(err, syscall.EAGAIN) {
		t.Fatal(err)
	}
}

// writesToPipe reports whether a thread of a process waits for space in a pipe.
func writesToPipe(pid int) bool {
	waits, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/wchan", pid))
	return slices.ContainsFunc(waits, func(file string) bool {
		in, _ := os.ReadFile(file)
		return bytes.HasSuffix(in, []byte("pipe_write"))
	})
}

// awaitHeartbeat waits until an otherwise blocked process has sent its next heartbeat and read the answer.
func (o *letterOutbox) awaitHeartbeat(pid int) {
	o.t.Helper()
	const request, answer = 40, 14 // bytes, at least
	moved := func() (read, written int64) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
		must(o.t, err)
		_, err = fmt.Sscanf(string(b), "rchar: %d\nwchar: %d\n", &read, &written)
		must(o.t, err)
		return read, written
	}
	read, written := moved()
	await(o.t, patience, "the next heartbeat", func() error {
		r, w := moved()
		return waitFor(r >= read+answer && w >= written+request)
	})
}
