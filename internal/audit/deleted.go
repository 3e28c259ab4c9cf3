package audit

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/kafka"
)

// topicLog is what is known of a topic: its settings, and what Kafka has deleted of its partitions.
type topicLog struct {
	kafka.Retention
	isKnown bool // the settings may be read
	parts   []partLog
	// used is, by partition, the time of the first record of the daemon that was read; zero: there is none.
	used map[int32]time.Time
	// moved is whether a record is in a partition that its row cannot have been sent to: the row, its routing or the
	// partitioner has changed.
	moved bool
	// stamped is whether columns set the times of records. untimed is whether a record was older than its row: then the
	// time of a row is not that at which it was written, or the time of a record not that at which it was sent.
	stamped, untimed bool
	// kept is how many rows are judged although Kafka has deleted records, because it keeps theirs by the retention of
	// the topic.
	kept int64
	// expired is how many rows, of those that a command may send, a column gives a time that is older than the retention
	// of the topic.
	expired int64
}

// partLog is what is known of a partition.
type partLog struct {
	oldest time.Time // of the first record that Kafka has left; zero: it has deleted none, endOfTime: all
	moving bool      // Kafka has deleted records before they were read
	next   int64     // the offset after the last record that was read
	gap    time.Time // of the first record after the last offset without one; zero: there is none, endOfTime: it is at the end
	// hole is like gap, and not of a transaction's end: compaction has deleted records, also if the topic is not
	// compacted now.
	hole time.Time
}

// endOfTime is later than any row.
var endOfTime = time.Unix(1<<40, 0)

// mayCompact reports whether Kafka may delete records because later ones have their keys.
func (t *topicLog) mayCompact() bool { return t.Compact || !t.isKnown }

func (r *run) topicLog(topic string) *topicLog {
	t := r.logs[topic]
	if t == nil {
		t = &topicLog{used: map[int32]time.Time{}}
		r.logs[topic] = t
	}
	return t
}

func (t *topicLog) part(n int32) *partLog {
	for int(n) >= len(t.parts) {
		t.parts = append(t.parts, partLog{})
	}
	return &t.parts[n]
}

// readSettings reads which records Kafka deletes by itself.
func (r *run) readSettings(ctx context.Context, topics []string) error {
	known, err := r.log.Retention(ctx, topics)
	if err != nil {
		return err
	}
	for _, name := range topics {
		t := r.topicLog(name)
		t.Retention = known[name]
		_, t.isKnown = known[name]
		t.stamped = r.Router.SetsTimes() && !t.Appended && name != r.Poison.Topic
	}
	return nil
}

// noteUse notes that the daemon has sent to a partition: from then on it knew at least that many partitions. Records
// that a person has sent do not tell what the daemon knew, and the time of a record tells nothing if a column sets
// it.
func (r *run) noteUse(rec *Record) {
	if rec.Dead != "" || rec.Resent || r.Router.SetsTimes() || rec.Position.IsZero() || rec.Position.SystemID != r.Lineage.SystemID {
		return
	}
	t := r.topicLog(rec.Topic)
	if at, ok := t.used[rec.Partition]; !ok || rec.Time.Before(at) {
		t.used[rec.Partition] = rec.Time
	}
}

// noteOffset notes a record of whatever producer. Offsets without one are of records that compaction has deleted, or
// of transactions.
func (t *topicLog) noteOffset(partition int32, offset int64, at time.Time) {
	p := t.part(partition)
	if offset > p.next {
		p.gap = at
	}
	p.next = offset + 1
}

// noteDeleted notes what Kafka has deleted of a partition.
func (r *run) noteDeleted(s *kafka.Span) {
	p := r.topicLog(s.Topic).part(s.Partition)
	switch {
	case s.First == 0: // nothing was deleted
	case s.First < s.End && !s.Oldest.IsZero():
		p.oldest = s.Oldest
	default:
		p.oldest = endOfTime
	}
}

