package child

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

func setDeathSignal(attr *syscall.SysProcAttr, sig syscall.Signal) { attr.Pdeathsig = sig }

// checkStopped returns nil when every thread of a process is stopped. kill only requests that: a thread may still be
// running when it returns.
func checkStopped(pid int) error {
	threads, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/stat")
	if err != nil {
		return err
	}
	for _, thread := range threads {
		stat, err := os.ReadFile(thread)
		if err != nil {
			continue // it ended
		}
		// The state follows the name, which is in parentheses and may contain some.
		after := stat[bytes.LastIndexByte(stat, ')')+1:]
		if !bytes.HasPrefix(after, []byte(" T")) {
			return fmt.Errorf("thread %s is not stopped", filepath.Base(filepath.Dir(thread)))
		}
	}
	return nil
}
