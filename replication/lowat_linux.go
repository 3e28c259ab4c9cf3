package replication

import (
	"net"
	"syscall"
)

// lowat returns what sets SO_RCVLOWAT of a connection: with fewer bytes than that in its buffer no reader is told that
// there are any. Without it the runtime's poller, which watches every socket all the time, would be woken by each message
// although nothing reads. nil: the connection is none of the kernel's.
func lowat(conn net.Conn) func(bytes int) {
	raw := rawConn(conn)
	if raw == nil {
		return nil
	}
	var n int
	set := func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVLOWAT, n) }
	return func(bytes int) {
		n = bytes
		_ = raw.Control(set) // fails on a closed connection, as the read will
	}
}
