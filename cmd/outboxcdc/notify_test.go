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

// manager is systemd's end of the socket.
type manager struct {
	t *testing.T
	l *net.UnixConn
}

func newManager(t *testing.T, watchdog time.Duration) manager {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	t.Setenv("NOTIFY_SOCKET", socket)
	if watchdog > 0 {
		t.Setenv("WATCHDOG_USEC", "300000")
	}
	return manager{t, l}
}

// next is the next datagram, "" if none comes within d.
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

// await reads until a datagram has all of what is wanted.
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

// The daemon is ready when it listens, also while Kafka and Postgres are away: then the status says so, and the watchdog is
// fed. It says that it is ending, and for how long that may take.
func TestSystemdIsTold(t *testing.T) {
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
	if !strings.Contains(first, "STATUS=parked: ") { // it may have come that far already
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

// A drain is given the time that it is allowed to take, and the watchdog is fed meanwhile.
func TestSystemdWaitsForTheDrain(t *testing.T) {
	m := newManager(t, 300*time.Millisecond)
	s := newSupervisor(&still{status: relay.Status{State: relay.Draining}}, slog.New(slog.DiscardHandler))
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

// The watchdog is fed only while the main loop turns.
func TestWatchdogStarves(t *testing.T) {
	m := newManager(t, 300*time.Millisecond)
	hung := &still{status: relay.Status{State: relay.Streaming}, age: aliveWithin}
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

// A stop by itself leaves its cause in the status; reading settings again has a beginning and an end.
func TestSystemdIsToldOfEnds(t *testing.T) {
	m := newManager(t, 0)
	s := newSupervisor(&still{}, slog.New(slog.DiscardHandler))
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

// What a person sees: the state, how far behind if that is much, and why.
func TestSystemdStatus(t *testing.T) {
	for want, st := range map[string]relay.Status{
		"streaming": {State: relay.Streaming, LagSeconds: 9},
		"parked, 2m10s behind: kafka: broken pipe": {State: relay.Parked, LagSeconds: 137, Reason: "kafka:\nbroken pipe"},
	} {
		s := &supervisor{m: &still{status: st}}
		if got := s.status(); got != "STATUS="+want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}
