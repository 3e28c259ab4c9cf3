package walsendertest

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// failing is a testing.TB that records a failure instead of failing.
type failing struct {
	testing.TB
	said bytes.Buffer
}

func (f *failing) Errorf(format string, args ...any) { fmt.Fprintf(&f.said, format, args...) }
func (f *failing) Fatalf(format string, args ...any) { f.Errorf(format, args...); runtime.Goexit() }

// within runs f in a goroutine of its own, which may end with Fatal or a panic, and returns the panic.
func within(t *testing.T, d time.Duration, f func()) (broken any) {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() { broken = recover() }()
		f()
	}()
	select {
	case <-ended:
	case <-time.After(d):
		t.Fatalf("it hangs; at the least for %s", d)
	}
	return broken
}

// TestNothingHangs: however a test ends, the server keeps answering, can be closed, and time passes in a bubble.
func TestNothingHangs(t *testing.T) {
	for name, f := range map[string]func(*Server, *failing){
		"Fatal in Edit":          func(s *Server, tb *failing) { s.Edit(func(*Catalog) { tb.Fatalf("x") }) },
		"panic in Edit":          func(s *Server, _ *failing) { s.Edit(func(c *Catalog) { c.Tables[9].Name = "x" }) },
		"Fatal in a condition":   func(s *Server, tb *failing) { s.await("x", func() bool { tb.Fatalf("x"); return true }) },
		"panic in a condition":   func(s *Server, _ *failing) { s.await("x", func() bool { panic("x") }) },
		"waited in vain":         func(s *Server, _ *failing) { s.AwaitSession(1) },
		"Edit calls the server":  func(s *Server, _ *failing) { s.Edit(func(*Catalog) { s.Checkpoint() }) },
		"nil for a transaction":  func(s *Server, _ *failing) { s.Commit(nil) },
		"a query that is no one": func(s *Server, _ *failing) { s.mu.do(func() { queries[3].rows(&view{Server: s}) }) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tb := &failing{TB: t}
				s := NewInMemory(tb, NewCatalog())
				if broken := within(t, 2*patience, func() { f(s, tb) }); broken == nil && tb.said.Len() == 0 {
					t.Error("it went well")
				}
				within(t, time.Second, func() {
					if s.URL() == "" || s.Catalog().Database == "" {
						t.Error("no answer")
					}
				})
				within(t, time.Second, s.Close)
			})
		})
	}
}

// TestStatusesAreLookedAtOutside: the callback may call the server, and waiting for a callback that is never satisfied
// ends.
func TestStatusesAreLookedAtOutside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tb := &failing{TB: t}
		s := NewInMemory(tb, NewCatalog())
		x := &Session{s: s}
		within(t, time.Second, func() { x.AwaitStatuses("any", func([]Status) bool { return s.URL() != "" && x.Statuses() == nil }) })
		stop := make(chan struct{})
		go func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Second):
					s.edit(func() { x.statuses = append(x.statuses, Status{}) })
				}
			}
		}()
		within(t, 3*patience, func() { x.AwaitStatuses("never", func([]Status) bool { return false }) })
		close(stop)
		if !strings.Contains(tb.said.String(), "never") {
			t.Errorf("said %q", tb.said.String())
		}
	})
}

// TestCloseIsBounded: Close reports a goroutine of the server that does not end.
func TestCloseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tb := &failing{TB: t}
		s := NewInMemory(tb, NewCatalog())
		release := make(chan struct{})
		s.wg.Go(func() { <-release })
		within(t, 2*patience, s.Close)
		close(release)
		if !strings.Contains(tb.said.String(), "not closed") {
			t.Errorf("said %q", tb.said.String())
		}
		if _, err := s.Dial(context.Background(), "", ""); err == nil {
			t.Error("a closed server takes connections")
		}
	})
}
