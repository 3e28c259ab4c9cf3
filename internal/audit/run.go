package audit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/internal/outboxtable"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/kafka"
)

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
		waits.Position, waits.Origin, _ = checkpoint.ParseHeader(rec.Position()) // after an error it has none
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
		Tables: names, Slot: r.Slot, Deep: r.Deep, Since: r.Range.Since, OnlyMissing: r.OnlyMissing,
		Later: r.Later, SendsUndecided: r.SendsUndecided, Report: r.Report,
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
