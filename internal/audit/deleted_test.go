package audit

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/kafka"
)

// deletedFrom is a run in which Kafka has deleted all records of some of six partitions. The daemon has sent to
// partition p at used[p].
func deletedFrom(t *testing.T, emptied []int32, used map[int32]time.Time) *run {
	t.Helper()
	c, err := New(t.TempDir(), 16<<20)
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	r := &run{Audit: &Audit{Lineage: replication.Identity{SystemID: system}, Router: stamping(t, false)}, c: c, logs: map[string]*topicLog{}, partitioner: kafka.NewPartitioner(), readAt: time.Unix(2_000_000, 0)}
	r.topicLog("t").Retention, r.topicLog("t").isKnown = kafka.Retention{Delete: true, Time: time.Hour, Bytes: -1}, true
	for p := range int32(6) {
		s := kafka.Span{Topic: "t", Partition: p, End: 10}
		if slices.Contains(emptied, p) {
			s.First = s.End
		}
		r.noteDeleted(&s)
	}
	for p, at := range used {
		r.noteUse(&Record{Topic: "t", Partition: p, Time: at, Position: checkpoint.Position{SystemID: system, CommitLSN: 100}})
	}
	return r
}

// stamping returns a router. It may give records a time of their own.
func stamping(t *testing.T, own bool) *router.Router {
	t.Helper()
	cfg := router.DefaultConfig()
	if cfg.Topic = "{aggregate_type}"; own {
		cfg.Timestamp = router.TimestampCommit
	}
	r, err := router.New(cfg)
	must(t, err)
	return r
}

// TestDeletedByPartition checks that a row is judged if, and only if, Kafka has its record still, whatever the number
// of partitions was when the daemon sent it.
func TestDeletedByPartition(t *testing.T) {
	grown := time.Unix(1_000_000, 0)
	later := grown.Add(time.Hour)
	for _, c := range []struct {
		name     string
		used     map[int32]time.Time
		set      int32
		whole    bool
		created  time.Time
		possible []int32 // numbers of partitions when the row was sent
	}{
		{name: "the daemon had sent to the last partition", used: map[int32]time.Time{5: grown}, created: later, possible: []int32{6}},
		{name: "it had sent to partition 3", used: map[int32]time.Time{3: grown, 5: later}, created: later, possible: []int32{4, 5, 6}},
		{name: "it sent to the last partition later", used: map[int32]time.Time{5: later}, created: grown, possible: []int32{1, 2, 3, 4, 5, 6}},
		{name: "by the clock of Postgres just before", used: map[int32]time.Time{5: grown}, created: grown.Add(time.Minute), possible: []int32{1, 2, 3, 4, 5, 6}},
		{name: "the row has no time", used: map[int32]time.Time{5: grown}, possible: []int32{1, 2, 3, 4, 5, 6}},
		{name: "a setting has a smaller number", used: map[int32]time.Time{5: grown}, set: 3, created: later, possible: []int32{3, 4, 5, 6}},
		{name: "a column sets the time of records", used: map[int32]time.Time{5: grown}, whole: true, created: later, possible: []int32{1, 2, 3, 4, 5, 6}},
	} {
		for emptied := range int32(6) {
			r := deletedFrom(t, []int32{emptied}, nil)
			r.PartitionCount, r.Router = c.set, stamping(t, c.whole)
			for p, at := range c.used {
				r.noteUse(&Record{Topic: "t", Partition: p, Time: at, Position: checkpoint.Position{SystemID: system, CommitLSN: 100}})
			}
			for i := range 200 {
				row := &Row{ID: fmt.Append(nil, i), Topic: "t", Created: c.created, Key: fmt.Append(nil, "key", i)}
				by := row.Key
				if i%2 == 0 {
					row.Key, row.ByID, by = nil, true, row.ID
				}
				want := slices.ContainsFunc(c.possible, func(n int32) bool { return kafka.NewPartitioner().Of(by, n) == emptied })
				if got := (r.deleted(row) != ""); got != want {
					t.Errorf("%s: partition %d is empty: the record of row %q may be deleted: %v, want %v", c.name, emptied, by, got, want)
				}
			}
		}
	}
	r := deletedFrom(t, []int32{2}, nil)
	for p := range int32(6) {
		if got := r.deleted(&Row{Topic: "t", Created: later, OwnPartition: true, Partition: p}) != ""; got != (p == 2) {
			t.Errorf("the row names partition %d: %v", p, got)
		}
	}
	r.noteUse(&Record{Topic: "t", Partition: 5, Time: grown, Resent: true, Position: checkpoint.Position{SystemID: system, CommitLSN: 100}})
	r.noteUse(&Record{Topic: "t", Partition: 5, Time: grown, Position: checkpoint.Position{SystemID: system + 1, CommitLSN: 100}})
	r.noteUse(&Record{Topic: "t", Partition: 5, Time: grown})
	if used := r.topicLog("t").used; len(used) > 0 {
		t.Errorf("records that the daemon has not sent tell the number of partitions: %v", used)
	}
}

