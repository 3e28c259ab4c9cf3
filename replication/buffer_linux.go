package replication

import (
	"net"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// wideBuffer is the size of the buffer when the kernel controls it again. The kernel may enlarge it.
const wideBuffer = 256 << 10

// bufferSetter returns a function that sets the receive buffer of a connection's socket to the given size, or returns
// control to the kernel. It returns nil if the kernel should always control the size.
func bufferSetter(conn net.Conn, bytes int) func(yes bool) {
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

// canNarrow reports whether the socket may have a small buffer. It replaces AutoReceiveBuffer by a size.
func canNarrow(fd int, bytes *int) bool {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return false
	}
	if *bytes == AutoReceiveBuffer {
		if time.Duration(info.Min_rtt)*time.Microsecond >= nearLink { // as measured when the connection was made
			return false
		}
		*bytes = max(nearBuffer, 4*min(int(info.Advmss), largestSegment))
	}
	// A window smaller than a segment is filled by the server's timer alone, every 200 ms.
	if 2*int(info.Advmss) > *bytes {
		return false
	}
	// Before Linux 5.14 the kernel cannot regain control of the size.
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BUF_LOCK, 0) == nil
}

// limitSegments limits the segment size of a socket before it connects: the loopback's segments of 64 KiB do not fit
// into a small buffer.
func limitSegments(network, _ string, raw syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	return raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, largestSegment) })
}
