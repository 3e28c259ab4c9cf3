package walsendertest

import (
	"fmt"
	"runtime"
	"time"
)

// lock is a mutex that never hangs a test. A sync.Mutex that a Fatal or a panic left locked does: whoever needs it waits
// until go test's own time-out, in a bubble too, because waiting for a mutex does not let a bubble's time pass. Waiting
// for a channel does.
type lock chan struct{}

func newLock() lock { return make(lock, 1) }

// Lock panics if somebody keeps it for longer than anything takes: a callback of a test that calls the server, say.
func (l lock) Lock() {
	select {
	case l <- struct{}{}:
		return
	default:
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case l <- struct{}{}:
	case <-late.C:
		panic(fmt.Sprintf("walsendertest: the server is locked for %s; does a callback call it?\n%s", patience, stacks()))
	}
}

func (l lock) Unlock() { <-l }

// do runs f with the lock, which is free again however f ends.
func (l lock) do(f func()) {
	l.Lock()
	defer l.Unlock()
	f()
}

// stacks are those of all goroutines.
func stacks() []byte {
	b := make([]byte, 1<<20)
	return b[:runtime.Stack(b, true)]
}
