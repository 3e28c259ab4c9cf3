//go:build !linux

package replication

import (
	"net"
	"syscall"
)

// bufferSetter returns nil: on this system the kernel controls the size.
func bufferSetter(net.Conn, int) func(yes bool) { return nil }

func limitSegments(string, string, syscall.RawConn) error { return nil }
