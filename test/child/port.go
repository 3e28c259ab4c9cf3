package child

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Ports are below the kernel's range for outgoing connections: between a server's stop and its next start no client
// socket can take its port.
const lowest, highest, shareSize = 12000, 30000, 200

// handedOut are the ports that this process has handed out. A server may take seconds until it listens. Until the
// process ends, a UDP socket on the same number shows other processes that the port is taken.
var handedOut struct {
	sync.Mutex
	ports map[int]net.PacketConn
}

// FreePort returns a free TCP port of 127.0.0.1: never one twice, and none that another process got from it. Processes
// begin in different shares of the range.
func FreePort() (int, error) {
	handedOut.Lock()
	defer handedOut.Unlock()
	if handedOut.ports == nil {
		handedOut.ports = map[int]net.PacketConn{}
	}
	const all = highest - lowest
	begin := os.Getpid() % (all / shareSize) * shareSize
	for i, first := 0, rand.IntN(shareSize); i < all; i++ {
		port := lowest + (begin+i)%all
		if i < shareSize { // of our own share at random: sockets of an earlier run may linger at its beginning
			port = lowest + begin + (first+i)%shareSize
		}
		if handedOut.ports[port] != nil {
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
		handedOut.ports[port] = mark
		return port, nil
	}
	return 0, fmt.Errorf("found no free port between %d and %d on 127.0.0.1", lowest, highest)
}

func address(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

// CheckPort fails when a process listens on a port of 127.0.0.1. Call it before starting a server: otherwise the
// process that has the port may answer and be taken for the server.
func CheckPort(port int) error {
	var l net.Listener
	var err error
	// A child that this process is just starting holds the listener of an earlier check until it has become another
	// program.
	for end := time.Now().Add(forkPatience); ; time.Sleep(10 * time.Millisecond) {
		if l, err = net.Listen("tcp4", address(port)); err == nil {
			return l.Close()
		}
		if !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(end) {
			return fmt.Errorf("use port %d: %w", port, err)
		}
	}
}

// forkPatience is how long CheckPort tries a port that is in use.
const forkPatience = 300 * time.Millisecond
