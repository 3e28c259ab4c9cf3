package main

import (
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// TestSignals checks that the first signal starts the drain and that a second one exits, unless it follows immediately,
// as from a signal to the process group.
func TestSignals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signals := make(chan os.Signal)
		var drained, left int
		go handleSignals(signals, func() { drained++ }, func() { left++ })
		send := func(after time.Duration) {
			time.Sleep(after)
			signals <- syscall.SIGTERM
			synctest.Wait()
		}
		send(0)
		send(time.Millisecond)
		send(900 * time.Millisecond)
		if drained != 1 || left != 0 {
			t.Errorf("within a second: %d drains, left %d times", drained, left)
		}
		send(100 * time.Millisecond)
		if drained != 1 || left != 1 {
			t.Errorf("after a second: %d drains, left %d times", drained, left)
		}
	})
}

// must fails the test with an error that no step of it expects.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
