package doctor

import (
	"fmt"
	"strings"

	"github.com/outboxcdc/outboxcdc/sql"
)

// bugFixes are minor releases that fix a bug of logical decoding that loses or repeats events, as releases of
// PostgreSQL 15. The releases of the other majors on the same day have the same fix.
var bugFixes = []struct {
	minor int // of PostgreSQL 15
	bug   string
}{
	{8, "a slot could start inside a transaction, which was then decoded incorrectly"},
	{10, "restart_lsn of a slot could move back to WAL that was removed already"},
	{13, "events were lost when ALTER PUBLICATION or ALTER TYPE ran concurrently with open transactions"},
	{14, "the confirmed position of a slot could move back; WAL that the slot needs could be removed early"},
}

// minorOffset is the difference between the minor version of PostgreSQL 15 and that of each major released on the same
// day. PostgreSQL 17.0 was released with 15.8, and 18.0 with 15.14.
var minorOffset = map[int]int{14: -5, 15: 0, 16: 4, 17: 8, 18: 14}

// knownBugs lists the bugs of a version, and the first version of the major without any.
func knownBugs(version int) (bugs []string, fixed string) {
	major, minor := version/10000, version%10000
	offset, ok := minorOffset[major]
	if !ok {
		return nil, ""
	}
	for _, f := range bugFixes {
		if minor < f.minor-offset {
			bugs = append(bugs, f.bug)
		}
	}
	return bugs, fmt.Sprintf("%d.%d", major, bugFixes[len(bugFixes)-1].minor-offset)
}

func (e *examination) checkVersion() {
	s := &e.server
	if m := s.Major(); m < sql.MinMajor || m > sql.MaxMajor {
		if m > sql.MaxMajor { // the daemon starts all the same
			e.warn(pgVersion, []Remedy{advicef("use PostgreSQL %d to %d", sql.MinMajor, sql.MaxMajor)}, "PostgreSQL %s is newer than the tested versions", s.VersionText)
			return
		}
		e.fail(pgVersion, Wrong, []Remedy{advicef("use PostgreSQL %d to %d", sql.MinMajor, sql.MaxMajor)}, "PostgreSQL %s is not supported", s.VersionText)
		return
	}
	bugs, fixed := knownBugs(s.Version)
	if len(bugs) > 0 {
		e.warn(pgVersion, []Remedy{advicef("update the server to %s or later, which only needs a restart", fixed)},
			"PostgreSQL %s has known bugs: %s", s.VersionText, strings.Join(bugs, "; "))
		return
	}
	e.ok(pgVersion, "PostgreSQL %s", s.VersionText)
}
