package lane

import "context"

// Pool has goroutines for a transport whose calls wait for their answer. A goroutine is used again, so that its stack
// does not grow for each call.
type Pool struct{ work chan func() }

// NewPool returns a pool without goroutines.
func NewPool() Pool { return Pool{make(chan func())} }

// Go runs f in a goroutine of the pool. Goroutines without work end with ctx.
func (p Pool) Go(ctx context.Context, f func()) {
	select {
	case p.work <- f:
	default:
		go p.run(ctx, f)
	}
}

func (p Pool) run(ctx context.Context, f func()) {
	for {
		f()
		select {
		case f = <-p.work:
		case <-ctx.Done():
			return
		}
	}
}
