//go:build !unix

package replication

import "net"

func tryReader(net.Conn) func(p []byte) (n int, err error, nothing bool) { return nil }
