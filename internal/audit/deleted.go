package audit

import (
	"slices"
	"time"

	"github.com/outboxcdc/outboxcdc/kafka"
)

// topicLog is what is known of the partitions of a topic.
type topicLog struct {
	compacted bool
	// oldest is, by partition, the time of the first record that Kafka has left; zero: it has deleted none, endOfTime: all.
	oldest []time.Time
	// used is, by partition, the time of the first record of the daemon that was read; zero: there is none.
	used map[int32]time.Time
	// moved is whether a record is in a partition that its row cannot have been sent to: the row, its routing or the partitioner has changed.
	moved bool
}

// endOfTime is later than any row.
var endOfTime = time.Unix(1<<40, 0)

func (r *run) topicLog(topic string) *topicLog {
	t := r.logs[topic]
	if t == nil {
		t = &topicLog{used: map[int32]time.Time{}}
		r.logs[topic] = t
	}
	return t
}

// noteUse notes that the daemon has sent to a partition: from then on it knew at least that many partitions. Records that a person has sent
// do not tell what the daemon knew, and the time of a record tells nothing if a column sets it.
func (r *run) noteUse(rec *Record) {
	if rec.Dead != "" || rec.Resent || r.WholeLogs || rec.Position.IsZero() || rec.Position.SystemID != r.Lineage.SystemID {
		return
	}
	t := r.topicLog(rec.Topic)
	if at, ok := t.used[rec.Partition]; !ok || rec.Time.Before(at) {
		t.used[rec.Partition] = rec.Time
	}
}

// noteDeleted notes what Kafka has deleted of a partition. It reports whether that is everything.
func (r *run) noteDeleted(s *kafka.Span) (all bool) {
	t := r.topicLog(s.Topic)
	for int(s.Partition) >= len(t.oldest) {
		t.oldest = append(t.oldest, time.Time{})
	}
	switch {
	case s.First == 0: // nothing was deleted
	case s.First < s.End && !s.Oldest.IsZero():
		t.oldest[s.Partition] = s.Oldest
	default:
		t.oldest[s.Partition] = endOfTime
		return true
	}
	return false
}

// partitions are those that the daemon may have sent the row to. The number of partitions when it did is not known. It was at most the
// number that Kafka has now. It was larger than the number of each partition that the daemon had sent to before the row was created, unless
// a setting has made it smaller since.
func (r *run) partitions(row *Row) []int32 {
	t := r.topicLog(row.Topic)
	now := int32(len(t.oldest))
	if row.OwnPartition {
		return []int32{row.Partition}
	}
	least := int32(1)
	for p, at := range t.used {
		if !row.Created.IsZero() && !at.After(row.Created.Add(-r.margin())) {
			least = max(least, min(p+1, now))
		}
	}
	if r.PartitionCount > 0 {
		least = min(least, r.PartitionCount)
	}
	by := row.Key
	if row.ByID {
		by = row.ID
	}
	var all []int32
	for count := least; count <= now; count++ {
		if p := r.partitioner.Of(by, count); !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all
}

// mayBeDeleted reports whether Kafka may have deleted the record of a row.
func (r *run) mayBeDeleted(row *Row) bool {
	t := r.topicLog(row.Topic)
	if t.compacted {
		return true
	}
	if t.moved {
		return slices.ContainsFunc(t.oldest, func(oldest time.Time) bool { return r.isOlder(row, oldest) })
	}
	return slices.ContainsFunc(r.partitions(row), func(p int32) bool {
		return int(p) < len(t.oldest) && r.isOlder(row, t.oldest[p])
	})
}

// deleted says why Kafka may have deleted the record of a row.
func (r *run) deleted(row *Row) string {
	if row.Poison == "" && r.mayBeDeleted(row) {
		return "Kafka may have deleted its record (retention or compaction)"
	}
	return ""
}

func (r *run) young(*Row) bool { return false }

// isOlder reports whether the record of a row may be older than the oldest record of a partition. The clock of Postgres may be ahead of the
// clock that the record has its time from.
func (r *run) isOlder(row *Row, oldest time.Time) bool {
	return !oldest.IsZero() && (row.Created.IsZero() || row.Created.Add(-r.margin()).Before(oldest))
}

// checkPartitions finds the topics in which a record is where its row cannot have been sent to. The rows of these topics are judged by all
// partitions. It reads the whole comparison, and only if Kafka has deleted something.
func (r *run) checkPartitions(j *Judge) error {
	deleted := false
	for _, t := range r.logs {
		deleted = deleted || slices.ContainsFunc(t.oldest, func(at time.Time) bool { return !at.IsZero() })
	}
	if !deleted {
		return nil
	}
	return r.c.eachPair(j, func(row *Row, rec *Record) {
		if row.Poison != "" || rec.Resent || rec.Topic != row.Topic {
			return
		}
		if t := r.topicLog(row.Topic); !t.moved && !slices.Contains(r.partitions(row), rec.Partition) {
			t.moved = true
		}
	})
}
