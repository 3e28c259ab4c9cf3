package doctor

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/kafka"
)

// TestCatalogueIsDocumented checks that docs/doctor.md contains the catalogue.
func TestCatalogueIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), catalogue()) {
		t.Errorf("docs/doctor.md has to contain, as it is:\n%s", catalogue())
	}
	seen := map[string]bool{}
	for _, c := range Checks() {
		if seen[c.Name] || c.Asks == "" || len(c.Outcomes) == 0 {
			t.Errorf("%+v: twice, or without a question or an outcome", c)
		}
		seen[c.Name] = true
	}
}

// catalogue is the catalogue in the format of docs/doctor.md.
func catalogue() string {
	var b strings.Builder
	group := ""
	for _, c := range Checks() {
		if c.Group != group {
			group = c.Group
			fmt.Fprintf(&b, "\n### %s\n\n| check | asks | can be |\n| --- | --- | --- |\n", group)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", c.Name, c.Asks, strings.Join(c.Outcomes, ", "))
	}
	return b.String()
}

// TestKnownBugs checks the bugs of minor versions.
func TestKnownBugs(t *testing.T) {
	for version, want := range map[int]int{
		140012: 4, 140013: 3, 140014: 3, 140015: 2, 140017: 2, 140018: 1, 140019: 0, 140023: 0,
		150007: 4, 150008: 3, 150010: 2, 150013: 1, 150014: 0, 150020: 0,
		160003: 4, 160004: 3, 160006: 2, 160009: 1, 160010: 0,
		170000: 3, 170002: 2, 170005: 1, 170006: 0, 180000: 0, 180004: 0,
	} {
		bugs, _ := knownBugs(version)
		if len(bugs) != want {
			t.Errorf("%d: %d known faults, want %d: %q", version, len(bugs), want, bugs)
		}
	}
	if _, sound := knownBugs(160003); sound != "16.10" {
		t.Errorf("the first sound 16 is %s", sound)
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

// TestOneCommandCreatesThePositionTopic checks that the remedy for the position topic is `setup apply` if another
// finding needs that command, and otherwise Kafka's own tool with the same settings.
func TestOneCommandCreatesThePositionTopic(t *testing.T) {
	e := &examination{
		Config: Config{Positions: "positions", Brokers: []string{"kafka:9092"}, Server: "db:5432", Database: "app", Command: "outboxcdc"},
		found:  map[string][]Finding{},
	}
	cluster := &kafka.Examination{}
	e.warn(pgKeepSize, []Remedy{sqlf("SELECT 1"), advicef("run setup apply one day")}, "another finding")
	got := e.createPositions(cluster)
	if got.Kind != Shell || !strings.HasPrefix(got.Text, "kafka-topics.sh --bootstrap-server kafka:9092 --create --topic positions --partitions 1 ") {
		t.Errorf("by itself: %+v", got)
	}
	for _, setting := range kafka.PositionConfig() {
		if !strings.Contains(got.Text, " --config "+setting) {
			t.Errorf("%s is missing: %s", setting, got.Text)
		}
	}
	e.fail(slotExists, Lost, []Remedy{advicef("first something else"), e.setup()}, "there is no slot")
	if got := e.createPositions(cluster); got != e.setup() {
		t.Errorf("beside a slot that is missing: %+v, want %+v", got, e.setup())
	}
}
