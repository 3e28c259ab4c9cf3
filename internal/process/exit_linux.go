// Package process waits for the end of a child process without releasing its id.
package process

import (
	"errors"

	"golang.org/x/sys/unix"
)

// AwaitExit returns when a child has ended. It does not wait for it in the sense of wait(2): until the caller has done
// that, no other process has the id of the child, and no other process group.
func AwaitExit(pid int) {
	for errors.Is(unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
}
