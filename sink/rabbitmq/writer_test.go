package rabbitmq

import (
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
)

// slowConn is a connection whose writes wait until they are released.
type slowConn struct {
	net.Conn
	writes  []string
	release chan error
	closed  bool
	busy    int // writes that are under way
}

func (c *slowConn) Write(b []byte) (int, error) {
	c.writes = append(c.writes, string(b))
	if c.busy++; c.busy > 1 {
		c.writes = append(c.writes, "(two at once)")
	}
	err := <-c.release
	c.busy--
	return len(b), err
}

func (c *slowConn) Close() error { c.closed = true; return nil }

// TestGatheringConn: what is written while a write is under way goes into the next one, in its order, and not more than
// a limit. After an error the connection is closed, and nothing is written any more.
func TestGatheringConn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &slowConn{release: make(chan error)}
		g := newGatheringConn(slow)
		write := func(text string) {
			if n, err := g.Write([]byte(text)); n != len(text) || err != nil {
				t.Errorf("write %.10s: %d, %v", text, n, err)
			}
		}
		write("a")
		synctest.Wait()
		large := strings.Repeat("c", maxPending)
		write("b")
		write(large)
		waited := make(chan struct{})
		go func() { write("d"); close(waited) }()
		synctest.Wait()
		select {
		case <-waited:
			t.Error("more is pending than the limit allows")
		default:
		}
		slow.release <- nil
		<-waited
		slow.release <- nil
		synctest.Wait()
		if got := strings.Join(slow.writes, "|"); got != "a|b"+large+"|d" {
			t.Errorf("%d writes: %.20s", len(slow.writes), got)
		}
		slow.release <- errors.New("broken pipe")
		synctest.Wait()
		if _, err := g.Write([]byte("e")); err == nil || !slow.closed || len(slow.writes) != 3 {
			t.Errorf("after an error: %v, closed %v, %d writes", err, slow.closed, len(slow.writes))
		}
	})
}
