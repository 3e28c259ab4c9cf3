package doctor

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/sink/kafka"
	"github.com/outboxcdc/outboxcdc/test/pgfull"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// TestCatalogueIsDocumented checks that docs/doctor.md has the checks in their order, and no others.
func TestCatalogueIsDocumented(t *testing.T) {
	if got := documented(t, "doctor.md"); !slices.Equal(got, Checks()) {
		t.Errorf("docs/doctor.md has\n%v, and the catalogue\n%v", got, Checks())
	}
}

// documented returns the checks that a page has: an item with a question for each, below the heading of its group.
func documented(t *testing.T, page string) (all []Check) {
	text, err := os.ReadFile("../../docs/" + page)
	must(t, err)
	group := ""
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "### "); ok {
			group = strings.TrimSpace(name)
		} else if strings.HasPrefix(line, "#") {
			group = ""
		}
		if m := checkItem.FindStringSubmatch(line); m != nil && group != "" {
			all = append(all, Check{m[1], group})
		}
	}
	return all
}

// checkItem is a check in a page: its name, perhaps its outcomes, and the beginning of its question.
var checkItem = regexp.MustCompile("^- `([a-z._]+)`(?: \\(([A-Z, ]+)\\))?: \\w")

// TestReadmeCountsChecks checks that README.md gives the number of checks.
func TestReadmeCountsChecks(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	must(t, err)
	if want := fmt.Sprintf("): %d checks, ", len(Checks())); !strings.Contains(string(text), want) {
		t.Errorf("README.md has to say %q", want)
	}
}

// TestServerBugs checks the bugs of minor versions.
func TestServerBugs(t *testing.T) {
	for version, want := range map[int]int{
		140012: 4, 140013: 3, 140014: 3, 140015: 2, 140017: 2, 140018: 1, 140019: 0, 140023: 0,
		150007: 6, 150008: 5, 150010: 4, 150013: 3, 150014: 2, 150016: 1, 150018: 0, 150020: 0,
		160003: 7, 160004: 6, 160006: 5, 160009: 4, 160010: 3, 160011: 2, 160012: 1, 160014: 0,
		170000: 6, 170002: 5, 170005: 4, 170006: 3, 170007: 2, 170008: 1, 170010: 0,
		180000: 3, 180001: 2, 180002: 1, 180004: 0, 180006: 0, 180007: 0, 190000: 0,
	} {
		bugs, harmless, _ := bugsOf(version)
		if len(bugs) != want {
			t.Errorf("%d: %d known bugs, want %d: %q", version, len(bugs), want, bugs)
		}
		if sends := version >= 180000 && version < 180007; len(harmless) == 1 != sends {
			t.Errorf("%d: harmless are %q", version, harmless)
		}
	}
	for version, want := range map[int]string{140000: "14.19", 150000: "15.18", 160003: "16.14", 170000: "17.10", 180000: "18.4"} {
		if _, _, fixed := bugsOf(version); fixed != want {
			t.Errorf("the first version after %d without a bug is %s, want %s", version, fixed, want)
		}
	}
	last := map[int]int{} // bugsOf relies on this order
	for _, b := range serverBugs {
		for major, minor := range b.fixed {
			if minor < last[major] {
				t.Errorf("%q is out of order", b.what)
			}
			last[major] = minor
		}
	}
}

// TestServerBugsAreUpToDate: a newer minor version may be pinned for the tests only after its release notes were read
// for the list of bugs.
func TestServerBugsAreUpToDate(t *testing.T) {
	pinned := map[string]string{}
	for _, major := range pgtest.Majors() {
		pinned["pgtest "+major] = pgtest.Version(major)
	}
	for _, major := range pgfull.Majors() {
		pinned["pgfull "+major] = pgfull.Version(major)
	}
	for name, version := range pinned {
		var major, minor int
		if _, err := fmt.Sscanf(version, "%d.%d", &major, &minor); err != nil {
			t.Fatalf("%s: %q: %v", name, version, err)
		}
		if newest, known := newestMinors[major]; !known || minor > newest {
			t.Errorf("%s is PostgreSQL %d.%d: read the release notes after %d.%d for bugs of logical decoding, add them to serverBugs, and then the version to newestMinors",
				name, major, minor, major, newest)
		}
	}
}

// TestReportIsShort checks that the report shows few of many OK topics, one line for checks that were not made for the
// same reason, and every other finding.
func TestReportIsShort(t *testing.T) {
	r := &Report{}
	for i := range 100 {
		f := Finding{Check: topicExists, Group: groupTopics, Level: OK, Text: "t" + strconv.Itoa(i)}
		if i == 50 {
			f.Level, f.Remedy = Fail, []Remedy{advicef("fix\x1b it")}
		}
		r.Findings = append(r.Findings, f)
	}
	for _, name := range []string{topicCleanup, topicSize} {
		r.Findings = append(r.Findings, Finding{Check: name, Group: groupTopics, Level: NotChecked, Text: "of\nthat"})
	}
	want := `topics
  OK    topic              t0
  OK    topic              t1
  OK    topic              t2
  OK    topic              and 47 more
  FAIL  topic              t50
          -> fix it
  OK    topic              t51
  OK    topic              t52
  OK    topic              t53
  OK    topic              and 46 more
  -     cleanup.policy, max.message.bytes: not checked, because of that

99 OK, 0 WARN, 1 FAIL, 2 not checked
`
	if got := r.String(); got != want {
		t.Errorf("it is:\n%s", got)
	}
}

// TestOneCommandCreatesTopics checks that the remedy for the position topic and the dead-letter topic is `setup apply`
// if another finding needs that command, and otherwise Kafka's own tool with the same settings.
func TestOneCommandCreatesTopics(t *testing.T) {
	e := &examination{
		Config:   Config{Positions: "positions", Letters: "dead", Brokers: []string{"kafka:9092"}, Server: "db:5432", Database: "app", Command: "outboxcdc"},
		findings: newFindings(),
	}
	cluster := &kafka.Examination{}
	e.warn(pgKeepSize, []Remedy{sqlf("SELECT 1"), advicef("run setup apply one day")}, "another finding")
	positions := func() Remedy { return e.brokers().createOwn(cluster, "positions", 1, 0, kafka.PositionTopic(1)) }
	letters := func() Remedy { return e.brokers().create(cluster, "dead") }
	byItself := func(got Remedy, begins string, settings []string) {
		t.Helper()
		if got.Kind != Shell || !strings.HasPrefix(got.Text, "kafka-topics.sh --bootstrap-server kafka:9092 --create --topic "+begins) {
			t.Errorf("by itself: %+v", got)
		}
		for _, setting := range settings {
			if !strings.Contains(got.Text, " --config "+setting) {
				t.Errorf("%s is missing: %s", setting, got.Text)
			}
		}
	}
	byItself(positions(), "positions --partitions 1 ", kafka.PositionTopic(1).Pairs())
	byItself(letters(), "dead --partitions 6 ", []string{"cleanup.policy=delete", "retention.ms=-1"})
	e.fail(slotExists, Lost, []Remedy{advicef("first something else"), e.setup()}, "there is no slot")
	for _, got := range []Remedy{positions(), letters()} {
		if got != e.setup() {
			t.Errorf("beside a slot that is missing: %+v, want %+v", got, e.setup())
		}
	}
}
