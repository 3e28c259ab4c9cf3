package audit

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/kafka"
	"github.com/outboxcdc/outboxcdc/replication"
)

// deletedFrom is a run in which Kafka has deleted all records of some of six partitions. The daemon has sent to partition p at used[p].
func deletedFrom(t *testing.T, emptied []int32, used map[int32]time.Time) *run {
	t.Helper()
	c, err := New(t.TempDir(), 16<<20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	r := &run{Audit: &Audit{Lineage: replication.Identity{SystemID: system}}, c: c, logs: map[string]*topicLog{}, partitioner: kafka.NewPartitioner()}
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

// TestDeletedByPartition checks that a row is judged if, and only if, Kafka has its record still, whatever the number of partitions was when
// the daemon sent it.
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
			r.PartitionCount, r.WholeLogs = c.set, c.whole
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
				if got := r.mayBeDeleted(row); got != want {
					t.Errorf("%s: partition %d is empty: the record of row %q may be deleted: %v, want %v", c.name, emptied, by, got, want)
				}
			}
		}
	}
	r := deletedFrom(t, []int32{2}, nil)
	for p := range int32(6) {
		if got := r.mayBeDeleted(&Row{Topic: "t", Created: later, OwnPartition: true, Partition: p}); got != (p == 2) {
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

// TestDeletedOfMovedRows checks that one record in a partition that its row cannot have been sent to has all rows of the topic judged by all
// partitions.
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
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := r.checkPartitions(&Judge{Origin: originOf}); err != nil {
			t.Fatal(err)
		}
		unjudged := 0
		for i := range 200 {
			if r.mayBeDeleted(row(1000 + i)) {
				unjudged++
			}
		}
		if moved != (unjudged == 200) || unjudged == 0 {
			t.Errorf("a record is in another partition: %v: %d of 200 rows are not judged", moved, unjudged)
		}
	}
}
