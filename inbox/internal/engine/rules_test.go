package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxcdc/outboxcdc/inbox"
	"github.com/outboxcdc/outboxcdc/inbox/internal/park"
)

// fake is a record: its offset, and its id.
type fake struct {
	offset int64
	id     string
}

func readFake(f fake) park.Record {
	return park.Record{Offset: f.offset, LeaderEpoch: 3, Headers: [][2][]byte{{[]byte("id"), []byte(f.id)}}}
}

func partition() *Partition[fake] {
	return &Partition[fake]{Engine: &Engine[fake]{Store: &inbox.Store{}, Read: readFake}, Place: inbox.Place{Topic: "t"}, suspect: suspect{offset: -1}}
}

func idsOf(tasks []task[fake]) (ids string) {
	for _, t := range tasks {
		ids += " " + t.event.ID
	}
	return strings.TrimSpace(ids)
}

// Each case is a batch at a mark with offset 5. want has the ids that may be handled.
func TestSift(t *testing.T) {
	for name, c := range map[string]struct {
		records []fake
		want    string
		n       int
		err     string
	}{
		"new records":               {[]fake{{5, "a"}, {6, "b"}}, "a b", 2, ""},
		"handled offsets":           {[]fake{{3, "a"}, {4, ""}, {5, "c"}}, "c", 3, ""},
		"a gap in the offsets":      {[]fake{{50, "a"}}, "a", 1, ""},
		"all of them handled":       {[]fake{{3, "a"}, {4, "b"}}, "", 2, ""},
		"no id":                     {[]fake{{5, "a"}, {6, ""}, {7, "c"}}, "a", 1, "offset 6"},
		"no id behind handled ones": {[]fake{{4, "a"}, {5, ""}}, "", 1, "no header id"},
	} {
		tasks, n, err := partition().sift(c.records, inbox.Mark{Next: 5})
		if got := idsOf(tasks); got != c.want || n != c.n {
			t.Errorf("%s: %q, %d records; want %q and %d", name, got, n, c.want, c.n)
		}
		if (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v; want an error with %q", name, err, c.err)
		}
		for _, task := range tasks {
			if task.event.Topic != "t" || task.LeaderEpoch != 3 {
				t.Errorf("%s: %+v", name, task)
			}
		}
	}
}

// A batch ends with the record that has failed, and while that is not known it is short.
func TestCut(t *testing.T) {
	tasks, _, err := partition().sift([]fake{{5, "a"}, {6, "b"}, {7, "c"}, {9, "d"}}, inbox.Mark{})
	if err != nil {
		t.Fatal(err)
	}
	for suspect, want := range map[suspect]string{
		{offset: -1}: "a b c d", {offset: 7}: "a b c", {offset: 5}: "a", {offset: 100}: "a b c d", {offset: 8}: "a b c d",
		{offset: -1, most: 2}: "a b", {offset: 9, most: 3}: "a b c", {offset: 6, most: 3}: "a b", {offset: -1, most: 50}: "a b c d",
	} {
		p := partition()
		p.suspect = suspect
		if got := idsOf(p.cut(tasks)); got != want {
			t.Errorf("%+v: %q, want %q", suspect, got, want)
		}
	}
}

func TestSuspectForgotten(t *testing.T) {
	s := suspect{offset: 7, id: "c", tries: 2, most: 1, conflicts: 3}
	s.committed(7)
	if s != (suspect{offset: 7, id: "c", tries: 2}) {
		t.Errorf("after a commit before the record: %+v", s)
	}
	if s.committed(8); s != (suspect{offset: -1}) {
		t.Errorf("after its own commit: %+v", s)
	}
}

// Conflicts with other transactions are not blamed on the record, up to a limit.
func TestMayConflict(t *testing.T) {
	var s suspect
	n := 0
	for n < 10*maxConflicts && s.mayConflict() {
		n++
	}
	if n != maxConflicts {
		t.Errorf("%d conflicts are not blamed on the record, want %d", n, maxConflicts)
	}
}

