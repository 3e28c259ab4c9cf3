package lane

import (
	"context"
	"sync"
	"time"
)

// Gate lets one try through at a time after a failure, so that lanes do not ask in turn for what is known to fail.
type Gate struct {
	Why   *Failure // nil: the last try has not failed
	tries int
	until time.Time
}

// Pass returns why a try is not due. The time between tries doubles from least to most.
func (g *Gate) Pass(least, most time.Duration) *Failure {
	if g.Why == nil {
		return nil
	}
	if now := time.Now(); now.After(g.until) {
		g.until = now.Add(min(least<<min(g.tries, 10), most))
		g.tries++
		return nil
	}
	f := *g.Why
	return &f
}

// Connection is what the lanes of a session share. Closed reports whether it has ended, and End ends it at once: what
// is not sent yet is dropped.
type Connection interface {
	Closed() bool
	End()
}

// Link has one connection at a time.
type Link[C Connection] struct {
	dial        func(ctx context.Context) (C, *Failure)
	least, most time.Duration // between tries to connect

	mu      sync.Mutex // guards the following
	current C
	dialing chan struct{} // closed when a call of dial has ended; nil: none runs
	down    Gate
}

// NewLink returns a link with its first connection.
func NewLink[C Connection](first C, least, most time.Duration, dial func(ctx context.Context) (C, *Failure)) *Link[C] {
	return &Link[C]{dial: dial, least: least, most: most, current: first}
}

// Current returns the newest connection, which may have ended.
func (l *Link[C]) Current() C {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current
}

// End ends the connection.
func (l *Link[C]) End() { l.Current().End() }

// Get returns the connection. If it has ended, one caller opens another one, and the rest waits for it.
func (l *Link[C]) Get(ctx context.Context) (C, *Failure) {
	for {
		l.mu.Lock()
		c, wait := l.current, l.dialing
		if !c.Closed() {
			l.mu.Unlock()
			return c, nil
		}
		if wait == nil {
			if why := l.down.Pass(l.least, l.most); why != nil {
				l.mu.Unlock()
				return c, why
			}
			l.dialing = make(chan struct{})
			l.mu.Unlock()
			return l.redial(ctx)
		}
		l.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return c, &Failure{Op: "wait for a connection to the receiver", Code: CodeConnection, Err: ctx.Err()}
		}
	}
}

func (l *Link[C]) redial(ctx context.Context) (C, *Failure) {
	c, why := l.dial(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if why == nil {
		l.current, l.down = c, Gate{}
		if ctx.Err() != nil {
			c.End()
		}
	} else {
		l.down.Why = why
	}
	close(l.dialing)
	l.dialing = nil
	return c, why
}
