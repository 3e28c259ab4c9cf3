package audit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/internal/outboxtable"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/kafka"
)

// Headers of records that a person has sent, by `dlq retry`, `recover` and `replay`.
const (
	HeaderRetried   = "outboxcdc-retried"
	HeaderRecovered = "outboxcdc-recovered"
	HeaderReplayed  = "outboxcdc-replayed"
)

// Audit compares the rows of a snapshot with Kafka. The order of its steps makes the answer exact: (1) the snapshot
// of the tables is taken, (2) the end L of the WAL is read, so that every row of the snapshot was committed before L,
// (3) the slot confirms L, or the events that wait in it are read, (4) Kafka is read up to the end of that moment,
// (5) both are compared. So a row of the snapshot has its record in what was read, or waits in the slot, or is
// missing. (6) A record without a row may be of a transaction that became visible after the snapshot, although its
// commit is before L: Postgres writes the commit to the WAL before it makes the rows visible. So its row is looked
// for again, in a snapshot that is taken after Kafka was read.
type Audit struct {
	Router  *router.Router
	Poison  *relay.PoisonPolicies
	Tables  []Table
	Lineage replication.Identity // of the server
	// Database is the OID of the database; 0: it is not known.
	Database uint32
	// Predecessors are the systems that this server has replaced, as by pg_upgrade.
	Predecessors []uint64
	Range        outboxtable.Range
	// Kept is the time since which the command retain has not removed rows, by the settings; zero: it removes none.
	Kept   time.Time
	Deep   bool
	Memory int64 // in bytes, of the comparison
	// PartitionCount is the smallest number of partitions that a setting has the daemon use; 0: none does.
	PartitionCount int32
	// Topics are read besides those that rows lead to.
	Topics []string
	// Acked is up to where the daemon skips what waits in the slot, because its position record says that Kafka has it;
	// zero: it skips nothing.
	Acked checkpoint.Position
	// Wait is how long to wait until the slot has confirmed the end of the WAL.
	Wait time.Duration
	// NotBefore is when Kafka may be read: until then records of a process that was killed may arrive.
	NotBefore time.Time

	// Count is a commit LSN whose records are counted, see Result.Ordinals.
	Count pglogrepl.LSN
	// Messages is whether logical messages are events as well. They have no row, so that records without one are not
	// judged.
	Messages bool

	// Release ends the snapshot, as soon as its rows were read: its locks must not be held while Kafka is read.
	Release func()
	// Fresh takes a new snapshot, for records without a row among those that were read. done gives it back.
	Fresh func(ctx context.Context) (s Snapshot, done func(), err error)

	// WALEnd returns the end of the server's WAL. It takes no lock: a statement that waits for the snapshot's lock would
	// be in the way.
	WALEnd func(ctx context.Context) (pglogrepl.LSN, error)

	// Slot is the name of the slot: dead letters of others do not count.
	Slot string
	// Letters reads which letters of held keys are open, and returns a function that says it of one; nil: no key is held.
	Letters func(ctx context.Context) (isOpen func(partition int32, offset int64) bool, err error)
	// Whole has Kafka read from the beginning of its topics, whatever the times of the rows.
	Whole bool
	// OnlyMissing leaves records without a row unjudged. Then Kafka is read from the time of the oldest row only.
	OnlyMissing bool

	// Lost, Undecided and Later are for commands that send missing rows, see [Judge]; nil: not wanted.
	Lost      func(*Row) error
	Undecided func(row *Row, why string) error
	Later     func(topic, key string, certain bool) error
	// Report is called for each finding.
	Report func(Finding) error
	// Note is called with a sentence about what limits the answer.
	Note func(string)
	// Progress is called now and then: a stage, and how much of it is done. of is 0 if it is not known.
	Progress func(stage string, done, of int64)
}

// Table is an outbox, in the order of the router's.
type Table struct {
	Name      string
	IDColumn  string // the column that the header id has; "": the id is made of several, so that all rows are read
	CreatedAt string // the column that a range of times is about
	Audited   bool   // its rows are compared; otherwise they only explain records
}

