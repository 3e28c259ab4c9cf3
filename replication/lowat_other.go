//go:build !linux

package replication

import "net"

// lowat: elsewhere a pause only saves our own reads.
func lowat(net.Conn) func(bytes int) { return nil }
