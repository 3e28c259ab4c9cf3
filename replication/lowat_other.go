//go:build !linux

package replication

import "net"

// lowatSetter returns nil: on this system a pause only saves our own reads.
func lowatSetter(net.Conn) func(bytes int) { return nil }
