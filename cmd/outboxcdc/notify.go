package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
)

// supervisor notifies systemd of the daemon's state, if systemd has started it with Type=notify (sd_notify(3)).
type supervisor struct {
	active   bool
	watchdog time.Duration // the interval in which systemd expects WATCHDOG=1; 0: none is expected
	m        monitor
	log      *slog.Logger

	lastStatus string // of the goroutine that runs watch

	mu     sync.Mutex
	sent   chan error // the result of the last notification, until it is known
	failed bool       // the last notification failed, which was logged
}

func newSupervisor(m monitor, log *slog.Logger) *supervisor {
	s := &supervisor{active: os.Getenv("NOTIFY_SOCKET") != "", m: m, log: log}
	if s.active {
		var err error
		if s.watchdog, err = sd.SdWatchdogEnabled(false); err != nil {
			log.Warn("systemd", "error", err)
		}
	}
	return s
}

// statusEvery is the time between two updates of the status, which is for people.
const statusEvery = time.Second

// watch notifies systemd that the process is ready, then of its status, and that the process is stopping once ctx has
// ended. It returns when done ends. Ready means that the settings are valid and the listener is open. It does not
// depend on Kafka and Postgres, because a restart would not help: their state is in the status.
//
// The watchdog is notified while the main loop runs, also while it drains.
func (s *supervisor) watch(ctx, done context.Context, shutdownTimeout time.Duration) {
	if !s.active {
		return
	}
	s.send(sd.SdNotifyReady, s.status())
	every := statusEvery
	if s.watchdog > 0 {
		every = min(every, s.watchdog/3)
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	stopping := ctx.Done()
	for {
		select {
		case <-done.Done():
			if stopping != nil && ctx.Err() != nil { // there was nothing to drain
				s.send(sd.SdNotifyStopping)
			}
			return
		case <-stopping:
			stopping = nil
			// The drain may take shutdown_timeout, whatever TimeoutStopSec is.
			s.send(sd.SdNotifyStopping, "EXTEND_TIMEOUT_USEC="+strconv.FormatInt((shutdownTimeout+stopMargin).Microseconds(), 10), s.status())
		case <-tick.C:
			s.tick()
		}
	}
}

// stopMargin is how long the end of the process may take after the drain.
const stopMargin = 10 * time.Second

func (s *supervisor) tick() {
	var all []string
	if s.watchdog > 0 && s.m.Alive() < aliveWithin {
		all = append(all, sd.SdNotifyWatchdog)
	}
	if before := s.lastStatus; s.status() != before {
		all = append(all, s.lastStatus)
	}
	if len(all) > 0 {
		s.send(all...)
	}
}

// status is the text for `systemctl status`: the state, the reason, and the lag if it is at least 10 seconds.
func (s *supervisor) status() string {
	st := s.m.Status()
	text := string(st.State)
	if st.LagSeconds >= 10 {
		text += fmt.Sprintf(", %s behind", (time.Duration(st.LagSeconds) * time.Second).Truncate(10*time.Second))
	}
	if st.Reason != "" {
		text += ": " + st.Reason
	}
	s.lastStatus = statusLine(text)
	return s.lastStatus
}

// ended sends the cause of the end, for `systemctl status`.
func (s *supervisor) ended(err error) {
	s.send(sd.SdNotifyStopping, statusLine("stopped: "+err.Error()))
}

// reloading notifies systemd that the configuration is being reloaded, until the returned function is called.
func (s *supervisor) reloading() (ready func()) {
	s.send(sd.SdNotifyReloading, strings.TrimSuffix(sd.SdNotifyMonotonicUsec(), "\n"))
	return func() { s.send(sd.SdNotifyReady) }
}

// sendTimeout bounds the wait for a service manager that does not read.
const sendTimeout = time.Second

// send sends assignments such as READY=1 in one datagram. While an earlier one waits for the service manager, it
// sends nothing.
func (s *supervisor) send(assignments ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sent == nil {
		sent := make(chan error, 1)
		s.sent = sent
		go func() {
			_, err := sd.SdNotify(false, strings.Join(assignments, "\n"))
			sent <- err
		}()
	}
	var err error
	select {
	case err = <-s.sent:
		s.sent = nil
	case <-time.After(sendTimeout):
		err = errors.New("it does not read its socket")
	}
	if err != nil && !s.failed {
		s.log.Warn("cannot notify systemd", "error", err)
	}
	s.failed = err != nil
}

// statusLine is the assignment with the text that `systemctl status` shows.
func statusLine(text string) string {
	return "STATUS=" + strings.NewReplacer("\n", " ", "\r", " ").Replace(text)
}