// partitions are those that the daemon may have sent the row to. The number of partitions when it did is not known.
// It was at most the number that Kafka has now. It was larger than the number of each partition that the daemon had
// sent to before the row was created, unless a setting has made it smaller since.
func (r *run) partitions(row *Row) []int32 {
	t := r.topicLog(row.Topic)
	now := int32(len(t.parts))
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

// anyPart reports whether is holds for a partition that may have the record of a row.
func (r *run) anyPart(row *Row, is func(*partLog) bool) bool {
	t := r.topicLog(row.Topic)
	for i := range t.parts {
		if is(&t.parts[i]) && (t.moved || slices.Contains(r.partitions(row), int32(i))) {
			return true
		}
	}
	return false
}

// deleted says why Kafka may have deleted the record of a row, for another reason than that a later record has its key.
func (r *run) deleted(row *Row) string {
	if row.Poison != "" {
		return r.deletedLetter(row)
	}
	t := r.topicLog(row.Topic)
	counted := false
	switch {
	case r.anyPart(row, func(p *partLog) bool {
		if !r.isBefore(t, row, p.oldest) {
			return false
		}
		keeps := !p.moving && r.keeps(t, row)
		counted = counted || keeps
		return !keeps
	}):
		return "Kafka may have deleted its record (retention)"
	case !t.mayCompact() && r.anyPart(row, func(p *partLog) bool { return r.isBefore(t, row, p.hole) }):
		return "Kafka may have deleted its record while the topic was compacted, as gaps in the offsets show that it was"
	case row.ByID && r.hides(row):
		return "Kafka may have deleted its record, which has no key (compaction)"
	case counted:
		t.kept++
	}
	return ""
}

// deletedLetter says why Kafka may have deleted the dead letter of a poison row.
func (r *run) deletedLetter(row *Row) string {
	policy := r.Poison.Of(&router.Poison{Cause: router.Cause(row.Poison), ID: string(row.ID)})
	if r.Poison.Topic == "" || policy != relay.DeadLetter && policy != relay.HoldKey {
		return ""
	}
	t := r.topicLog(r.Poison.Topic)
	for i := range t.parts {
		p := &t.parts[i]
		gone := r.isBefore(t, row, p.oldest) && (p.moving || !r.keeps(t, row))
		if gone || t.mayCompact() && r.isBeforeGap(t, row, p) {
			return "it is poison, " + row.Poison + ", and Kafka may have deleted its dead letter"
		}
	}
	return ""
}

// hides reports whether compaction may have deleted the record of a row, if a later record had its key.
func (r *run) hides(row *Row) bool {
	t := r.topicLog(row.Topic)
	return t.mayCompact() && r.anyPart(row, func(p *partLog) bool { return r.isBeforeGap(t, row, p) })
}

// isBeforeGap reports whether compaction may have deleted the record of a row: it leaves gaps in the offsets, also
// before the first record.
func (r *run) isBeforeGap(t *topicLog, row *Row, p *partLog) bool {
	return r.isBefore(t, row, p.gap) || r.isBefore(t, row, p.oldest)
}

// hidden says why compaction may have deleted the record of a row. newest is the time of the newest record with its
// key; zero: there is none. Compaction deletes that one as well only if it is a tombstone, and not before
// delete.retention.ms is over.
func (r *run) hidden(row *Row, newest time.Time) (why string, young bool) {
	t := r.topicLog(row.Topic)
	young = !t.isKnown
	switch {
	case !newest.IsZero() && !newest.Before(r.sent(row)), !newest.IsZero() && !r.isTimed(t, row):
		return "a later record has its key, so that Kafka may have deleted its record (compaction)", young
	case !t.isKnown || row.Created.IsZero() || r.isAhead(row) || r.sent(row).Before(r.readAt.Add(-t.Tombstones)):
		return "Kafka may have deleted its record and a later tombstone of its key (compaction)", young
	}
	return "", false
}

// sent is a time before which the record of a row cannot have been sent. The clock of Postgres may be ahead of the
// one that the record has its time from.
func (r *run) sent(row *Row) time.Time { return row.Created.Add(-r.margin()) }

// isAhead reports whether the time of a row is in the future: then it is not that at which the row was written.
func (r *run) isAhead(row *Row) bool { return r.sent(row).After(r.readAt) }

// isTimed reports whether the time of a row can be compared with the times of records.
func (r *run) isTimed(t *topicLog, row *Row) bool {
	return !t.stamped && !t.untimed && !row.Created.IsZero() && !r.isAhead(row)
}

// isBefore reports whether the record of a row may have been sent before a time of a partition; zero: there is no
// such time.
func (r *run) isBefore(t *topicLog, row *Row, at time.Time) bool {
	return !at.IsZero() && (at.Equal(endOfTime) || !r.isTimed(t, row) || r.sent(row).Before(at))
}

// keeps reports whether Kafka keeps the record of a row by the retention of its topic, which has deleted records: it
// deletes those that are older than retention.ms, and the record is not older than the row. A column that sets the
// times of records makes them as old as it says. What was deleted otherwise, by DeleteRecords or while the retention
// was shorter, cannot be seen, unless the settings keep everything now.
func (r *run) keeps(t *topicLog, row *Row) bool {
	switch {
	case !t.isKnown || t.Bytes >= 0, !t.Delete || t.Time < 0:
		return false
	case t.untimed || row.Created.IsZero() || r.isAhead(row):
		return false
	}
	since := row.Created
	if t.stamped && !row.Sent.IsZero() && row.Sent.Before(since) {
		since = row.Sent
	}
	return !since.Add(-r.margin()).Before(r.readAt.Add(-t.Time))
}

// young reports whether Kafka should have the record or the dead letter of a row by the retention of its topic, or
// whether that is not known.
func (r *run) young(row *Row) bool {
	t := r.topicLog(row.Topic)
	if row.Poison != "" {
		t = r.topicLog(r.Poison.Topic)
	}
	switch {
	case !t.isKnown, !t.Delete, t.Time < 0, row.Created.IsZero():
		return true
	}
	return !row.Created.Before(r.readAt.Add(-t.Time))
}

// checkPartitions finds the topics in which a record is where its row cannot have been sent to, or older than its row
// can be. The rows of the former are judged by all partitions, those of the latter without times. It reads the whole
// comparison, and only if Kafka has deleted something.
func (r *run) checkPartitions(j *Judge) error {
	deleted := false
	for _, t := range r.logs {
		deleted = deleted || slices.ContainsFunc(t.parts, func(p partLog) bool { return !p.oldest.IsZero() || t.mayCompact() && !p.gap.IsZero() })
	}
	if !deleted {
		return nil
	}
	return r.c.eachPair(j, func(row *Row, rec *Record) {
		if row.Poison != "" || rec.Resent || rec.Topic != row.Topic {
			return
		}
		t := r.topicLog(row.Topic)
		if !t.moved && !slices.Contains(r.partitions(row), rec.Partition) {
			t.moved = true
		}
		if !t.stamped && !row.Created.IsZero() && rec.Time.Before(r.sent(row)) {
			t.untimed = true
		}
	})
}

// noteExpired counts a row that a command may send: Kafka deletes its record soon, perhaps before consumers have read
// it.
func (r *run) noteExpired(row *Row) {
	if t := r.topicLog(row.Topic); t.stamped && t.Delete && t.Time >= 0 && !row.Sent.IsZero() && row.Sent.Before(r.readAt.Add(-t.Time)) {
		t.expired++
	}
}

// noteKept says on what the judgement of rows rests that have no record, although Kafka has deleted records of their
// topic.
func (r *run) noteKept() {
	for _, name := range slices.Sorted(maps.Keys(r.logs)) {
		if t := r.logs[name]; t.kept > 0 {
			r.Note(fmt.Sprintf("Kafka has deleted records of topic %s, and keeps those of %d rows by its retention, so these rows count as missing. If an operator has deleted "+
				"records there (DeleteRecords), or its retention was shorter for a time, they may have been delivered", name, t.kept))
		}
		if t := r.logs[name]; t.expired > 0 {
			r.Note(fmt.Sprintf("route.timestamp gives the records of %d rows times that are older than the retention of topic %s: Kafka deletes them soon after they are sent. "+
				"Raise retention.ms of the topic until consumers have read them, or set route.timestamp to produce", t.expired, name))
		}
	}
}
