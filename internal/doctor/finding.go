package doctor

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/outboxcdc/outboxcdc/internal/exit"
)

// Level is how good or bad a finding is.
type Level string

// The levels.
const (
	OK         Level = "OK"
	Warn       Level = "WARN"        // the daemon runs; the finding says what it costs, or may cost one day
	Fail       Level = "FAIL"        // the daemon does not run, or nothing is delivered
	NotChecked Level = "not checked" // the text says why
)

// The exit codes that a Fail asks for (docs/doctor.md); they are those that `run` would end with, and 69 for what it would
// wait for.
const (
	Unavailable = exit.Unavailable
	Right       = exit.NoPermission
	Wrong       = exit.Config
	Lost        = exit.Lost
)

// Finding is one line of the report.
type Finding struct {
	Check  string   `json:"check"`
	Group  string   `json:"group"`
	Level  Level    `json:"level"`
	Text   string   `json:"text"`
	Remedy []Remedy `json:"remedy,omitempty"` // in the order in which they are to be done
	Exit   int      `json:"exit,omitempty"`   // of a Fail
}

// Remedy is one thing to do. All but Advice can be pasted as it is, once what stands in <> is filled in.
type Remedy struct {
	Kind Kind   `json:"kind"`
	Text string `json:"text"`
}

// Kind says where a remedy is to be done.
type Kind string

// The kinds of remedies.
const (
	SQL     Kind = "SQL"     // as an administrator, in the outbox's database
	Shell   Kind = "shell"   // a command
	Setting Kind = "setting" // a line of outboxcdc.yaml
	Advice  Kind = "advice"  // words
)

func sqlf(format string, args ...any) Remedy   { return Remedy{SQL, fmt.Sprintf(format, args...)} }
func shellf(format string, args ...any) Remedy { return Remedy{Shell, fmt.Sprintf(format, args...)} }

func settingf(format string, args ...any) Remedy {
	return Remedy{Setting, fmt.Sprintf(format, args...)}
}

func advicef(format string, args ...any) Remedy { return Remedy{Advice, fmt.Sprintf(format, args...)} }

// Report is everything that was found, in the order of the catalogue.
type Report struct {
	Findings []Finding `json:"findings"`
	Exit     int       `json:"exit"` // the highest of the Fails, 0 if there is none
}

// Count is how many findings have that level.
func (r *Report) Count(l Level) (n int) {
	for i := range r.Findings {
		if r.Findings[i].Level == l {
			n++
		}
	}
	return n
}

// String is the report for people.
func (r *Report) String() string {
	var b strings.Builder
	width := 0
	for i := range r.Findings {
		width = max(width, len(r.Findings[i].Check))
	}
	group := ""
	for i := 0; i < len(r.Findings); i++ {
		f := &r.Findings[i]
		if f.Group != group {
			if group != "" {
				b.WriteByte('\n')
			}
			group = f.Group
			b.WriteString(group + "\n")
		}
		if n := r.good(i); n > 0 {
			fmt.Fprintf(&b, "  %-4s  %-*s  and %d more\n", OK, width, f.Check, n)
			i += n - 1
			continue
		}
		if n := r.alike(i); n > 1 {
			var names []string
			for _, g := range r.Findings[i : i+n] {
				names = append(names, g.Check)
			}
			fmt.Fprintf(&b, "  -     %s: %s\n", strings.Join(names, ", "), f.line())
			i += n - 1
			continue
		}
		level := string(f.Level)
		if f.Level == NotChecked {
			level = "-"
		}
		fmt.Fprintf(&b, "  %-4s  %-*s  %s\n", level, width, f.Check, f.line())
		for _, m := range f.Remedy {
			fmt.Fprintf(&b, "        %s %s\n", arrow(m.Kind), plain(m.Text))
		}
	}
	fmt.Fprintf(&b, "\n%d OK, %d WARN, %d FAIL, %d not checked\n", r.Count(OK), r.Count(Warn), r.Count(Fail), r.Count(NotChecked))
	return b.String()
}

// good counts what need not be shown from i on: of a check that is good many times (there may be hundreds of topics) people
// see the first few.
func (r *Report) good(i int) (n int) {
	const few, many = 3, 8
	is := func(j int) bool { return r.Findings[j].Check == r.Findings[i].Check && r.Findings[j].Level == OK }
	before := 0
	for j := i - 1; j >= 0 && is(j); j-- {
		before++
	}
	for j := i; j < len(r.Findings) && is(j); j++ {
		n++
	}
	if before != few || before+n <= many {
		return 0
	}
	return n
}

// alike counts what was not checked for one and the same reason from i on: people are told once.
func (r *Report) alike(i int) int {
	f, n := &r.Findings[i], 0
	for j := i; j < len(r.Findings); j++ {
		g := &r.Findings[j]
		if g.Level != NotChecked || g.Group != f.Group || g.Text != f.Text {
			break
		}
		n++
	}
	return n
}

func arrow(k Kind) string {
	if k == Advice {
		return "  ->"
	}
	return "  -> " + string(k) + ":"
}

// line is the text on one line.
func (f *Finding) line() string {
	text := plain(f.Text)
	if f.Level == NotChecked {
		return "not checked, because " + text
	}
	return text
}

// plain is a text on one line that does nothing to a terminal, whatever a server has put into it.
func plain(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) || unicode.IsPrint(r) {
			return r
		}
		return -1
	}, s)
	return strings.Join(strings.Fields(s), " ")
}
