package replication

import (
	"sync"
	"time"
)

// AutoReceiveBuffer as Config.ReceiveBuffer means room for four segments, at least nearBuffer, on a link with a round
// trip below nearLink, and the kernel's own size on any other link, where a small buffer would limit the throughput.
// The loopback has segments of largestSegment, so there it means 64 KiB. DefaultReadInterval is the daemon's
// Config.ReadInterval.
const (
	DefaultReadInterval = 10 * time.Millisecond

	AutoReceiveBuffer = -1
	nearBuffer        = 32 << 10
	largestSegment    = 16 << 10
	nearLink          = 300 * time.Microsecond
)

// receiveBuffer keeps the socket's receive buffer small while the socket is read often.
//
// A small buffer is soon full. Then messages accumulate in the server's kernel, which sends them in a few large
// segments. Sending each message in its own segment is a third of a walsender's cost.
//
// The kernel does not enlarge a buffer with a fixed size. When small messages fill such a buffer and the socket is
// not read for long (Kafka is unavailable), Linux 6.18 drops segments that fit into the advertised window, and with
// them the TCP acknowledgements of our data: status updates no longer arrive, and the server frees the slot. So the
// kernel controls the size again after widenAfter without a read.
type receiveBuffer struct {
	narrow func(yes bool) // sets the small size, or returns control to the kernel; nil: the kernel always controls the size

	mu         sync.Mutex
	small      bool
	widenTimer *time.Timer
}

const widenAfter = 100 * time.Millisecond

// beforeRead is called before each read of the socket.
func (b *receiveBuffer) beforeRead() {
	if b.narrow == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.widenTimer == nil {
		b.widenTimer = time.AfterFunc(widenAfter, b.widen)
	} else {
		b.widenTimer.Reset(widenAfter)
	}
	if !b.small {
		b.small = true
		b.narrow(true)
	}
}

// widen is called when the socket has not been read for widenAfter. It may have been closed since.
func (b *receiveBuffer) widen() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.small {
		b.small = false
		b.narrow(false)
	}
}