// TestDeletedOfMovedRows checks that one record in a partition that its row cannot have been sent to has all rows of
// the topic judged by all partitions.
func TestDeletedOfMovedRows(t *testing.T) {
	grown := time.Unix(1_000_000, 0)
	row := func(i int) *Row {
		return &Row{ID: fmt.Append(nil, i), Topic: "t", Key: fmt.Append(nil, "key", i), Created: grown.Add(time.Hour)}
	}
	for _, moved := range []bool{false, true} {
		r := deletedFrom(t, []int32{2}, map[int32]time.Time{5: grown})
		for i := range 50 {
			at := r.partitioner.Of(row(i).Key, 6)
			if moved && i == 33 {
				at = (at + 1) % 6
			}
			rec := &Record{ID: row(i).ID, Topic: "t", Key: row(i).Key, Partition: at, Position: checkpoint.Position{SystemID: system, CommitLSN: 100}}
			for _, err := range []error{r.c.AddRow(row(i)), r.c.AddRecord(rec)} {
				must(t, err)
			}
		}
		must(t, r.checkPartitions(&Judge{Origin: originOf}))
		unjudged := 0
		for i := range 200 {
			if r.deleted(row(1000+i)) != "" {
				unjudged++
			}
		}
		if moved != (unjudged == 200) || unjudged == 0 {
			t.Errorf("a record is in another partition: %v: %d of 200 rows are not judged", moved, unjudged)
		}
	}
}

