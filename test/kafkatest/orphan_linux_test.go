package kafkatest

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

// A process that is killed without having closed its broker takes the broker along, frozen or not.
func TestBrokerDiesWithItsStarter(t *testing.T) {
	if dir := os.Getenv("KAFKATEST_STARTER"); dir != "" {
		f, err := StartFake(context.Background(), FakeOptions{Dir: dir})
		if err == nil {
			err = f.Freeze(context.Background())
		}
		if err != nil {
			fmt.Println("error:", err)
			return
		}
		fmt.Println("pid:", f.Pid())
		select {}
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestBrokerDiesWithItsStarter$")
	cmd.Env = append(os.Environ(), "KAFKATEST_STARTER="+t.TempDir())
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	pid, atoiErr := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(line, "pid:")))
	if err != nil || atoiErr != nil {
		t.Fatalf("the starter printed %q (%v)", line, err)
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	deadline := time.Now().Add(10 * time.Second)
	for alive(pid) {
		if time.Now().After(deadline) {
			t.Fatalf("the broker, process %d, outlives the process that started it", pid)
		}
		time.Sleep(10 * time.Millisecond)
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
