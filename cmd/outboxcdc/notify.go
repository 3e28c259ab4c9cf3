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

// supervised tells systemd how the daemon does, if it is run by it with Type=notify.
type supervised struct {
	to  *systemd.Notifier
	m   monitor
	log *slog.Logger

	told string // the last status; the watching goroutine's

	mu   sync.Mutex
	deaf bool // sending has failed, and the log says so
}

func newSupervised(m monitor, log *slog.Logger) *supervised {
	to, err := systemd.FromEnv(os.Getenv, os.Getpid())
	if err != nil {
		log.Warn("systemd", "error", err)
	}
	return &supervised{to: to, m: m, log: log}
}

// statusEvery is how often the status is looked at: it is for people.
const statusEvery = time.Second

// watch says that the process is ready, then how it does, and that it is ending once ctx has ended; it returns when done ends.
// Ready means that the settings are good and the listener is open: what Kafka and Postgres do is in the status, for a start
// that fails with them would be tried again for nothing.
//
// The watchdog gets its sign of life only while the main loop turns, also while it drains.
func (s *supervised) watch(ctx, done context.Context, shutdownTimeout time.Duration) {
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
			// The drain may take as long as it was allowed to, whatever TimeoutStopSec is.
			s.send("STOPPING=1", systemd.Extend(shutdownTimeout+stopMargin), s.status())
		case <-tick.C:
			s.tick()
		}
	}
}

// stopMargin is what leaving takes besides the drain.
const stopMargin = 10 * time.Second

func (s *supervised) tick() {
	var all []string
	if s.to.Watchdog > 0 && s.m.Alive() < aliveWithin {
		all = append(all, "WATCHDOG=1")
	}
	if before := s.told; s.status() != before {
		all = append(all, s.told)
	}
	if len(all) > 0 {
		s.send(all...)
	}
}

// status is what `systemctl status` shows: the state, why, and a lag that a person would want to know of.
func (s *supervised) status() string {
	st := s.m.Status()
	text := string(st.State)
	if st.LagSeconds >= 10 {
		text += fmt.Sprintf(", %s behind", (time.Duration(st.LagSeconds) * time.Second).Truncate(10*time.Second))
	}
	if st.Reason != "" {
		text += ": " + st.Reason
	}
	s.told = systemd.Status(text)
	return s.told
}

// ended leaves the cause behind for `systemctl status`.
func (s *supervised) ended(err error) { s.send("STOPPING=1", systemd.Status("stopped: "+err.Error())) }

// reloading says that settings are read again, until the function that it returns is called.
func (s *supervised) reloading() (ready func()) {
	s.send(systemd.Reloading()...)
	return func() { s.send("READY=1") }
}

func (s *supervised) send(assignments ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.to.Send(assignments...)
	if err != nil && !s.deaf {
		s.log.Warn("cannot notify systemd", "error", err)
	}
	s.deaf = err != nil
}