// TestRetention checks by what a row without a record is judged: the settings of its topic, now and before (F122),
// what Kafka has deleted, and its age. It is day 100.
func TestRetention(t *testing.T) {
	const day = 24 * time.Hour
	now := time.Unix(0, 0).Add(100 * day)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	emptied := partLog{oldest: endOfTime}
	week := kafka.Retention{Delete: true, Time: 7 * day, Bytes: -1, Tombstones: day}
	with := func(change func(*kafka.Retention)) kafka.Retention { r := week; change(&r); return r }
	compact := with(func(r *kafka.Retention) { r.Delete, r.Compact = false, true })
	both := with(func(r *kafka.Retention) { r.Compact = true })
	const missing, kept, deleted, hidden, tombstone = "", "kept", "retention", "a later record", "tombstone"
	for _, c := range []struct {
		name     string
		settings kafka.Retention
		unknown  bool // the settings
		part     partLog
		created  time.Time
		sent     time.Time // by a column
		stamped  bool
		noKey    bool
		newest   time.Time
		want     string
		young    bool
	}{
		{name: "a topic of which nothing was deleted", settings: week, created: ago(20 * day), want: missing},
		{name: "an emptied topic, a second ago", settings: week, part: emptied, created: ago(time.Second), want: kept, young: true},
		{name: "an emptied topic, two days ago", settings: week, part: emptied, created: ago(2 * day), want: kept, young: true},
		{name: "an emptied topic, seven days ago but for a minute", settings: week, part: emptied, created: ago(7*day - time.Minute), want: deleted, young: true},
		{name: "an emptied topic, nine days ago", settings: week, part: emptied, created: ago(9 * day), want: deleted},
		{name: "before the first record, two days ago", settings: week, part: partLog{oldest: ago(day)}, created: ago(2 * day), want: kept, young: true},
		{name: "before the first record, nine days ago", settings: week, part: partLog{oldest: ago(day)}, created: ago(9 * day), want: deleted},
		{name: "after the first record", settings: week, part: partLog{oldest: ago(20 * day)}, created: ago(9 * day), want: missing},
		{name: "by size", settings: with(func(r *kafka.Retention) { r.Bytes = 1 << 30 }), part: emptied, created: ago(time.Second), want: deleted, young: true},
		{name: "without a limit, and nothing was deleted", settings: with(func(r *kafka.Retention) { r.Time = -1 }), created: ago(90 * day), want: missing, young: true},
		{name: "without a limit, which was set later", settings: with(func(r *kafka.Retention) { r.Time = -1 }), part: emptied, created: ago(90 * day), want: deleted, young: true},
		{name: "without a limit, before the first record", settings: with(func(r *kafka.Retention) { r.Time = -1 }), part: partLog{oldest: ago(day)}, created: ago(2 * day), want: deleted, young: true},
		{name: "compacted only, which was set later", settings: compact, part: partLog{oldest: ago(day)}, created: ago(2 * day), want: deleted, young: true},
		{name: "while it was read", settings: week, part: partLog{oldest: endOfTime, moving: true}, created: ago(time.Second), want: deleted, young: true},
		{name: "a row without a time", settings: week, part: emptied, want: deleted, young: true},
		{name: "a row of the future", settings: week, part: emptied, created: ago(-time.Hour), want: deleted, young: true},
		{name: "unknown settings", unknown: true, part: emptied, created: ago(time.Second), want: deleted, young: true},
		{name: "unknown settings, after the first record", unknown: true, part: partLog{oldest: ago(20 * day)}, created: ago(time.Second), want: missing, young: true},
		{name: "a column sets an old time", settings: week, stamped: true, part: emptied, created: ago(day), sent: ago(8 * day), want: deleted, young: true},
		{name: "a column sets a new time", settings: week, stamped: true, part: emptied, created: ago(day), sent: ago(day), want: kept, young: true},
		{name: "a column sets the times of other tables", settings: week, stamped: true, part: emptied, created: ago(day), want: kept, young: true},
		{name: "columns set the times, and the log does not begin at 0", settings: week, stamped: true, part: partLog{oldest: ago(20 * day)}, created: ago(8 * day), want: deleted},

		{name: "a compacted topic without gaps", settings: compact, created: ago(9 * day), newest: ago(0), want: missing, young: true},
		{name: "compacted, and no record has its key", settings: compact, part: partLog{gap: ago(0)}, created: ago(time.Hour), want: missing, young: true},
		{name: "compacted, and a later record has its key", settings: compact, part: partLog{gap: ago(0)}, created: ago(time.Hour), newest: ago(0), want: hidden, young: true},
		{name: "compacted, and a record of the same time has its key", settings: compact, part: partLog{gap: ago(0)}, created: ago(time.Hour), newest: ago(time.Hour), want: hidden, young: true},
		{name: "compacted, and only an earlier record has its key", settings: compact, part: partLog{gap: ago(0)}, created: ago(time.Hour), newest: ago(day), want: missing, young: true},
		{name: "compacted before the row was written", settings: compact, part: partLog{gap: ago(day)}, created: ago(time.Hour), newest: ago(0), want: missing, young: true},
		{name: "compacted at the end", settings: compact, part: partLog{gap: endOfTime}, created: ago(time.Hour), newest: ago(0), want: hidden, young: true},
		{name: "compacted, and a tombstone may be gone", settings: compact, part: partLog{gap: ago(0)}, created: ago(2 * day), want: tombstone, young: true},
		{name: "compacted, and the row has no time", settings: compact, part: partLog{gap: ago(0)}, want: tombstone, young: true},
		{name: "compacted, and columns set the times", settings: compact, stamped: true, part: partLog{gap: ago(day)}, created: ago(time.Hour), sent: ago(time.Hour), newest: ago(2 * day), want: hidden, young: true},
		{name: "compacted, and the row has no key", settings: compact, noKey: true, part: partLog{gap: ago(0)}, created: ago(time.Hour), want: "no key", young: true},
		{name: "compacted, and by age", settings: both, part: partLog{oldest: endOfTime}, created: ago(9 * day), want: deleted},
		{name: "compacted, and not by age", settings: both, part: partLog{oldest: endOfTime, gap: ago(0)}, created: ago(time.Hour), newest: ago(0), want: hidden, young: true},
		{name: "gaps, and unknown settings", unknown: true, part: partLog{gap: ago(0)}, created: ago(time.Hour), newest: ago(0), want: hidden, young: true},
		{name: "compacted in former times", settings: week, part: partLog{hole: ago(0)}, created: ago(time.Hour), newest: ago(0), want: "while the topic was compacted", young: true},
		{name: "compacted before the row was written, in former times", settings: week, part: partLog{hole: ago(day)}, created: ago(time.Hour), newest: ago(0), want: missing, young: true},
		{name: "gaps of transactions", settings: week, part: partLog{gap: ago(0)}, created: ago(time.Hour), newest: ago(0), want: missing, young: true},
	} {
		r := &run{Audit: &Audit{Poison: &relay.PoisonPolicies{}, Router: stamping(t, c.stamped)}, logs: map[string]*topicLog{}, partitioner: kafka.NewPartitioner(), readAt: now, snapshot: &order{}}
		r.logs["t"] = &topicLog{Retention: c.settings, isKnown: !c.unknown, parts: []partLog{c.part}, stamped: c.stamped}
		row := &Row{ID: []byte("1"), Topic: "t", Key: []byte("k"), Created: c.created, Sent: c.sent, ByID: c.noKey}
		got, young := r.deleted(row), r.young(row)
		if got == "" && r.hides(row) {
			var hiddenYoung bool
			if got, hiddenYoung = r.hidden(row, c.newest); got != "" && hiddenYoung != c.unknown {
				t.Errorf("%s: should Kafka have it: %v", c.name, hiddenYoung)
			}
		}
		if got == "" && r.logs["t"].kept > 0 {
			got = kept
		}
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) || young != c.young {
			t.Errorf("%s: %q, within the retention %v, want %q, %v", c.name, got, young, c.want, c.young)
		}
	}
}

