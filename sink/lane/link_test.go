package lane

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

type testConnection struct{ ended atomic.Bool }

func (c *testConnection) Closed() bool { return c.ended.Load() }
func (c *testConnection) End()         { c.ended.Store(true) }

// TestLink: lanes share a connection. When it has ended, one of them opens another one, and after a failure not again
// at once.
func TestLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dials, running, most atomic.Int32
		refuse := true
		first := &testConnection{}
		l := NewLink(first, time.Second, 4*time.Second, func(context.Context) (*testConnection, *Failure) {
			dials.Add(1)
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			time.Sleep(time.Millisecond) // of the bubble
			if refuse {
				return nil, &Failure{Op: "connect", Code: CodeConnection, Err: errors.New("refused")}
			}
			return &testConnection{}, nil
		})
		get := func() (connections int, failed int32) {
			var got sync.Map
			var failures atomic.Int32
			var all sync.WaitGroup
			for range 50 {
				all.Go(func() {
					c, why := l.Get(t.Context())
					if why != nil {
						failures.Add(1)
						return
					}
					got.Store(c, true)
				})
			}
			all.Wait()
			got.Range(func(any, any) bool { connections++; return true })
			return connections, failures.Load()
		}
		if _, failed := get(); failed > 0 || dials.Load() > 0 {
			t.Error("an open connection is not used")
		}
		first.End()
		if _, failed := get(); failed != 50 || dials.Load() > 2 {
			t.Errorf("%d of 50 failed, after %d dials", failed, dials.Load())
		}
		refuse = false
		before := dials.Load()
		time.Sleep(5 * time.Second) // of the bubble
		n, failed := get()
		if failed > 0 || n != 1 || dials.Load() != before+1 || most.Load() != 1 {
			t.Errorf("%d failed, %d connections, %d dials, %d at once", failed, n, dials.Load()-before, most.Load())
		}
		l.End()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if c, why := l.Get(ended); why == nil && !c.Closed() {
			t.Error("a connection is open after the session was cut")
		}
	})
}
