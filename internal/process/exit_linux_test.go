package process

import (
	"os/exec"
	"syscall"
	"testing"
)

// TestReapOfOurChild: a child that has the id of the group is not waited for, because its exit status is that of a
// command that was started later.
func TestReapOfOurChild(t *testing.T) {
	cmd := exec.Command("sh", "-c", "exit 3")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	Reap(cmd.Process.Pid)
	if err := cmd.Wait(); err == nil || err.Error() != "exit status 3" {
		t.Error(err)
	}
}
