package conns

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// pair is a client connection and the server's end of it.
type pair struct{ client, server net.Conn }

func limited(t *testing.T, n int) (net.Listener, func() pair) {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := Limit(inner, n)
	t.Cleanup(func() { _ = l.Close() })
	return l, func() pair {
		t.Helper()
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		server, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close(); _ = server.Close() })
		return pair{client, server}
	}
}

// say sends a byte from one end to the other.
func say(t *testing.T, from, to net.Conn) {
	t.Helper()
	if _, err := from.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	_ = to.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.ReadFull(to, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}

func gone(c net.Conn) bool {
	_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	_, err := c.Read(make([]byte, 1))
	var timeout net.Error
	return !errors.As(err, &timeout) || !timeout.Timeout()
}

// TestLongestIdleIsReplaced checks that a new connection replaces only the connection that has been idle for longest.
func TestLongestIdleIsReplaced(t *testing.T) {
	_, open := limited(t, 3)
	a, b, c := open(), open(), open()
	say(t, b.client, b.server)
	say(t, c.server, c.client)
	say(t, a.client, a.server) // now b has been idle for longest
	d := open()
	for name, p := range map[string]struct {
		pair
		want bool
	}{"a": {a, false}, "b": {b, true}, "c": {c, false}, "d": {d, false}} {
		if got := gone(p.client); got != p.want {
			t.Errorf("%s gone: %v", name, got)
		}
	}
	say(t, d.client, d.server)
}

// TestBlockedWriteIsIdle checks that a blocked write does not count as activity.
func TestBlockedWriteIsIdle(t *testing.T) {
	_, open := limited(t, 2)
	stuck := open()
	ended := make(chan error, 1)
	go func() {
		_, err := stuck.server.Write(make([]byte, 64<<20))
		ended <- err
	}()
	quiet := open()
	say(t, quiet.client, quiet.server)
	open()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("64 MiB were written to a client that does not read")
		}
	case <-time.After(10 * time.Second):
		t.Error("the stuck connection is still there")
	}
	if gone(quiet.client) {
		t.Error("the quiet one is gone")
	}
}

// TestClosedConnectionsDoNotCount checks that closed connections do not count.
func TestClosedConnectionsDoNotCount(t *testing.T) {
	_, open := limited(t, 2)
	stays := open()
	for range 5 {
		p := open()
		say(t, p.client, p.server)
		_ = p.server.Close()
	}
	if gone(stays.client) {
		t.Error("the first one went although there was room")
	}
	if l := stays.server.(*conn).listener; len(l.open) != 1 {
		t.Errorf("%d connections are counted", len(l.open))
	}
}
