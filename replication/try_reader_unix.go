//go:build unix

package replication

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
)

// tryReader returns a function that reads a connection without waiting, or nil if the connection has no socket. The
// function returns nothing = true if no bytes are available. It obeys the connection's read deadline.
func tryReader(conn net.Conn) func(p []byte) (n int, err error, nothing bool) {
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
				return true // even if no bytes are available: false would wait
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

// rawConn returns the socket of a connection, or nil if it has none.
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
