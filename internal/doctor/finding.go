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
	Warn       Level = "WARN"        // the daemon runs; the text says what may go wrong
	Fail       Level = "FAIL"        // the daemon does not run, or delivers nothing; or a command that recovers events cannot
	NotChecked Level = "not checked" // the text says why
)

// The exit codes of a Fail (docs/doctor.md): the code that `run` would end with, or 69 if `run` would wait.
const (
	Unavailable = exit.Unavailable
	Denied      = exit.NoPermission
	Wrong       = exit.Config
	Lost        = exit.Lost
)

// Finding is one line of the report.
type Finding struct {
	Check  string   `json:"check"`
	Group  string   `json:"group"`
	Level  Level    `json:"level"`
	Text   string   `json:"text"`
	Remedy []Remedy `json:"remedy,omitempty"` // in the order in which to apply them
	Exit   int      `json:"exit,omitempty"`   // of a Fail
}

// Remedy is one step of a fix. Except for Advice, the text can be pasted once the placeholders in <> are filled in.
type Remedy struct {
	Kind Kind   `json:"kind"`
	Text string `json:"text"`
}

// Kind says where a remedy is applied.
type Kind string

// The kinds of remedies.
const (
	SQL     Kind = "SQL"     // as an administrator, in the outbox's database
	Shell   Kind = "shell"   // a command
	Setting Kind = "setting" // a line of outboxcdc.yaml
	Advice  Kind = "advice"  // text for a person
)

func sqlf(format string, args ...any) Remedy   { return Remedy{SQL, fmt.Sprintf(format, args...)} }
func shellf(format string, args ...any) Remedy { return Remedy{Shell, fmt.Sprintf(format, args...)} }

func settingf(format string, args ...any) Remedy {
	return Remedy{Setting, fmt.Sprintf(format, args...)}
}

func advicef(format string, args ...any) Remedy { return Remedy{Advice, fmt.Sprintf(format, args...)} }

// Report has all findings, in the order of the catalogue.
type Report struct {
	Findings []Finding `json:"findings"`
	Exit     int       `json:"exit"` // the highest of the Fails, 0 if there is none
}

// Count is the number of findings of that level.
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
		if n := r.countHidden(i); n > 0 {
			fmt.Fprintf(&b, "  %-4s  %-*s  and %d more\n", OK, width, f.Check, n)
			i += n - 1
			continue
		}
		if n := r.countAlike(i); n > 1 {
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

// countHidden counts the OK findings from i on that are not shown: of a check with many OK findings, such as one for
// each of hundreds of topics, only the first few are shown.
func (r *Report) countHidden(i int) (n int) {
	const few, many = 3, 8
	isOK := func(j int) bool { return r.Findings[j].Check == r.Findings[i].Check && r.Findings[j].Level == OK }
	before := 0
	for j := i - 1; j >= 0 && isOK(j); j-- {
		before++
	}
	for j := i; j < len(r.Findings) && isOK(j); j++ {
		n++
	}
	if before != few || before+n <= many {
		return 0
	}
	return n
}

// countAlike counts the checks from i on that were not made for the same reason: the reason is shown once.
func (r *Report) countAlike(i int) int {
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

// plain puts a text on one line and removes control characters, which a server's message may contain.
func plain(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) || unicode.IsPrint(r) {
			return r
		}
		return -1
	}, s)
	return strings.Join(strings.Fields(s), " ")
}
