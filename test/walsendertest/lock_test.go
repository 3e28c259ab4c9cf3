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

// recordingTB is a testing.TB that records a failure instead of failing.
type recordingTB struct {
	testing.TB
	messages bytes.Buffer
}

func (f *recordingTB) Errorf(format string, args ...any) { fmt.Fprintf(&f.messages, format, args...) }

func (f *recordingTB) Fatalf(format string, args ...any) { f.Errorf(format, args...); runtime.Goexit() }

// runWithin runs f in a goroutine of its own, which may end with Fatal or a panic, and returns the panic.
func runWithin(t *testing.T, d time.Duration, f func()) (broken any) {
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
		t.Fatalf("it hangs, for at least %s", d)
	}
	return broken
}

// TestNothingHangs: however a test ends, the server keeps answering, can be closed, and time passes in a bubble.
func TestNothingHangs(t *testing.T) {
	for name, f := range map[string]func(*Server, *recordingTB){
		"Fatal in Edit":          func(s *Server, tb *recordingTB) { s.Edit(func(*Catalog) { tb.Fatalf("x") }) },
		"panic in Edit":          func(s *Server, _ *recordingTB) { s.Edit(func(c *Catalog) { c.Tables[9].Name = "x" }) },
		"Fatal in a condition":   func(s *Server, tb *recordingTB) { s.await("x", func() bool { tb.Fatalf("x"); return true }) },
		"panic in a condition":   func(s *Server, _ *recordingTB) { s.await("x", func() bool { panic("x") }) },
		"waited without success": func(s *Server, _ *recordingTB) { s.AwaitSession(1) },
		"Edit calls the server":  func(s *Server, _ *recordingTB) { s.Edit(func(*Catalog) { s.Checkpoint() }) },
		"nil for a transaction":  func(s *Server, _ *recordingTB) { s.Commit(nil) },
		"an unknown query":       func(s *Server, _ *recordingTB) { s.mu.do(func() { queries[3].rows(&view{Server: s}) }) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tb := &recordingTB{TB: t}
				s := NewInMemory(tb, NewCatalog())
				if broken := runWithin(t, 2*patience, func() { f(s, tb) }); broken == nil && tb.messages.Len() == 0 {
					t.Error("it succeeded")
				}
				runWithin(t, time.Second, func() {
					if s.URL() == "" || s.Catalog().Database == "" {
						t.Error("no answer")
					}
				})
				runWithin(t, time.Second, s.Close)
			})
		})
	}
}

// TestStatusesAreLookedAtOutside: the callback may call the server, and waiting for a callback that is never satisfied
// ends.
func TestStatusesAreLookedAtOutside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tb := &recordingTB{TB: t}
		s := NewInMemory(tb, NewCatalog())
		x := &Session{s: s}
		runWithin(t, time.Second, func() { x.AwaitStatuses("any", func([]Status) bool { return s.URL() != "" && x.Statuses() == nil }) })
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
		runWithin(t, 3*patience, func() { x.AwaitStatuses("never", func([]Status) bool { return false }) })
		close(stop)
		if !strings.Contains(tb.messages.String(), "never") {
			t.Errorf("said %q", tb.messages.String())
		}
	})
}

// TestCloseIsBounded: Close reports a goroutine of the server that does not end.
func TestCloseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tb := &recordingTB{TB: t}
		s := NewInMemory(tb, NewCatalog())
		release := make(chan struct{})
		s.wg.Go(func() { <-release })
		runWithin(t, 2*patience, s.Close)
		close(release)
		if !strings.Contains(tb.messages.String(), "not closed") {
			t.Errorf("said %q", tb.messages.String())
		}
		if _, err := s.Dial(context.Background(), "", ""); err == nil {
			t.Error("a closed server accepts connections")
		}
	})
}
