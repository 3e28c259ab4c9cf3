package replication

import (
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// On a near link the small buffer has room for four segments, and at least nearBuffer.
func TestAutoReceiveBuffer(t *testing.T) {
	client, _ := tcpPair(t)
	_ = mustBufferSetter(t, client)
	for _, segment := range []int{1448, 12 << 10, largestSegment} {
		control := func(_, _ string, raw syscall.RawConn) error {
			return raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, segment) })
		}
		if segment == largestSegment {
			control = limitSegments
		}
		size := 0
		for range 50 { // on a busy machine one connection may be slow
			client, _ := tcpPairWith(t, control)
			size = max(size, autoBuffer(t, client))
		}
		least, most := max(nearBuffer, 4*(segment-20)), max(nearBuffer, 4*segment) // TCP's options take some bytes of a segment
		if size < least || size > most {
			t.Errorf("segments of %d bytes: a buffer of %d bytes, want %d to %d", segment, size, least, most)
		}
	}
}

// autoBuffer returns the size of a connection's buffer while it is small, or 0 if it is never small.
func autoBuffer(t *testing.T, conn net.Conn) (size int) {
	t.Helper()
	narrow := bufferSetter(conn, AutoReceiveBuffer)
	if narrow == nil {
		return 0
	}
	narrow(true)
	err := rawConn(conn).Control(func(fd uintptr) { size, _ = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF) })
	must(t, err)
	return size / 2 // the kernel doubles the size that is set
}
