package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/systemd"
)

// supervisor notifies systemd of the daemon's state, if systemd has started it with Type=notify.
type supervisor struct {
	to  *systemd.Notifier
	m   monitor
	log *slog.Logger

	lastStatus string // of the goroutine that runs watch

	mu     sync.Mutex
	failed bool // the last notification failed, which was logged
}

func newSupervisor(m monitor, log *slog.Logger) *supervisor {
	to, err := systemd.FromEnv(os.Getenv, os.Getpid())
	if err != nil {
		log.Warn("systemd", "error", err)
	}
	return &supervisor{to: to, m: m, log: log}
}

// statusEvery is the time between two updates of the status, which is for people.
const statusEvery = time.Second

// watch notifies systemd that the process is ready, then of its status, and that the process is stopping once ctx has
// ended. It returns when done ends. Ready means that the settings are valid and the listener is open. It does not
// depend on Kafka and Postgres, because a restart would not help: their state is in the status.
//
// The watchdog is notified while the main loop runs, also while it drains.
func (s *supervisor) watch(ctx, done context.Context, shutdownTimeout time.Duration) {
	if !s.to.Active() {
		return
	}
	s.send("READY=1", s.status())
	every := statusEvery
	if s.to.Watchdog > 0 {
		every = min(every, s.to.Watchdog/3)
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	stopping := ctx.Done()
	for {
		select {
		case <-done.Done():
			if stopping != nil && ctx.Err() != nil { // there was nothing to drain
				s.send("STOPPING=1")
			}
			return
		case <-stopping:
			stopping = nil
			// The drain may take shutdown_timeout, whatever TimeoutStopSec is.
			s.send("STOPPING=1", systemd.Extend(shutdownTimeout+stopMargin), s.status())
		case <-tick.C:
			s.tick()
		}
	}
}

// stopMargin is how long the end of the process may take after the drain.
const stopMargin = 10 * time.Second

func (s *supervisor) tick() {
	var all []string
	if s.to.Watchdog > 0 && s.m.Alive() < aliveWithin {
		all = append(all, "WATCHDOG=1")
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
	s.lastStatus = systemd.Status(text)
	return s.lastStatus
}

// ended sends the cause of the end, for `systemctl status`.
func (s *supervisor) ended(err error) { s.send("STOPPING=1", systemd.Status("stopped: "+err.Error())) }

// reloading notifies systemd that the configuration is being reloaded, until the returned function is called.
func (s *supervisor) reloading() (ready func()) {
	s.send(systemd.Reloading()...)
	return func() { s.send("READY=1") }
}

func (s *supervisor) send(assignments ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.to.Send(assignments...)
	if err != nil && !s.failed {
		s.log.Warn("cannot notify systemd", "error", err)
	}
	s.failed = err != nil
}
