//go:build !linux

package systemd

func monotonicMicros() int64 { return 0 } // there is no systemd here
