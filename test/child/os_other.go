//go:build unix && !linux

package child

import "syscall"

// setDeathSignal does nothing: only Linux can tie a process to its parent.
func setDeathSignal(*syscall.SysProcAttr, syscall.Signal) {}

// standsStill assumes that it is: there is no /proc to check.
func standsStill(int) error { return nil }
