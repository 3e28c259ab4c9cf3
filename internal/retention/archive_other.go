//go:build !linux

package retention

import (
	"errors"

	"golang.org/x/sys/unix"
)

// awaitEnd waits until a child has ended, and does not wait for it in the sense of wait(2): its process id stays taken.
func awaitEnd(pid int) {
	queue, err := unix.Kqueue()
	if err != nil {
		return
	}
	defer unix.Close(queue) //nolint:errcheck // nothing is written to it
	var exit unix.Kevent_t
	unix.SetKevent(&exit, pid, unix.EVFILT_PROC, unix.EV_ADD)
	exit.Fflags = unix.NOTE_EXIT
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		_, err = unix.Kevent(queue, []unix.Kevent_t{exit}, make([]unix.Kevent_t, 1), nil)
	}
}