// TestOldDeadLetter checks that a poison row whose dead letter Kafka may have deleted is not judged, and that a
// policy without dead letters says nothing about them.
func TestOldDeadLetter(t *testing.T) {
	now := time.Unix(0, 0).Add(100 * 24 * time.Hour)
	for _, c := range []struct {
		name   string
		policy relay.PoisonPolicy
		part   partLog
		age    time.Duration
		want   bool
	}{
		{"deleted by age", relay.DeadLetter, partLog{oldest: endOfTime}, 240 * time.Hour, true},
		{"kept", relay.DeadLetter, partLog{oldest: endOfTime}, time.Hour, false},
		{"nothing was deleted", relay.DeadLetter, partLog{}, 240 * time.Hour, false},
		{"no dead letters", relay.StopAtPoison, partLog{oldest: endOfTime}, 240 * time.Hour, false},
	} {
		r := &run{Audit: &Audit{Poison: &relay.PoisonPolicies{Policy: c.policy, Topic: "dead"}}, logs: map[string]*topicLog{}, readAt: now, snapshot: &order{}}
		r.logs["dead"] = &topicLog{Retention: kafka.Retention{Delete: true, Time: 7 * 24 * time.Hour, Bytes: -1}, isKnown: true, parts: []partLog{{}, c.part}}
		row := &Row{ID: []byte("1"), Poison: "null_key", Created: now.Add(-c.age)}
		if got := r.deleted(row); (got != "") != c.want || r.young(row) != (c.age == time.Hour) {
			t.Errorf("%s: %q, within the retention %v", c.name, got, r.young(row))
		}
	}
}

// TestGaps checks which offsets without a record count: those before a record, with its time.
func TestGaps(t *testing.T) {
	l := &topicLog{}
	l.part(2).next = 10
	for _, o := range []int64{10, 11, 14, 15} {
		l.noteOffset(2, o, time.Unix(o, 0))
	}
	if p := l.part(2); p.gap != time.Unix(14, 0) || p.next != 16 || len(l.parts) != 3 {
		t.Errorf("%+v", l.parts)
	}
}

// TestUntimed checks that a record that is older than its row can be has no row of its topic judged by times.
func TestUntimed(t *testing.T) {
	grown := time.Unix(1_000_000, 0)
	for _, early := range []time.Duration{time.Minute, time.Hour} {
		r := deletedFrom(t, []int32{2}, nil)
		r.snapshot = &order{}
		row := &Row{ID: []byte("1"), Topic: "t", Key: []byte("k"), Created: grown}
		rec := &Record{ID: row.ID, Topic: "t", Key: row.Key, Time: grown.Add(-early)}
		must(t, errors.Join(r.c.AddRow(row), r.c.AddRecord(rec), r.checkPartitions(&Judge{Origin: originOf})))
		if got := r.topicLog("t").untimed; got != (early == time.Hour) {
			t.Errorf("a record %v before its row: %v", early, got)
		}
		if r.topicLog("t").untimed && (r.keeps(r.topicLog("t"), row) || !r.isBefore(r.topicLog("t"), row, time.Unix(1, 0))) {
			t.Error("a row is judged by times")
		}
	}
}