// A batch has as many records as fit into its time.
func TestPace(t *testing.T) {
	const within = 100 * time.Millisecond
	for perRecord, want := range map[time.Duration]int{
		0: firstBatch, time.Nanosecond: 500, 100 * time.Microsecond: 500, time.Millisecond: 100, 20 * time.Millisecond: 5,
		100 * time.Millisecond: 1, time.Minute: 1,
	} {
		p := pace{perRecord}
		if got := p.size(500, within); got != want {
			t.Errorf("%v for a record: %d records, want %d", perRecord, got, want)
		}
		if got := p.size(3, within); got > 3 || got < 1 {
			t.Errorf("%v for a record: %d records of at most 3", perRecord, got)
		}
	}
	var p pace
	p.observe(50, 50*time.Millisecond)
	if p.size(500, within) != 100 {
		t.Errorf("after 50 records in 50 ms: %v", p)
	}
	if p.observe(4, 80*time.Millisecond); p.size(500, within) != 5 {
		t.Errorf("a slower pace does not count at once: %v", p)
	}
	if p.observe(0, time.Hour); p.size(500, within) != 5 {
		t.Errorf("a batch without calls has changed the pace: %v", p)
	}
	for range 3 { // a single fast batch may be luck
		before := p.size(500, within)
		if p.observe(5, 5*time.Microsecond); p.size(500, within) <= before || p.size(500, within) > 2*before+1 {
			t.Errorf("a faster pace: %d records after %d", p.size(500, within), before)
		}
	}
	for range 20 {
		p.observe(100, 100*time.Microsecond)
	}
	if p.size(500, within) != 500 {
		t.Errorf("after many fast batches: %v", p)
	}
}

func TestCheckBegin(t *testing.T) {
	marked := func(next int64) Stored { return Stored{mark: inbox.Mark{Next: next}, ok: true} }
	none := Stored{mark: inbox.Mark{Next: -1}}
	log := Range{First: 10, End: 20}
	for name, c := range map[string]struct {
		stored        Stored
		committed     int64
		continueGroup bool
		next          int64 // -1: the begin of the log
		err           []string
	}{
		"a new group":                     {none, -1, false, -1, nil},
		"a mark":                          {marked(15), 12, false, 15, nil},
		"a mark at the end":               {marked(20), -1, false, 20, nil},
		"a mark at the begin":             {marked(10), 3, false, 10, nil},
		"forgotten offsets":               {marked(-1), 15, false, -1, nil},
		"a mark before the log":           {marked(9), 15, true, 0, []string{"offset 9", "before 10", "replay", "ForgetOffsets"}},
		"a mark after the log":            {marked(21), 15, true, 0, []string{"offset 21", "ends at 20", "audit"}},
		"a group without a mark":          {none, 15, false, 0, []string{"offset 15 in Kafka", "ContinueGroup", "--delete-offsets"}},
		"a group that is continued":       {none, 15, true, 15, nil},
		"a group at the begin":            {none, 10, false, 10, nil},
		"a group before the log":          {none, 9, false, 0, []string{"offset 9", "before 10", "replay", "--delete-offsets"}},
		"a continued group before it":     {none, 9, true, 0, []string{"offset 9", "before 10", "replay", "--delete-offsets"}},
		"a continued group after the log": {none, 21, true, 0, []string{"offset 21", "ends at 20"}},
	} {
		err := checkBegin(c.stored, log, c.committed, c.continueGroup)
		if (err != nil) != (c.err != nil) {
			t.Errorf("%s: %v", name, err)
		}
		for _, want := range c.err {
			if err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v; want %q in it", name, err, want)
			}
		}
		if next, _, ok := c.stored.Begin(c.committed); err == nil && (ok != (c.next >= 0) || ok && next != c.next) {
			t.Errorf("%s: begins at %d, %t; want %d", name, next, ok, c.next)
		}
	}
}

func TestCheckTopic(t *testing.T) {
	for c, isFine := range map[[2]string]bool{{"", ""}: true, {"", "a"}: true, {"a", "a"}: true, {"a", "b"}: false, {"a", ""}: false} {
		if err := checkTopic(inbox.Mark{TopicID: c[0]}, c[1]); (err == nil) != isFine {
			t.Error(fmt.Sprint(c), err)
		}
	}
}

// F134: records of a topic that was recreated after the partition was assigned are not handled: neither their offsets
// nor the mark's are known to be of the topic that there is now.
func TestRecreatedBesideRecords(t *testing.T) {
	e := &Engine[fake]{Store: &inbox.Store{}, Read: readFake, Describe: func(context.Context, string) (string, error) { return "new", nil }}
	p, err := e.Assign(inbox.Place{Topic: "t"}, Stored{mark: inbox.Mark{Next: -1}, topicID: "old"}, Range{End: 10}, -1)
	if err != nil {
		t.Fatal(err)
	}
	config, err := pgxpool.ParseConfig("host=/nowhere")
	if err != nil {
		t.Fatal(err)
	}
	if p.Pool, err = pgxpool.NewWithConfig(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	defer p.Pool.Close()
	for id, isFine := range map[string]bool{"": false, "new": false, "old": true} { // empty: the client does not know it
		if _, err := p.transact(t.Context(), id, []fake{{0, "a"}}); errors.Is(err, ErrRewound) == isFine {
			t.Errorf("records of topic %q: %v", id, err)
		}
	}
}
