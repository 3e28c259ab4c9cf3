package walsendertest

import (
	"fmt"
	"runtime"
	"time"
)

// lock is a mutex that never hangs a test. If a Fatal or a panic left a sync.Mutex locked, other goroutines would wait
// until go test's own time-out. That is so in a bubble too, where waiting for a mutex does not let time pass; waiting
// for a channel does.
type lock chan struct{}

func newLock() lock { return make(lock, 1) }

// Lock panics if the lock is held for far too long, for example because a test's callback calls the server.
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

// do runs f with the lock, and always releases it afterwards.
func (l lock) do(f func()) {
	l.Lock()
	defer l.Unlock()
	f()
}

// stacks returns the stacks of all goroutines.
func stacks() []byte {
	b := make([]byte, 1<<20)
	return b[:runtime.Stack(b, true)]
}
