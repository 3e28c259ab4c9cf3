package pgtest

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// childrenOf reads /proc for the processes whose parent is pid.
func childrenOf(t *testing.T, pid int) []int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	must(t, err)
	var pids []int
	for _, f := range strings.Fields(string(b)) {
		n, err := strconv.Atoi(f)
		must(t, err)
		pids = append(pids, n)
	}
	return pids
}

// A process that is killed without having closed its server takes the server along.
func TestServerDiesWithItsStarter(t *testing.T) {
	if os.Getenv("PGTEST_STARTER") != "" {
		s, err := Start(context.Background(), Options{Major: "17", Dir: os.Getenv("PGTEST_STARTER")})
		if err != nil {
			fmt.Println("error:", err)
			return
		}
		fmt.Println("pid:", s.Pid())
		select {}
	}
	if _, err := Fetch(testContext(t), "17"); err != nil {
		ownServer(t, Options{Major: "17"}) // skips or fails
	}
	dir, err := os.MkdirTemp("", "outboxcdc-orphan-")
	must(t, err)
	defer os.RemoveAll(dir)
	must(t, os.Chmod(dir, 0o755))
	cmd := exec.Command(os.Args[0], "-test.run=^TestServerDiesWithItsStarter$")
	cmd.Env = append(os.Environ(), "PGTEST_STARTER="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	pid, atoiErr := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(line, "pid:")))
	if err != nil || atoiErr != nil {
		t.Fatalf("the starter printed %q (%v)", line, err)
	}
	all := append(childrenOf(t, pid), pid)
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	deadline := time.Now().Add(15 * time.Second)
	for _, pid := range all {
		for alive(pid) {
			if time.Now().After(deadline) {
				t.Fatalf("process %d outlives the process that started the server", pid)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// alive returns false for a process that has ended, even if its new parent has not waited for it (in a container
// without an init that may never happen).
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(b), ") Z ")
}
