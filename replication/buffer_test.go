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

// The buffer is small while the socket is read often. Otherwise the kernel controls its size, because status updates
// would be lost with a small buffer that is not read.
func TestBufferIsSmallWhileRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls []bool
		b := &receiveBuffer{}
		b.narrow = func(yes bool) { calls = append(calls, yes) } // called with mu held
		check := func(when string, want ...bool) {
			t.Helper()
			synctest.Wait()
			b.mu.Lock()
			defer b.mu.Unlock()
			if !slices.Equal(calls, want) {
				t.Errorf("%s: %v, want %v", when, calls, want)
			}
		}
		check("before the first read")
		for range 10 {
			b.beforeRead()
			time.Sleep(widenAfter - time.Millisecond)
		}
		check("while the socket is read", true)
		time.Sleep(time.Millisecond)
		check("after widenAfter", true, false)
		time.Sleep(time.Hour)
		check("after an hour", true, false)
		b.beforeRead()
		check("after the next read", true, false, true)
		b.widenTimer.Stop()
	})
	(&receiveBuffer{}).beforeRead() // the kernel's own
}

// The buffer stays small during a backlog, in which all reads are full and none waits.
func TestBufferIsSmallInBacklog(t *testing.T) {
	withPacedConn(t, func(t *testing.T, s *socket, c *pacedConn) {
		var calls []bool
		c.buffer.narrow = func(yes bool) { calls = append(calls, yes) }
		c.setAge(backlog)
		for range 50 {
			s.arrive(make([]byte, fullRead))
			if n, err := c.Read(make([]byte, maxRead)); n != fullRead || err != nil {
				t.Fatal(n, err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		c.buffer.widenTimer.Stop()
		if !slices.Equal(calls, []bool{true}) {
			t.Errorf("set to small: %v", calls)
		}
	})
}

// mustBufferSetter is bufferSetter on systems that support it. CI runs on such a system.
func mustBufferSetter(t *testing.T, conn net.Conn) func(yes bool) {
	t.Helper()
	f := bufferSetter(conn, 4*largestSegment)
	if f == nil && runtime.GOOS == "linux" && os.Getenv("CI") == "true" {
		t.Fatal("no small receive buffer, although this is Linux: CI needs 5.14 or later")
	}
	if f == nil {
		t.Skip("no small receive buffer: that takes Linux 5.14")
	}
	return f
}

// Unread bytes must not keep ours from arriving: small messages fill the buffer, and one write per second has to
// arrive.
func TestUnreadSocketStillSends(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes seconds")
	}
	var goroutines sync.WaitGroup
	t.Cleanup(goroutines.Wait) // after the connections are closed
	client, server := tcpPair(t)
	c := newPacedConn(client, 5*time.Millisecond, &readTap{})
	c.buffer.narrow = mustBufferSetter(t, client)
	stop := make(chan struct{})
	defer close(stop)
	goroutines.Go(func() { // the walsender: a message of 120 bytes every 1.5 ms
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
	received := make(chan int, 100)
	goroutines.Go(func() {
		p := make([]byte, 100)
		for {
			n, err := server.Read(p)
			if err != nil {
				return
			}
			received <- n
		}
	})
	for i := range 8 {
		time.Sleep(time.Second) // without a read
		if _, err := c.Write([]byte("status")); err != nil {
			t.Fatal(err)
		}
		select {
		case <-received:
		case <-time.After(10 * time.Second):
			t.Fatalf("the write after %d s did not arrive within 10 s", i+1)
		}
	}
}

// A near link gets the small buffer, a configured size is used on every link, and 0 means the kernel's choice.
func TestBufferSetter(t *testing.T) {
	client, _ := tcpPair(t)
	_ = mustBufferSetter(t, client)
	near := false
	for range 50 { // on a busy machine one connection may be slow
		client, _ := tcpPair(t)
		near = near || bufferSetter(client, AutoReceiveBuffer) != nil
	}
	if !near {
		t.Error("loopback is not near")
	}
	for _, bytes := range []int{0, 64 << 10} {
		if got := bufferSetter(client, bytes) != nil; got != (bytes != 0) {
			t.Errorf("%d bytes: taken: %v", bytes, got)
		}
	}
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if bufferSetter(a, 64<<10) != nil {
		t.Error("a pipe has no such buffer")
	}
}

// A small buffer does not slow down a backlog. A window smaller than a segment would be filled only every 200 ms.
func TestSmallBufferFlows(t *testing.T) {
	var slow []int
	for range 4 { // a busy machine may pause
		n := slowReads(t)
		if n <= 3 {
			return
		}
		slow = append(slow, n)
	}
	t.Errorf("reads that waited for 150 ms and more, per backlog: %d", slow)
}

// slowReads reads a backlog through a small buffer, and counts the reads that waited for more than 150 ms.
func slowReads(t *testing.T) (slow int) {
	t.Helper()
	var goroutines sync.WaitGroup
	t.Cleanup(goroutines.Wait) // after the connections are closed
	client, server := tcpPair(t)
	c := newPacedConn(client, 5*time.Millisecond, &readTap{})
	c.buffer.narrow = mustBufferSetter(t, client)
	const total = 96 << 20
	goroutines.Go(func() {
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
		must(t, err)
		if got += n; time.Since(start) > 150*time.Millisecond {
			slow++
		}
	}
	return slow
}

// The buffer must have room for two segments: without limitSegments, those of the loopback are too large.
func TestNoSmallBufferForLargeSegments(t *testing.T) {
	client, _ := tcpPair(t)
	_ = mustBufferSetter(t, client)
	unlimited, _ := tcpPairWith(t, nil)
	if bufferSetter(unlimited, AutoReceiveBuffer) != nil || bufferSetter(unlimited, 64<<10) != nil {
		t.Error("a buffer smaller than two segments")
	}
	if bufferSetter(unlimited, 1<<20) == nil {
		t.Error("1 MiB is enough for two segments")
	}
	if bufferSetter(client, largestSegment) != nil {
		t.Error("a buffer of one segment")
	}
}
