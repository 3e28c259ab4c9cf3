package retention

import (
	"errors"

	"golang.org/x/sys/unix"
)

// awaitEnd waits until a child has ended, and does not wait for it in the sense of wait(2): its process id stays taken.
func awaitEnd(pid int) {
	for errors.Is(unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
}