// Snapshot is what an audit reads of the tables. [outboxtable.Snapshot] is the real one.
type Snapshot interface {
	WALEnd() pglogrepl.LSN
	// Zoned reports whether the time of a table's rows has a time zone.
	Zoned(table int) bool
	Rows(ctx context.Context, table int, r outboxtable.Range, fn func(*outboxtable.Row) error) error
	Existing(ctx context.Context, table int, idColumn string, ids []string) (map[string]bool, error)
	Indexed(ctx context.Context, table int) (bool, error)
}

// Slot is what an audit asks of the slot.
type Slot interface {
	// Read returns the slot; nil: there is none.
	Read(ctx context.Context) (*replication.Slot, error)
	// Waiting calls fn with the record of each event that waits in the slot and was committed before upTo. Of a poison
	// event it has what could be made.
	Waiting(ctx context.Context, upTo pglogrepl.LSN, fn func(*router.Record) error) error
}

// Log is what an audit reads of Kafka. [kafka.Client] is the real one.
type Log interface {
	Spans(ctx context.Context, topics []string, since time.Time) (spans []kafka.Span, missing []string, err error)
	Retention(ctx context.Context, topics []string) (map[string]kafka.Retention, error)
	ReadSpan(ctx context.Context, s *kafka.Span, fn func(*kafka.Record) error) error
	// TooLarge reports whether a record is larger than max.message.bytes of its topic; 0: that is not known.
	TooLarge(rec *router.Record, limit int) bool
}

// Result is the outcome of an audit.
type Result struct {
	Counts
	SnapshotAt pglogrepl.LSN // every row of the snapshot was committed before it
	Confirmed  bool          // the slot has confirmed everything before SnapshotAt
	Spans      []kafka.Span  // what was read of Kafka
	// Ordinals is how many records have a position with the commit LSN of Audit.Count: one more than the highest ordinal.
	Ordinals uint32
}

// run is one run of an Audit.
type run struct {
	*Audit
	snapshot Snapshot
	slot     Slot
	log      Log
	c        *Comparison
	topics   map[string]bool
	res      Result

	most map[string]int // max.message.bytes, by topic

	oldest   time.Time // of the rows that are compared
	timeless bool      // a row has no time, or one in the future

	mu   sync.Mutex // guards c, res and logs while partitions are read side by side
	logs map[string]*topicLog

	readAt time.Time                                // when Kafka was read
	isOpen func(partition int32, offset int64) bool // see Audit.Letters

	partitioner kafka.Partitioner
}

// Run compares. dir is where temporary files go; "": the system's directory.
func (a *Audit) Run(ctx context.Context, snapshot Snapshot, slot Slot, log Log, dir string) (_ *Result, err error) {
	c, err := New(dir, a.Memory)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if a.Later != nil {
		if err := c.FindLater(); err != nil {
			return nil, err
		}
	}
	r := &run{Audit: a, snapshot: snapshot, slot: slot, log: log, c: c, topics: map[string]bool{}, most: map[string]int{}, logs: map[string]*topicLog{}, partitioner: kafka.NewPartitioner()}
	r.res.SnapshotAt = snapshot.WALEnd()
	for _, step := range []func(context.Context) error{r.readRows, r.readSlot, r.readKafka, r.compare} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return &r.res, nil
}

// readRows adds the rows of the tables.
func (r *run) readRows(ctx context.Context) error {
	var rec router.Record
	n := int64(0)
	for i := range r.Tables {
		t := &r.Tables[i]
		rows := r.Range
		if t.IDColumn == "" && rows.Where == "" {
			rows = outboxtable.Range{} // there is no other way to find the row of a record
		} else if !t.Audited {
			continue
		}
		if err := r.noteIndex(ctx, i, rows); err != nil {
			return err
		}
		err := r.snapshot.Rows(ctx, i, rows, func(row *outboxtable.Row) error {
			if n++; n%progressEvery == 0 {
				r.Progress("rows", n, 0)
			}
			return r.addRow(ctx, i, row, &rec)
		})
		if err != nil {
			return err
		}
	}
	r.Release()
	r.Progress("rows", n, n)
	if r.Messages {
		r.Note("logical messages have no row: they are not compared, and records without a row are not judged")
	}
	return nil
}

