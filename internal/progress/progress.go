// Package progress shows how far a command has come, in one line of a terminal.
package progress

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/human"
)

// every is the least time between two updates of the line.
const every = 200 * time.Millisecond

// Meter writes the line. A nil Meter writes nothing. Its methods may be called by any goroutine.
type Meter struct {
	w   io.Writer
	now func() time.Time

	mu    sync.Mutex
	stage string
	began time.Time // the stage
	shown time.Time // the last update
	width int       // of the line as it is shown
}

// New returns a meter for a terminal, or nil if f is none: a log or a pipe shall not be filled with progress.
func New(f *os.File) *Meter {
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return nil
	}
	return &Meter{w: f, now: time.Now}
}

// Show says how much of a stage is done. of is the whole, 0 if it is not known.
func (m *Meter) Show(stage string, done, of int64) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	if stage != m.stage {
		m.stage, m.began, m.shown = stage, now, time.Time{}
	}
	if now.Sub(m.shown) < every {
		return
	}
	m.shown = now
	m.write(line(stage, done, of, now.Sub(m.began)))
}

// line is "rows: 120000 of 1000000, 60000 per second, 15 s left".
func line(stage string, done, of int64, took time.Duration) string {
	s := stage
	if done > 0 {
		s += fmt.Sprintf(": %d", done)
	}
	if of > 0 {
		s += fmt.Sprintf(" of %d", of)
	}
	if done == 0 || took < time.Second {
		return s
	}
	rate := float64(done) / took.Seconds()
	s += fmt.Sprintf(", %.0f per second", rate)
	if of > done {
		s += ", " + human.Duration(time.Duration(float64(of-done)/rate*float64(time.Second))) + " left"
	}
	return s
}

// Clear removes the line, so that something else can be printed.
func (m *Meter) Clear() {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.write("")
}

// write replaces the line.
func (m *Meter) write(s string) {
	if s == "" && m.width == 0 {
		return
	}
	pad := strings.Repeat(" ", max(0, m.width-len(s)))
	fmt.Fprint(m.w, "\r"+s+pad+"\r"+s) //nolint:errcheck // a terminal that is gone needs no progress
	m.width = len(s)
}
