package replication

import (
	"sync"
	"time"
)

// AutoReceiveBuffer as Config.ReceiveBuffer stands for nearBuffer on a link with a round trip below nearLink, and for the
// kernel's own size elsewhere, where a small buffer would be what bounds the rate.
const (
	AutoReceiveBuffer = -1
	nearBuffer        = 16 << 10
	nearLink          = 300 * time.Microsecond
)

// buffer is the socket's receive buffer, kept small while the socket is read often.
//
// A small buffer is soon full. Then the server's messages pile up at its end, where its kernel makes a few large segments
// of them, instead of taking each one through all layers of the network by itself, which is a third of what a walsender
// costs.
//
// But a socket whose buffer has a size of its own cannot grow. When small messages fill it and it is not read for long
// (Kafka is away), Linux 6.18 drops segments that it had offered room for, and with them the acknowledgements of what we
// send: status updates do not arrive any more, and the server frees the slot. So the kernel gets the choice back when the
// socket has not been read for wideAfter.
type buffer struct {
	narrow func(yes bool) // nil: the kernel's own, always

	mu    sync.Mutex
	small bool
	widen *time.Timer
}

const wideAfter = 100 * time.Millisecond

// read is called before each read of the socket.
func (b *buffer) read() {
	if b.narrow == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.widen == nil {
		b.widen = time.AfterFunc(wideAfter, b.unread)
	} else {
		b.widen.Reset(wideAfter)
	}
	if !b.small {
		b.small = true
		b.narrow(true)
	}
}

// unread is called when there has been no read for a while.
func (b *buffer) unread() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.small {
		b.small = false
		b.narrow(false)
	}
}

// forget ends it all: the socket is closed.
func (b *buffer) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.widen != nil {
		b.widen.Stop()
	}
}