// noteIndex says how to make a range of times fast.
func (r *run) noteIndex(ctx context.Context, table int, rows outboxtable.Range) error {
	if rows.Since.IsZero() && rows.Until.IsZero() {
		return nil
	}
	indexed, err := r.snapshot.Indexed(ctx, table)
	if err == nil && !indexed {
		r.Note(fmt.Sprintf("no index of %s begins with %s, so the whole table is read: CREATE INDEX CONCURRENTLY ON %[1]s (%[2]s)", r.Tables[table].Name, r.Tables[table].CreatedAt))
	}
	return err
}

// progressEvery is after how many rows or records progress is reported.
const progressEvery = 1 << 13

// addRow adds a row as the record that it is routed to.
func (r *run) addRow(ctx context.Context, table int, row *outboxtable.Row, rec *router.Record) error {
	out := &Row{Table: table, Created: row.CreatedAt}
	out.Outside = !r.Tables[table].Audited || !r.Range.Since.IsZero() && row.CreatedAt.Before(r.Range.Since) || !r.Range.Until.IsZero() && !row.CreatedAt.Before(r.Range.Until)
	if err := r.Router.Route(&row.Event, checkpoint.Position{}, rec); err != nil {
		poison, ok := errors.AsType[*router.Poison](err)
		if !ok {
			return err
		}
		poison.ID = string(rec.ID)
		out.Poison, out.Skipped = string(poison.Cause), r.Poison.Of(poison) == relay.SkipPoison
		out.Topic = poison.Topic
	} else {
		out.Topic = rec.Topic
		r.topics[rec.Topic] = true
		if err := r.noteTooLarge(ctx, out, rec); err != nil {
			return err
		}
	}
	out.ID, out.Key = rec.ID, rec.Key
	if rec.Timestamp != 0 {
		out.Sent = time.UnixMilli(rec.Timestamp).UTC()
	}
	out.ByID, out.Partition, out.OwnPartition = rec.Key == nil, rec.Partition, rec.OwnPartition
	if !out.Outside {
		r.noteTime(out.Created)
	}
	out.Value = Hash(r.Router, rec.Value)
	out.Content = r.content(rec.Topic, rec.Key, rec.Value, func(yield func(name string, value []byte) bool) {
		for i := range rec.Headers {
			if h := &rec.Headers[i]; !yield(h.Name, h.Value) {
				return
			}
		}
	})
	return r.c.AddRow(out)
}

// noteTime notes the time of a row that is compared.
func (r *run) noteTime(created time.Time) {
	switch {
	case created.IsZero(), created.After(time.Now().Add(r.margin())):
		r.timeless = true
	case r.oldest.IsZero() || created.Before(r.oldest):
		r.oldest = created
	}
}

// since is the time from which on Kafka is read; zero: from the beginning. A record is not older than its row, except
// for the margin, unless the settings give it a time of its own. Records without a row are looked for in the whole
// range.
func (r *run) since() time.Time {
	since := r.Range.Since
	switch {
	case r.Whole, r.Router.SetsTimes():
		return time.Time{}
	case r.OnlyMissing && !r.timeless && r.oldest.IsZero(): // there is no row to compare
		since = time.Now()
	case r.OnlyMissing && !r.timeless && r.oldest.After(since):
		since = r.oldest
	}
	if since.IsZero() {
		return since
	}
	return since.Add(-r.margin())
}

