package replication

import (
	"net"
	"syscall"
)

// lowat returns a function that sets SO_RCVLOWAT of a connection: the socket becomes readable only when its buffer has that many
// bytes (socket(7)). Without it the runtime's poller, which watches every socket all the time, would be woken by each message
// although nothing reads. nil: the connection has no socket.
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
