package doctor

import (
	"fmt"
	"strings"

	"github.com/outboxcdc/outboxcdc/sql"
)

// serverBug is a bug of the server that loses, repeats or delays events.
type serverBug struct {
	what  string
	fixed map[int]int // major version → first minor version without the bug; other majors do not have it
	// harmless bugs need no update, because the daemon works around them.
	harmless bool
}

var serverBugs = []serverBug{
	{what: "a slot could start inside a transaction, which was then decoded incorrectly", fixed: map[int]int{14: 13, 15: 8, 16: 4}},
	{what: "restart_lsn of a slot could move back to WAL that was removed already", fixed: map[int]int{14: 15, 15: 10, 16: 6, 17: 2}},
	{what: "events were lost when ALTER PUBLICATION or ALTER TYPE ran concurrently with open transactions", fixed: map[int]int{14: 18, 15: 13, 16: 9, 17: 5}},
	{what: "the confirmed position of a slot could move back; WAL that the slot needs could be removed early", fixed: map[int]int{14: 19, 15: 14, 16: 10, 17: 6}},
	{what: "a logical slot could be invalidated without need", fixed: map[int]int{16: 11, 17: 7, 18: 1}},
	{what: "a checkpoint could invalidate a slot while it was created", fixed: map[int]int{15: 16, 16: 12, 17: 8, 18: 2}},
	{what: "a stop of the server could wait for ever for the walsender", fixed: map[int]int{15: 18, 16: 14, 17: 10, 18: 4}},
	{what: "Stream Abort is sent although streaming is off, which the daemon reads past", fixed: map[int]int{18: 7}, harmless: true},
}

// newestMinors are the newest minor versions whose bugs are known. There is no 18.5.
var newestMinors = map[int]int{14: 23, 15: 19, 16: 15, 17: 11, 18: 6}

// bugsOf lists the bugs of a version, and returns the first version of the major without those that are not harmless.
func bugsOf(version int) (bugs, harmless []string, fixed string) {
	major, minor := version/10000, version%10000
	for _, b := range serverBugs {
		first, has := b.fixed[major]
		switch {
		case !has || minor >= first:
		case b.harmless:
			harmless = append(harmless, b.what)
		default:
			bugs = append(bugs, b.what)
			fixed = fmt.Sprintf("%d.%d", major, first) // the bugs are in the order of their fixes
		}
	}
	return bugs, harmless, fixed
}

func (e *examination) checkVersion() {
	s := &e.server
	if s.Major() < sql.MinMajor {
		e.fail(pgVersion, Wrong, []Remedy{advicef("use PostgreSQL %d to %d", sql.MinMajor, sql.NewestTested)}, "PostgreSQL %s is not supported", s.VersionText)
		return
	}
	if warning := sql.Untested(s.Major()); warning != "" {
		e.warn(pgVersion, []Remedy{advicef("try this version with your events before production, or use PostgreSQL %d to %d", sql.MinMajor, sql.NewestTested)}, "%s", warning)
		return
	}
	bugs, harmless, fixed := bugsOf(s.Version)
	if len(bugs) > 0 {
		e.warn(pgVersion, []Remedy{advicef("update the server to %s or later, which only needs a restart", fixed)},
			"PostgreSQL %s has known bugs: %s", s.VersionText, strings.Join(bugs, "; "))
		return
	}
	text := "PostgreSQL " + s.VersionText
	if len(harmless) > 0 {
		text += "; a known bug has no effect: " + strings.Join(harmless, "; ")
	}
	if m := s.Major(); s.Version%10000 > newestMinors[m] {
		text += fmt.Sprintf("; doctor knows the bugs up to %d.%d", m, newestMinors[m])
	}
	e.ok(pgVersion, "%s", text)
}