// readSlot waits until the slot has confirmed every row of the snapshot. If that takes too long, or nothing reads the
// slot, it adds what waits there.
func (r *run) readSlot(ctx context.Context) error {
	end := time.Now().Add(r.Wait)
	for {
		s, err := r.slot.Read(ctx)
		switch {
		case err != nil:
			return err
		case s == nil:
			r.Note("there is no slot: what was written since it existed is not delivered, and counts as missing")
			return nil
		case s.Lost():
			r.Note("the slot is lost: what it had not delivered counts as missing")
			return nil
		case s.ConfirmedFlush >= r.res.SnapshotAt:
			r.res.Confirmed = true
			return nil
		}
		if !s.Active || !time.Now().Before(end) {
			break
		}
		r.Progress("slot", int64(s.ConfirmedFlush), int64(r.res.SnapshotAt))
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	n := int64(0)
	return r.slot.Waiting(ctx, r.res.SnapshotAt, func(rec *router.Record) error {
		if n++; n%progressEvery == 0 {
			r.Progress("waiting events", n, 0)
		}
		waits := &Record{ID: rec.ID, Topic: rec.Topic, Key: rec.Key, Value: Hash(r.Router, rec.Value)}
		for _, h := range rec.Headers {
			if h.Name == router.HeaderPosition {
				waits.Position, waits.Origin, _ = checkpoint.ParseHeader(string(h.Value)) // otherwise it has none
			}
		}
		if !waits.Position.IsZero() && waits.Position.Compare(r.Acked) <= 0 {
			return nil // if Kafka does not have it, the daemon will not send it
		}
		return r.c.AddWaiting(waits)
	})
}

// compare joins both sides.
func (r *run) compare(ctx context.Context) error {
	names := make([]string, len(r.Tables))
	for i := range r.Tables {
		names[i] = r.Tables[i].Name
	}
	r.Progress("comparison", 0, 0)
	end, err := r.WALEnd(ctx) // Kafka was read before, so a record with a later position is of a transaction that the server lost
	if err != nil {
		return err
	}
	j := &Judge{
		Tables: names, Deep: r.Deep, Since: r.Range.Since, OnlyMissing: r.OnlyMissing,
		Later: r.Later, Report: r.Report,
		Newer:     func(p checkpoint.Position) bool { return p.CommitLSN >= r.res.SnapshotAt },
		Abandoned: func(p checkpoint.Position) string { return r.abandoned(p, end) },
		Early: func(row *Row, rec *Record) bool {
			return !row.Created.IsZero() && !r.topicLog(rec.Topic).stamped && rec.Time.Before(r.sent(row))
		},
		Deleted: r.deleted,
		Hides:   r.hides, Hidden: r.hidden, Refuse: r.refuse,
		Young:    r.young,
		Exist:    func(ids []string) (map[string]bool, error) { return r.exist(ctx, ids) },
		ExistNow: func(ids []string) (map[string]bool, error) { return r.existNow(ctx, ids) },
	}
	if r.Lost != nil {
		j.Lost = func(row *Row) error { r.noteExpired(row); return r.Lost(row) }
	}
	if r.Undecided != nil {
		j.Undecided = func(row *Row, why string) error { r.noteExpired(row); return r.Undecided(row, why) }
	}
	if !r.Kept.IsZero() {
		j.Kept = r.Kept.Add(r.margin())
	}
	j.Origin = func(rec *Record) origin { return r.origin(rec, j.Abandoned) }
	if err := r.checkPartitions(j); err != nil {
		return err
	}
	r.res.Counts, err = r.c.Run(j)
	r.noteKept()
	if r.since().IsZero() {
		r.res.Early = 0
	}
	if n := r.res.Early; n > 0 {
		r.Note(fmt.Sprintf("records of %d rows are older than their rows, by more than %s: created_at is not when such a row was written, and the records of others may be older than what was read",
			n, r.margin()))
	}
	if n := r.res.Unnamed; n > 0 && r.Database != 0 {
		r.Note(fmt.Sprintf("%d of the records without a row were sent by an earlier version, which does not say of which database of this server they are: they may be another's", n))
	}
	if !r.Kept.IsZero() && r.res.Findings[Phantom] > 0 {
		r.Note("retain removes rows by their created_at (retention.keep): a record that was sent long after its row was written may be younger, and has no row")
	}
	if r.res.Findings[Phantom] > r.res.Rows {
		r.Note("more records have no row than rows were compared: if the application deletes rows soon, only those that are left can be audited")
	}
	return err
}
