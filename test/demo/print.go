package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// width is the longest line that the demo prints, except for log lines of the servers.
const width = 100

// printer writes the demo's output: whole lines, without control characters except colour, and colour only on a
// terminal.
type printer struct {
	w     io.Writer
	color bool
	begun time.Time // live lines count from here
}

// newPrinter calls broken when f cannot be written to any more.
func newPrinter(f *os.File, broken func()) *printer {
	st, err := f.Stat()
	terminal := err == nil && st.Mode()&os.ModeCharDevice != 0
	return &printer{w: writer{f, broken}, color: terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb", begun: time.Now()}
}

type writer struct {
	io.Writer
	broken func()
}

func (w writer) Write(b []byte) (int, error) {
	n, err := w.Writer.Write(b)
	if err != nil {
		w.broken()
	}
	return n, err
}

const (
	bold  = "1"
	dim   = "2"
	red   = "31"
	green = "32"
	amber = "33"
)

func (p *printer) paint(color, text string) string {
	if !p.color || text == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

func (p *printer) text(lines ...string) {
	for _, l := range lines {
		fmt.Fprintln(p.w, l)
	}
}

// step prints what is about to be done and, on the same line afterwards, how long it took.
func (p *printer) step(what string, do func() (string, error)) error {
	fmt.Fprintf(p.w, "  %-*s", stepWidth, what+" …")
	begin := time.Now()
	result, err := do()
	if err != nil {
		fmt.Fprintln(p.w, p.paint(red, " failed"))
		return err
	}
	line := fmt.Sprintf(" %6s  %s", duration(time.Since(begin)), result)
	fmt.Fprintln(p.w, strings.TrimRight(line, " "))
	return nil
}

const stepWidth = 56

// say prints a sentence of the story.
func (p *printer) say(format string, args ...any) {
	p.text(p.paint(bold, ">> "+fmt.Sprintf(format, args...)))
}

// legend explains the live lines. place is where the reader reads.
func (p *printer) legend(place string) {
	p.text("",
		"committed       events that the shop has committed",
		"delivered       committed events that an independent reader has read from "+place,
		"lag             of the relay, from its /metrics",
		"commit→visible  from the end of COMMIT until the reader has the event, over the last second",
		"repeats         records that the reader has read before")
}

// columns are the live lines' names; row uses the same format.
func (p *printer) columns() {
	p.text("", p.paint(dim, columns))
}

const rowFormat = "%5s  %9s  %9s  %6s  %18s  %6s  %7s   %s"

var columns = fmt.Sprintf(rowFormat, "time", "committed", "delivered", "lag", "commit→visible p50", "p99", "repeats", "relay")

// row prints a live line.
func (p *printer) row(l look, g gauges) {
	p.text(p.rowText(time.Since(p.begun), l, g))
}

func (p *printer) rowText(at time.Duration, l look, g gauges) string {
	lag, p50, p99 := "-", "-", "-"
	if g.known {
		lag = duration(g.lag)
	}
	if l.timed > 0 {
		p50, p99 = duration(l.p50), duration(l.p99)
	}
	state := g.state
	switch {
	case state != "streaming":
		state = p.paint(amber, state)
	case l.timed == 0 && l.delivered < l.committed: // the relay waits for the broker, or for what an earlier relay may have sent
		state = p.paint(amber, "streaming, waits")
	}
	return fmt.Sprintf(rowFormat, clock(at), count(l.committed), count(l.delivered), lag, p50, p99, count(l.repeats), state)
}

// verdict prints the findings and, for the failed ones, the first few defects.
func (p *printer) verdict(v verdict) {
	const few = 5
	p.text("")
	for _, f := range v {
		mark := p.paint(green, "ok")
		if !f.ok {
			mark = p.paint(red, "NO")
		}
		p.text(fmt.Sprintf("  %s  %-10s  %s", mark, f.name, f.text))
		for i, o := range f.offenders {
			if i == few {
				p.text(fmt.Sprintf("        … and %s more", count(len(f.offenders)-few)))
				break
			}
			for _, line := range wrap(o, width-8) {
				p.text("        " + line)
			}
		}
	}
	last := p.paint(green, "The promise was kept.")
	if !v.ok() {
		last = p.paint(red, "THE PROMISE WAS NOT KEPT.")
	}
	p.text("", last)
}

// clock formats minutes and seconds.
func clock(d time.Duration) string {
	s := int(d.Round(time.Second).Seconds())
	return fmt.Sprintf("%d:%02d", s/60, s%60)
}

// duration formats a duration in one unit: 3 ms, 1.2 s, 47 s, 12 min.
func duration(d time.Duration) string {
	switch {
	case d <= 0:
		return "0 s"
	case d < time.Millisecond:
		return "<1 ms"
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 10*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	}
	return fmt.Sprintf("%.0f min", d.Minutes())
}

// count formats a number with separated thousands.
func count(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// wrap breaks a text at spaces into lines of at most so many characters.
func wrap(text string, most int) []string {
	var lines []string
	for line := range strings.Lines(text) {
		var b strings.Builder
		for word := range strings.FieldsSeq(line) {
			if n := utf8.RuneCountInString(b.String()); n > 0 && n+1+utf8.RuneCountInString(word) > most {
				lines = append(lines, b.String())
				b.Reset()
			}
			if b.Len() > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(word)
		}
		lines = append(lines, b.String())
	}
	return lines
}
