//go:build unix && !linux

package child

import "syscall"

// setDeathSignal does nothing: only Linux can tie a process to its parent.
func setDeathSignal(*syscall.SysProcAttr, syscall.Signal) {}

// checkStopped assumes that it is: there is no /proc to check.
func checkStopped(int) error { return nil }

// MemoryDir returns "": the system keeps files in memory by itself.
func MemoryDir() string { return "" }
