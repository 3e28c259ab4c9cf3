package child

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// FreePort returns a TCP port of 127.0.0.1 that nobody listens on.
//
// It takes them from below the range that the kernel hands out for outgoing
// connections: a server that is stopped and started again on its port must not
// find it taken by somebody's client socket in between.
func FreePort() (int, error) {
	const low, high = 12000, 30000
	for range 200 {
		port := low + rand.IntN(high-low)
		if CheckPort(port) == nil {
			return port, nil
		}
	}
	return 0, errors.New("found no free port between 12000 and 30000 on 127.0.0.1")
}

// CheckPort fails when something listens on a port of 127.0.0.1. A server is to
// be started only after this: otherwise the one that has the port may answer
// and be taken for it, before it has found out that it cannot have the port.
func CheckPort(port int) error {
	l, err := net.Listen("tcp4", "127.0.0.1:"+strconv.Itoa(port))
	if err != nil {
		return fmt.Errorf("use port %d: %w", port, err)
	}
	return l.Close()
}
