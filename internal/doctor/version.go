package doctor

import (
	"fmt"
	"strings"

	"github.com/outboxcdc/outboxcdc/sql"
)

// repairs are the minor releases that repair what loses or repeats events in logical decoding, by those of PostgreSQL 15;
// the other majors' releases of the same day carry the same.
var repairs = []struct {
	minor int // of 15
	what  string
}{
	{8, "a slot could start inside a transaction, which was then decoded wrongly"},
	{10, "the slot's restart_lsn could go backwards while the WAL there was removed already"},
	{13, "events were lost when ALTER PUBLICATION or ALTER TYPE ran beside open transactions"},
	{14, "the slot's confirmed position could go backwards; WAL that the slot needs could be removed early"},
}

// behind15 is how much smaller the minor number of a major is on the same day. PostgreSQL 17.0 came with 15.8, 18.0 with
// 15.14.
var behind15 = map[int]int{14: -5, 15: 0, 16: 4, 17: 8, 18: 14}

// known lists what is wrong with a version, and names the first one in which nothing is.
func known(version int) (bugs []string, sound string) {
	major, minor := version/10000, version%10000
	behind, ok := behind15[major]
	if !ok {
		return nil, ""
	}
	for _, r := range repairs {
		if minor < r.minor-behind {
			bugs = append(bugs, r.what)
		}
	}
	return bugs, fmt.Sprintf("%d.%d", major, repairs[len(repairs)-1].minor-behind)
}

func (e *examination) checkVersion() {
	s := &e.server
	if m := s.Major(); m < sql.MinMajor || m > sql.MaxMajor {
		if m > sql.MaxMajor { // the daemon tries it
			e.warn(pgVersion, []Remedy{advicef("use PostgreSQL %d to %d", sql.MinMajor, sql.MaxMajor)}, "PostgreSQL %s is newer than what was tested", s.VersionText)
			return
		}
		e.fail(pgVersion, Wrong, []Remedy{advicef("use PostgreSQL %d to %d", sql.MinMajor, sql.MaxMajor)}, "PostgreSQL %s is not supported", s.VersionText)
		return
	}
	bugs, sound := known(s.Version)
	if len(bugs) > 0 {
		e.warn(pgVersion, []Remedy{advicef("update the server to %s or later, which needs a restart and no more", sound)},
			"PostgreSQL %s has known faults: %s", s.VersionText, strings.Join(bugs, "; "))
		return
	}
	e.ok(pgVersion, "PostgreSQL %s", s.VersionText)
}
