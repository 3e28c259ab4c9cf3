//go:build !linux

package replication

import (
	"net"
	"time"
)

// lowatSetter returns nil: on this system a pause only saves our own reads.
func lowatSetter(net.Conn) func(bytes int) { return nil }

func nap(d time.Duration) { time.Sleep(d) }
