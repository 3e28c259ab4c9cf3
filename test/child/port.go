package child

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
)

// Ports are taken from below the range that the kernel hands out for outgoing connections: a server that is stopped and
// started again on its port must not find it taken by somebody's client socket in between.
const lowest, highest, share = 12000, 30000, 200

// given are the ports that this process has handed out. A server may take seconds until it listens. Until the process ends, a UDP socket
// on the same number tells other processes that the port is taken.
var given struct {
	sync.Mutex
	ports map[int]net.PacketConn
}

// FreePort returns a free TCP port of 127.0.0.1. It returns no port twice, and none that another process has from it. Processes begin in
// different shares of the range.
func FreePort() (int, error) {
	given.Lock()
	defer given.Unlock()
	if given.ports == nil {
		given.ports = map[int]net.PacketConn{}
	}
	const all = highest - lowest
	begin := os.Getpid() % (all / share) * share
	for i, first := 0, rand.IntN(share); i < all; i++ {
		port := lowest + (begin+i)%all
		if i < share { // of our own share from anywhere: what ran before may linger at its beginning
			port = lowest + begin + (first+i)%share
		}
		if given.ports[port] != nil {
			continue
		}
		mark, err := net.ListenPacket("udp4", address(port))
		if err != nil { // another process has handed it out
			continue
		}
		if CheckPort(port) != nil {
			_ = mark.Close()
			continue
		}
		given.ports[port] = mark
		return port, nil
	}
	return 0, fmt.Errorf("found no free port between %d and %d on 127.0.0.1", lowest, highest)
}

func address(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

// CheckPort fails when something listens on a port of 127.0.0.1. A server is to
// be started only after this: otherwise the one that has the port may answer
// and be taken for it, before it has found out that it cannot have the port.
func CheckPort(port int) error {
	l, err := net.Listen("tcp4", address(port))
	if err != nil {
		return fmt.Errorf("use port %d: %w", port, err)
	}
	return l.Close()
}
