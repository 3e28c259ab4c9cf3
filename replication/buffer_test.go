package replication

import (
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// The buffer is small while the socket is read often, and the kernel's own when it is not: with a small one and nobody who
// reads, status updates would be lost.
func TestBufferIsSmallWhileRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said []bool
		b := &buffer{}
		b.narrow = func(yes bool) { said = append(said, yes) } // called with mu held
		check := func(when string, want ...bool) {
			t.Helper()
			synctest.Wait()
			b.mu.Lock()
			defer b.mu.Unlock()
			if !slices.Equal(said, want) {
				t.Errorf("%s: %v, want %v", when, said, want)
			}
		}
		check("before the first read")
		for range 10 {
			b.read()
			time.Sleep(wideAfter - time.Millisecond)
		}
		check("while it is read", true)
		time.Sleep(time.Millisecond)
		check("when it is not", true, false)
		time.Sleep(time.Hour)
		check("for long", true, false)
		b.read()
		check("when it is read again", true, false, true)
		b.forget()
		time.Sleep(time.Hour)
		check("when it is closed", true, false, true)
	})
	(&buffer{}).read() // the kernel's own
	(&buffer{}).forget()
}

// mustNarrow is narrow where there can be a small buffer. CI runs where there can.
func mustNarrow(t *testing.T, conn net.Conn) func(yes bool) {
	t.Helper()
	f := narrow(conn, nearBuffer)
	if f == nil && runtime.GOOS == "linux" && os.Getenv("CI") == "true" {
		t.Fatal("no small receive buffer, although this is Linux: CI needs 5.14 or later")
	}
	if f == nil {
		t.Skip("no small receive buffer: that takes Linux 5.14")
	}
	return f
}

// What nobody reads for long must not keep what we write from arriving: small messages fill the buffer, and each second
// something of ours has to get through.
func TestUnreadSocketStillSends(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes seconds")
	}
	var others sync.WaitGroup
	t.Cleanup(others.Wait) // after the connections are closed
	client, server := wire(t)
	c := newLateConn(client, 5*time.Millisecond, func() {})
	c.buffer.narrow = mustNarrow(t, client)
	stop := make(chan struct{})
	defer close(stop)
	others.Go(func() { // the walsender: a message of 120 bytes every 1.5 ms, for as long as they are taken
		message := make([]byte, 120)
		for {
			select {
			case <-stop:
				return
			case <-time.After(1500 * time.Microsecond):
			}
			_ = server.SetWriteDeadline(time.Now().Add(time.Millisecond))
			_, _ = server.Write(message)
		}
	})
	_, _ = c.Read(make([]byte, 1000))
	heard := make(chan int, 100)
	others.Go(func() {
		p := make([]byte, 100)
		for {
			n, err := server.Read(p)
			if err != nil {
				return
			}
			heard <- n
		}
	})
	for i := range 8 {
		time.Sleep(time.Second) // nobody reads
		if _, err := c.Write([]byte("status")); err != nil {
			t.Fatal(err)
		}
		select {
		case <-heard:
		case <-time.After(3 * time.Second):
			t.Fatalf("what was written after %d s has not arrived for 3 s", i+1)
		}
	}
}

// A near link gets the small buffer, a size that was asked for is taken anywhere, and 0 leaves it to the kernel.
func TestNarrow(t *testing.T) {
	client, _ := wire(t)
	_ = mustNarrow(t, client)
	near := false
	for range 50 { // a busy machine may take its time for one connection
		client, _ := wire(t)
		near = near || narrow(client, AutoReceiveBuffer) != nil
	}
	if !near {
		t.Error("loopback is not near")
	}
	for _, bytes := range []int{0, 64 << 10} {
		if got := narrow(client, bytes) != nil; got != (bytes != 0) {
			t.Errorf("%d bytes: taken: %v", bytes, got)
		}
	}
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if narrow(a, 64<<10) != nil {
		t.Error("a pipe has no such buffer")
	}
}

// With a small buffer a backlog still flows: a window smaller than a segment would be filled every 200 ms only.
func TestSmallBufferFlows(t *testing.T) {
	var slow []int
	for range 4 { // a busy machine may have its own pauses
		n := slowReads(t)
		if n <= 3 {
			return
		}
		slow = append(slow, n)
	}
	t.Errorf("%d reads waited for 150 ms and more, in as many backlogs", slow)
}

// slowReads reads a backlog through a small buffer, and counts the reads that waited for long.
func slowReads(t *testing.T) (slow int) {
	t.Helper()
	var others sync.WaitGroup
	t.Cleanup(others.Wait) // after the connections are closed
	client, server := wire(t)
	c := newLateConn(client, 5*time.Millisecond, func() {})
	c.buffer.narrow = mustNarrow(t, client)
	const total = 96 << 20
	others.Go(func() {
		message := make([]byte, 200)
		for range total / len(message) {
			_, _ = server.Write(message)
		}
		_ = server.Close()
	})
	p, got := make([]byte, 64<<10), 0
	for got < total/200*200 {
		start := time.Now()
		n, err := c.Read(p)
		if err != nil {
			t.Fatal(err)
		}
		if got += n; time.Since(start) > 150*time.Millisecond {
			slow++
		}
	}
	return slow
}

// Segments that do not fit twice into the buffer forbid it: those of loopback, where nothing has bounded them.
func TestNoSmallBufferForLargeSegments(t *testing.T) {
	client, _ := wire(t)
	_ = mustNarrow(t, client)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	unlimited, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer unlimited.Close()
	if narrow(unlimited, AutoReceiveBuffer) != nil || narrow(unlimited, 64<<10) != nil {
		t.Error("a buffer smaller than two segments")
	}
	if narrow(unlimited, 1<<20) == nil {
		t.Error("1 MiB is enough for two segments")
	}
}
