package child

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// MemoryDir returns the folder in which Linux keeps files in memory if 8 GiB are free there and programs may be run
// from it, otherwise "". On a disk, servers that come and go cost much: ext4 searches long for an inode while many were
// deleted just before, and the first write to an index file of a Kafka partition can take 13 ms.
func MemoryDir() string {
	const dir = "/dev/shm"
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) != nil || s.Type != unix.TMPFS_MAGIC || s.Flags&unix.ST_NOEXEC != 0 || s.Bavail*uint64(s.Bsize) < 8<<30 {
		return ""
	}
	return dir
}

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
