package replication

import (
	"net"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// wideBuffer is what the kernel starts from when the choice is its own again; it may enlarge it.
const wideBuffer = 256 << 10

// narrow returns what gives a connection's socket a receive buffer of so many bytes, and the choice back to the kernel.
// nil: it is the kernel's.
func narrow(conn net.Conn, bytes int) func(yes bool) {
	tcp, ok := conn.(*net.TCPConn)
	if bytes == 0 || !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil
	}
	able := false
	_ = raw.Control(func(fd uintptr) { able = canNarrow(int(fd), &bytes) })
	if !able {
		return nil
	}
	return func(yes bool) {
		_ = raw.Control(func(fd uintptr) { // fails on a closed connection, as the read will
			if yes {
				_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, bytes)
				return
			}
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, wideBuffer)
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BUF_LOCK, 0)
		})
	}
}

// canNarrow says whether the socket may have a small buffer, and makes a size of auto.
func canNarrow(fd int, bytes *int) bool {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return false
	}
	if *bytes == AutoReceiveBuffer {
		if time.Duration(info.Min_rtt)*time.Microsecond >= nearLink { // as measured when the connection was made
			return false
		}
		*bytes = nearBuffer
	}
	// A window smaller than a segment is filled by the server's timer alone, every 200 ms.
	if 2*int(info.Advmss) > *bytes {
		return false
	}
	// A size that cannot be given back (before Linux 5.14) is not taken.
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BUF_LOCK, 0) == nil
}

// limitSegments is for before a connection is made: loopback's segments of 64 KiB would not fit into a small buffer.
func limitSegments(network, _ string, raw syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	return raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, nearBuffer/2) })
}
