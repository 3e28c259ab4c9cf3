// Package process waits for the end of a child process without releasing its id.
package process

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// AwaitExit returns when a child has ended. It does not wait for it in the sense of wait(2): until the caller has done
// that, no other process has the id of the child, and no other process group.
func AwaitExit(pid int) {
	for errors.Is(unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
}

// Reap waits for the processes of a group that have become children of this process, until none is left. They do
// that if this process is the first one of a container, and would stay there as zombies. The group's id is that of
// a child that was waited for. No child that this process has started is waited for, if each is the first of its
// own group.
func Reap(group int) {
	for {
		var ended struct { // siginfo_t
			_   [3]int32
			_   [0]uintptr
			pid int32
			_   [112]byte
		}
		err := unix.Waitid(unix.P_PGID, group, (*unix.Siginfo)(unsafe.Pointer(&ended)), unix.WEXITED|unix.WNOWAIT, nil)
		switch pid := int(ended.pid); {
		case errors.Is(err, unix.EINTR):
		case err != nil, pid == group: // none is left, or a new child has the id
			return
		default:
			_, _ = unix.Wait4(pid, nil, 0, nil)
		}
	}
}
