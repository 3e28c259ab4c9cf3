package child

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports are taken from below the range that the kernel hands out for outgoing connections: a server that is stopped and
// started again on its port must not find it taken by somebody's client socket in between.
const lowest, highest = 12000, 30000

// given are the ports that this process has handed out, each with what keeps other processes from it.
var given struct {
	sync.Mutex
	ports map[int]io.Closer
}

// FreePort returns a TCP port of 127.0.0.1 that nobody listens on, and no port twice, whichever process asks (on Linux): a server may
// take seconds until it listens, and several processes start servers at the same time.
func FreePort() (int, error) {
	given.Lock()
	defer given.Unlock()
	if given.ports == nil {
		given.ports = map[int]io.Closer{}
	}
	const all = highest - lowest
	first := rand.IntN(all)
	for i := range all {
		port := lowest + (first+i)%all
		if given.ports[port] != nil || CheckPort(port) != nil {
			continue
		}
		if held, err := reserve(port); err == nil {
			given.ports[port] = held
			return port, nil
		}
	}
	return 0, fmt.Errorf("found no free port between %d and %d on 127.0.0.1", lowest, highest)
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
