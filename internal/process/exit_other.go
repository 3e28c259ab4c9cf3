//go:build !linux

// Package process waits for the end of a child process without releasing its id.
package process

import (
	"errors"

	"golang.org/x/sys/unix"
)

// AwaitExit returns when a child has ended. It does not wait for it in the sense of wait(2): until the caller has done
// that, no other process has the id of the child, and no other process group.
func AwaitExit(pid int) {
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

// Reap does nothing: only on Linux is there a container whose first process is this one.
func Reap(int) {}
