package replication

import (
	"net"
	"syscall"
)

// lowatSetter returns a function that sets SO_RCVLOWAT of a connection, or nil if the connection has no socket. The
// socket becomes readable only when its buffer has that many bytes (socket(7)). Otherwise each message would wake the
// runtime's poller, which watches every socket, although no goroutine reads.
func lowatSetter(conn net.Conn) func(bytes int) {
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
