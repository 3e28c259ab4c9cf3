package child

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A process ends with its starter, however that ends.
func TestDiesWithItsStarter(t *testing.T) {
	if log := os.Getenv("CHILD_STARTER"); log != "" {
		p, err := Start(Spec{Path: "/bin/sh", Args: []string{"-c", "exec sleep 600"}, LogFile: log})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println(p.Pid())
		select {}
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestDiesWithItsStarter$")
	cmd.Env = append(os.Environ(), "CHILD_STARTER="+filepath.Join(t.TempDir(), "log"))
	out, err := cmd.StdoutPipe()
	if err = errors.Join(err, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	for end := time.Now().Add(time.Minute); syscall.Kill(pid, 0) == nil; time.Sleep(10 * time.Millisecond) {
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if strings.Contains(string(stat), ") Z ") { // in a container without an init that may stay
			return
		}
		if time.Now().After(end) {
			t.Fatalf("process %d outlives its starter", pid)
		}
	}
}
