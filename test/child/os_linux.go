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

// standsStill is nil when every thread of a process is stopped. The signal is
// only asked for when kill returns: a thread may be running yet.
func standsStill(pid int) error {
	threads, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/stat")
	if err != nil {
		return err
	}
	for _, thread := range threads {
		stat, err := os.ReadFile(thread)
		if err != nil {
			continue // it ended
		}
		// The state follows the name, which is in parentheses and may hold any.
		after := stat[bytes.LastIndexByte(stat, ')')+1:]
		if !bytes.HasPrefix(after, []byte(" T")) {
			return fmt.Errorf("thread %s is not stopped", filepath.Base(filepath.Dir(thread)))
		}
	}
	return nil
}
