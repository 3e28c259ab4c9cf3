//go:build unix

package replication

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
)

// try returns what reads a connection without waiting: nothing says that there is nothing now. It obeys the connection's
// read deadline. nil: the connection is none of the kernel's.
func try(conn net.Conn) func(p []byte) (n int, err error, nothing bool) {
	raw := rawConn(conn)
	if raw == nil {
		return nil
	}
	var p []byte
	var n int
	var failed error
	read := func(fd uintptr) bool {
		for {
			if n, failed = syscall.Read(int(fd), p); failed != syscall.EINTR {
				return true // also when there is nothing: it is not to wait
			}
		}
	}
	return func(into []byte) (int, error, bool) {
		p = into
		defer func() { p = nil }()
		switch err := raw.Read(read); {
		case err != nil:
			return 0, err, false
		case errors.Is(failed, syscall.EAGAIN):
			return 0, nil, true
		case failed != nil:
			return 0, &net.OpError{Op: "read", Net: conn.LocalAddr().Network(), Source: conn.LocalAddr(), Addr: conn.RemoteAddr(), Err: os.NewSyscallError("read", failed)}, false
		case n == 0:
			return 0, io.EOF, false
		}
		return n, nil, false
	}
}

// rawConn is the kernel's end of a connection; nil: it is none of the kernel's.
func rawConn(conn net.Conn) syscall.RawConn {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}
