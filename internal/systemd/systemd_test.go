package systemd

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func env(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

// TestSend checks that assignments arrive in one datagram, at a path and in the abstract namespace.
func TestSend(t *testing.T) {
	for _, socket := range []string{filepath.Join(t.TempDir(), "notify"), "@outboxcdc-test-" + filepath.Base(t.TempDir())} {
		l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		n, err := FromEnv(env("NOTIFY_SOCKET", socket, "WATCHDOG_USEC", "30000000", "WATCHDOG_PID", "7"), 7)
		if err != nil || !n.Active() || n.Watchdog != 30*time.Second {
			t.Fatalf("%+v, %v", n, err)
		}
		if err := n.Send("READY=1", Status("a\nb")); err != nil {
			t.Fatal(err)
		}
		_ = l.SetReadDeadline(time.Now().Add(10 * time.Second))
		b := make([]byte, 1000)
		k, err := l.Read(b)
		if err != nil || string(b[:k]) != "READY=1\nSTATUS=a b" {
			t.Errorf("%q, %v", b[:k], err)
		}
	}
}

func TestFromEnv(t *testing.T) {
	for _, c := range []struct {
		env      []string
		active   bool
		watchdog time.Duration
		err      string
	}{
		{nil, false, 0, ""},
		{[]string{"WATCHDOG_USEC", "1000"}, false, 0, ""},
		{[]string{"NOTIFY_SOCKET", "/x"}, true, 0, ""},
		{[]string{"NOTIFY_SOCKET", "/x", "WATCHDOG_USEC", "1000"}, true, time.Millisecond, ""},
		{[]string{"NOTIFY_SOCKET", "/x", "WATCHDOG_USEC", "1000", "WATCHDOG_PID", "8"}, true, 0, ""}, // another process is watched
		{[]string{"NOTIFY_SOCKET", "/x", "WATCHDOG_USEC", "soon"}, true, 0, "WATCHDOG_USEC"},
		{[]string{"NOTIFY_SOCKET", "/x", "WATCHDOG_USEC", "0"}, true, 0, "WATCHDOG_USEC"},
		{[]string{"NOTIFY_SOCKET", "vsock:2:1"}, false, 0, "NOTIFY_SOCKET"},
	} {
		n, err := FromEnv(env(c.env...), 7)
		if n.Active() != c.active || n.Watchdog != c.watchdog || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q: %+v, %v", c.env, n, err)
		}
	}
}

// TestSendFails checks that Send fails at once without a manager, and soon if the manager does not read.
func TestSendFails(t *testing.T) {
	if err := (&Notifier{}).Send("READY=1"); err != nil {
		t.Error(err)
	}
	socket := filepath.Join(t.TempDir(), "notify")
	n, _ := FromEnv(env("NOTIFY_SOCKET", socket), 7)
	if err := n.Send("READY=1"); err == nil || !strings.Contains(err.Error(), "NOTIFY_SOCKET") {
		t.Errorf("no manager: %v", err)
	}
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	begin := time.Now()
	for range 10_000 { // more than any queue holds
		if err = n.Send("WATCHDOG=1"); err != nil {
			break
		}
	}
	if err == nil || time.Since(begin) > 20*time.Second {
		t.Errorf("a manager that does not read: %v after %v", err, time.Since(begin))
	}
}

func TestReloading(t *testing.T) {
	all := strings.Join(Reloading(), "\n")
	if !strings.HasPrefix(all, "RELOADING=1\nMONOTONIC_USEC=") || len(all) < 35 {
		t.Errorf("%q", all)
	}
	if got := Extend(1500 * time.Millisecond); got != "EXTEND_TIMEOUT_USEC=1500000" {
		t.Error(got)
	}
}
