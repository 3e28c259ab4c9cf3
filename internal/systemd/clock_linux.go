package systemd

import "golang.org/x/sys/unix"

// monotonicMicros is CLOCK_MONOTONIC in microseconds.
func monotonicMicros() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0
	}
	return t.Nano() / 1000
}
