package main

import (
	"context"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/relay"
)

// manager is the service manager's end of the socket.
type manager struct {
	t *testing.T
	l *net.UnixConn
}

func newManager(t *testing.T, watchdog time.Duration) manager {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	t.Setenv("NOTIFY_SOCKET", socket)
	if watchdog > 0 {
		t.Setenv("WATCHDOG_USEC", "300000")
	}
	return manager{t, l}
}

// next is the next datagram, "" if none arrives within d.
func (m manager) next(d time.Duration) string {
	m.t.Helper()
	_ = m.l.SetReadDeadline(time.Now().Add(d))
	b := make([]byte, 4096)
	n, err := m.l.Read(b)
	if err != nil {
		return ""
	}
	return string(b[:n])
}

// await reads datagrams until one contains all of these lines.
func (m manager) await(want ...string) {
	m.t.Helper()
	var all []string
	for end := time.Now().Add(20 * time.Second); ; {
		got := m.next(time.Until(end))
		all = append(all, got)
		has := true
		for _, w := range want {
			has = has && strings.Contains("\n"+got+"\n", "\n"+w)
		}
		if has {
			return
		}
		if got == "" {
			m.t.Fatalf("%q never came, but %q", want, all)
		}
	}
}

// TestSystemdNotified checks that the daemon is ready once it listens, also while Kafka and Postgres are unavailable,
// which the status says; that the watchdog is notified; and that the end is announced with its timeout.
func TestSystemdNotified(t *testing.T) {
	m := newManager(t, 300*time.Millisecond)
	for name, value := range map[string]string{
		"HTTP_LISTEN": "", "POSTGRES_URL": "postgres://nobody@127.0.0.1:1/none", "KAFKA_BROKERS": "127.0.0.1:1", "SHUTDOWN_TIMEOUT": "7s", "LOG_LEVEL": "error",
	} {
		t.Setenv("OUTBOXCDC_"+name, value)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan int, 1)
	go func() { ended <- execute(ctx, []string{"run"}, io.Discard, io.Discard) }()
	first := m.next(20 * time.Second)
	if !strings.HasPrefix(first, "READY=1\nSTATUS=") {
		t.Fatalf("%q", first)
	}
	if !strings.Contains(first, "STATUS=parked: ") { // the first status may be parked already
		m.await("STATUS=parked: ")
	}
	m.await("WATCHDOG=1\n")
	m.await("WATCHDOG=1\n")
	stop()
	m.await("STOPPING=1\n")
	if code := <-ended; code != exit.OK {
		t.Errorf("exit code %d", code)
	}
}

// TestSystemdWaitsForTheDrain checks that the stop timeout is extended for the drain, and that the watchdog is notified
// meanwhile.
func TestSystemdWaitsForTheDrain(t *testing.T) {
	m := newManager(t, 300*time.Millisecond)
	s := newSupervisor(&fakeRelay{status: relay.Status{State: relay.Draining}}, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(t.Context())
	done, end := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); s.watch(ctx, done, 7*time.Second) }()
	defer func() { stop(); end(); <-ended }()
	m.await("READY=1\n")
	stop()
	m.await("STOPPING=1\n", "EXTEND_TIMEOUT_USEC=17000000\n", "STATUS=draining\n")
	m.await("WATCHDOG=1\n")
}

// TestWatchdogWithoutLoop checks that the watchdog is notified only while the main loop runs.
func TestWatchdogWithoutLoop(t *testing.T) {
	m := newManager(t, 300*time.Millisecond)
	hung := &fakeRelay{status: relay.Status{State: relay.Streaming}, age: aliveWithin}
	s := newSupervisor(hung, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); s.watch(ctx, ctx, time.Second) }()
	defer func() { stop(); <-ended }()
	m.await("READY=1\n", "STATUS=streaming\n")
	if got := m.next(500 * time.Millisecond); got != "" {
		t.Errorf("the main loop hangs, and systemd is told %q", got)
	}
}

// TestSystemdNotifiedOfEnd checks that a stop because of an error leaves its cause in the status, and that start and
// end of a reload are announced.
func TestSystemdNotifiedOfEnd(t *testing.T) {
	m := newManager(t, 0)
	s := newSupervisor(&fakeRelay{}, slog.New(slog.DiscardHandler))
	ready := s.reloading()
	if got := m.next(5 * time.Second); !strings.HasPrefix(got, "RELOADING=1\n") {
		t.Errorf("%q", got)
	}
	ready()
	if got := m.next(5 * time.Second); got != "READY=1" {
		t.Errorf("%q", got)
	}
	s.ended(io.ErrUnexpectedEOF)
	if got := m.next(5 * time.Second); got != "STOPPING=1\nSTATUS=stopped: unexpected EOF" {
		t.Errorf("%q", got)
	}
}

// TestSystemdStatus checks the status text: the state, a large lag, and the reason.
func TestSystemdStatus(t *testing.T) {
	for want, st := range map[string]relay.Status{
		"streaming": {State: relay.Streaming, LagSeconds: 9},
		"parked, 2m10s behind: kafka: broken pipe": {State: relay.Parked, LagSeconds: 137, Reason: "kafka:\nbroken pipe"},
	} {
		s := &supervisor{m: &fakeRelay{status: st}}
		if got := s.status(); got != "STATUS="+want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}

// TestSystemdDoesNotRead checks that notifications do not wait for a service manager that does not read, and that its
// absence, too, is logged once.
func TestSystemdDoesNotRead(t *testing.T) {
	m := newManager(t, 0)
	var log strings.Builder
	s := newSupervisor(&fakeRelay{}, slog.New(slog.NewTextHandler(&log, nil)))
	for !s.failed { // until the queue is full
		s.send("STATUS=x")
	}
	s.send("STATUS=y")
	if n := strings.Count(log.String(), "it does not read its socket"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, &log)
	}
	for s.failed {
		m.next(time.Second)
		s.send("STATUS=z")
	}
	_ = m.l.Close()
	s.send("STATUS=x")
	s.send("STATUS=y")
	if n := strings.Count(log.String(), "cannot notify systemd"); n != 2 {
		t.Errorf("logged %d times:\n%s", n, &log)
	}
}
