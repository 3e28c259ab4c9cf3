package recovery

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/internal/audit"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/human"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/kafka/sender"
)

// Unjudged is what happens to rows of which it is not known whether Kafka has, or had, their record.
type Unjudged int

// AskUnjudged asks; without an answer nothing is sent. SendUnjudged sends the rows. LeaveUnjudged leaves them: the
// operator has decided that they are delivered, or not needed.
const (
	AskUnjudged Unjudged = iota
	SendUnjudged
	LeaveUnjudged
)

// Found is the result of a comparison.
type Found struct {
	*audit.Result
	Missing  Rowset // neither Kafka nor the slot has them
	Unjudged Rowset // that is not known
	// LaterKeys is how many keys of rows that are missing, or not judged and perhaps sent, have later events in Kafka.
	// LaterTopics are the topics of those of missing rows that have, or may have, some.
	LaterKeys   int
	LaterTopics map[string]bool

	next checkpoint.Position // of the first record that is sent
}

// Rowset is a set of rows.
type Rowset struct {
	Rows   int
	Topics map[string]*Gap // by the topic that the rows are routed to
	set    Set
}

// Gap is the rows of one topic.
type Gap struct {
	Rows        int
	First, Last audit.Row // by the time of their creation
	Why         string    // of the first one, if its record is not known
}

func rowEvent(row *audit.Row) Event {
	return Event{row.Topic, string(row.ID), string(row.Key), row.Value}
}

func newRowset() Rowset { return Rowset{Topics: map[string]*Gap{}} }

func (s *Rowset) add(row *audit.Row, why string) {
	s.Rows++
	s.set.Add(rowEvent(row))
	g := s.Topics[row.Topic]
	kept := *row
	kept.ID, kept.Key = slices.Clone(row.ID), slices.Clone(row.Key)
	if g == nil {
		g = &Gap{First: kept, Last: kept, Why: why}
		s.Topics[row.Topic] = g
	}
	g.Rows++
	if row.Created.Before(g.First.Created) {
		g.First = kept
	}
	if !row.Created.Before(g.Last.Created) {
		g.Last = kept
	}
}

// waitForDaemon is how long to wait for a daemon that runs beside before what its slot holds is read.
const waitForDaemon = 10 * time.Second

// compare finds the rows that are missing. Kafka is read from the time of the oldest row on. If a record is older
// than its row, rows are not missing before all was read.
func (r *Recovery) compare(ctx context.Context) (f *Found, err error) {
	for {
		if f, err = r.compareOnce(ctx); err != nil {
			return nil, err
		}
		if f.Missing.Rows == 0 || f.Early == 0 {
			r.Operator.Compared(f)
			return f, nil
		}
		r.Operator.Say("reading Kafka from its beginning, because created_at is not when the rows were written")
		r.readsAll = true
	}
}

func (r *Recovery) compareOnce(ctx context.Context) (*Found, error) {
	f := &Found{Missing: newRowset(), Unjudged: newRowset(), LaterTopics: map[string]bool{}}
	snapshot, done, err := r.Server.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	id := r.state.identity
	if base := r.state.base(); base != nil && base.ConfirmedFlush > 0 {
		// Just before the slot's position: after each event that the slot has confirmed, and before each one that the
		// stream will send.
		f.next = checkpoint.Position{SystemID: id.SystemID, CommitLSN: base.ConfirmedFlush - 1}
		f.next.Timeline = id.TimelineOf(f.next.CommitLSN)
	}
	job := r.Audit()
	job.Lineage, job.Database, job.Predecessors = id, r.Server.Database(), r.state.old.Predecessors(id.SystemID)
	job.Range, job.Count = r.Rows, f.next.CommitLSN
	job.Progress, job.Note = r.Operator.Progress, func(s string) { r.Operator.Say("note: %s", s) }
	if s := r.state; s.old != nil && (r.beside() || !s.adopts()) {
		job.Acked, _ = s.old.AckedFor(s.sources)
		job.Acked = job.Acked.On(id)
	}
	job.Release, job.WALEnd = done, r.Server.WALEnd
	job.Wait = waitForDaemon
	job.NotBefore = r.fence()
	job.Report, job.OnlyMissing, job.Whole = func(audit.Finding) error { return nil }, true, r.readsAll
	job.SendsUndecided = r.Unjudged != LeaveUnjudged
	job.Later = func(topic, key string, certain, missing bool) error {
		if missing {
			f.LaterTopics[topic] = true
		}
		if !certain {
			return nil
		}
		f.LaterKeys++
		return r.Operator.Later(f.LaterKeys, topic, key)
	}
	job.Lost = func(row *audit.Row) error {
		if !r.decided.Has(rowEvent(row)) {
			f.Missing.add(row, "")
		}
		return nil
	}
	job.Undecided = func(row *audit.Row, why string) error {
		if !r.decided.Has(rowEvent(row)) {
			f.Unjudged.add(row, why)
		}
		return nil
	}
	if f.Result, err = job.Run(ctx, snapshot, slotReader{r}, r.Kafka, ""); err != nil {
		return nil, err
	}
	f.next.Ordinal = f.Ordinals
	return f, nil
}

// slotReader reads the slot that the comparison rests on, as it is now.
type slotReader struct{ r *Recovery }

func (s slotReader) Read(ctx context.Context) (*replication.Slot, error) {
	now := state{}
	var err error
	if now.daemon, now.recovery, err = s.r.Server.Slots(ctx); err != nil {
		return nil, err
	}
	return now.base(), nil
}

func (s slotReader) Waiting(ctx context.Context, upTo pglogrepl.LSN, fn func(*router.Record) error) error {
	return s.r.Server.Waiting(ctx, !s.r.state.usable(), upTo, fn)
}

// selectRows returns the rows to send, which may be none. nil: the operator has said no, or has not said what becomes
// of the rows that are not judged. They can be older than missing rows of their keys: if these were sent first, a
// later run could not restore the order.
func (r *Recovery) selectRows(ctx context.Context, f *Found) (*Set, error) {
	chosen := &Set{}
	if f.Missing.Rows > 0 {
		if err := r.checkCompacted(ctx, maps.Keys(f.LaterTopics)); err != nil {
			return nil, err
		}
		ok, err := r.Operator.Ask(ctx, fmt.Sprintf("send %s?", human.Count(f.Missing.Rows, "row", "rows")))
		if err != nil || !ok {
			return nil, err
		}
		chosen.AddAll(&f.Missing.set)
	}
	if f.Unjudged.Rows == 0 {
		return chosen, nil
	}
	if r.Unjudged == AskUnjudged {
		if err := r.decideUnjudged(ctx, f); err != nil {
			return nil, err
		}
	}
	if r.undecided(f) {
		return nil, nil
	}
	if r.Unjudged == SendUnjudged {
		if err := r.checkCompacted(ctx, maps.Keys(f.Unjudged.Topics)); err != nil {
			return nil, err
		}
		chosen.AddAll(&f.Unjudged.set)
	}
	return chosen, nil
}

// undecided reports whether it is open what becomes of rows that are not judged.
func (r *Recovery) undecided(f *Found) bool { return f.Unjudged.Rows > 0 && r.Unjudged == AskUnjudged }

// decideUnjudged asks what happens to the rows that cannot be judged.
func (r *Recovery) decideUnjudged(ctx context.Context, f *Found) error {
	rows := human.Count(f.Unjudged.Rows, "row", "rows")
	ok, err := r.Operator.Decide(ctx, "send the "+rows+" that cannot be judged as well?")
	if err == nil && ok {
		r.Unjudged = SendUnjudged
		return nil
	}
	if err == nil {
		ok, err = r.Operator.Decide(ctx, "leave the "+rows+" for good, because they are delivered or not needed?")
	}
	if err == nil && ok {
		r.Unjudged = LeaveUnjudged
	}
	return err
}

// checkCompacted refuses to send rows of whose keys Kafka has, or may have, later events to a compacted topic: the
// older event would become the state of the key, and compaction would delete the later one.
func (r *Recovery) checkCompacted(ctx context.Context, topics iter.Seq[string]) error {
	if r.Compacted {
		return nil
	}
	return refuseCompacted(ctx, r.Kafka, slices.Sorted(topics))
}

// refuseCompacted returns an error if a topic is compacted, or is not known not to be.
func refuseCompacted(ctx context.Context, log audit.Log, topics []string) error {
	retention, err := log.Retention(ctx, topics)
	if err != nil {
		return err
	}
	for _, t := range topics {
		if of, known := retention[t]; !known || of.Compact {
			return exit.With(exit.Fault, errors.New(CompactedProblem(t, known)))
		}
	}
	return nil
}

// CompactedProblem says why an older event is not sent to a topic unasked. known is whether the settings of the topic
// could be read, and say that Kafka compacts it.
func CompactedProblem(topic string, known bool) string {
	why := "is compacted"
	if !known {
		why = "may be compacted, because its configuration cannot be read (DescribeConfigs is not allowed)"
	}
	return fmt.Sprintf("topic %s %s: an older event would become the state of its key, and Kafka would delete the later one; "+
		"if that is wanted, give --compacted", topic, why)
}

// sendAll sends the chosen rows and compares again. If Kafka refuses a batch, what is missing then is sent again, its
// records one by one: each of them is poison, or not.
func (r *Recovery) sendAll(ctx context.Context, chosen *Set, f *Found) (*Found, error) {
	for {
		err := r.send(ctx, chosen, f.next)
		refused := sender.IsRefusal(err)
		if err != nil && !refused {
			return nil, err
		}
		if refused {
			r.Operator.Say("%v: sending them one by one", err)
			r.began = time.Now() // what the session has sent may still arrive
		}
		if f, err = r.compare(ctx); err != nil {
			return nil, fmt.Errorf("%s sent; compare once more: %w", human.Count(int(r.sent.Records), "record was", "records were"), err)
		}
		if chosen = r.wanted(f); !refused || chosen.Len() == 0 || r.undecided(f) {
			return f, nil
		}
	}
}

// wanted returns the rows that the operator has said to send.
func (r *Recovery) wanted(f *Found) *Set {
	if r.Unjudged == SendUnjudged {
		f.Missing.set.AddAll(&f.Unjudged.set)
	}
	return &f.Missing.set
}

// send sends the chosen rows.
func (r *Recovery) send(ctx context.Context, chosen *Set, next checkpoint.Position) error {
	if r.held == nil { // what this run holds, it knows
		var err error
		if r.held, err = heldKeys(ctx, r.Held); err != nil {
			return err
		}
	}
	to := r.Open()
	defer to.Close()
	if !r.PositionHeader {
		next = checkpoint.Position{}
	}
	job := &Job{
		Held: r.held, Router: r.Router, Poison: r.Poison, Wants: chosen.Has, Mark: router.Header{Name: audit.HeaderRecovered, Value: []byte(r.Run)},
		Position: next, Origin: r.origin(next), Total: int64(chosen.Len()), Progress: r.Operator.Progress, Poisoned: r.Operator.Poisoned,
		SkippedRow: r.decided.Add,
	}
	for i := range r.Tables {
		job.Tables = append(job.Tables, Table{Number: i, Range: r.Rows})
	}
	// That of the comparison has ended. Of the chosen rows, those that were deleted since are not sent.
	snapshot, done, err := r.Server.Snapshot(ctx)
	if err != nil {
		return err
	}
	defer done()
	sent, err := job.Run(ctx, snapshot, to)
	if err != nil {
		to.Close()
		sent.Records = to.Acked() // final after Close
	}
	r.sent.add(sent)
	if err != nil {
		return err
	}
	if r.deleted = int64(chosen.Len()) - job.Handled; r.deleted > 0 {
		r.Operator.Say("%s deleted or changed since the comparison", human.Count(int(r.deleted), "row was", "rows were"))
	}
	r.Operator.Say("%s sent, run %s%s", human.Count(int(r.sent.Records), "record", "records"), r.Run, r.sent.besides(r.Poison.Topic))
	return nil
}

// origin is that of the records: of the next session, if that begins with a record of this run, so that they come
// after all earlier events.
func (r *Recovery) origin(next checkpoint.Position) checkpoint.Origin {
	s := r.state
	o := checkpoint.Origin{Database: r.Server.Database(), Slot: r.Slot}
	switch {
	case r.Positions == nil:
	case s.adopts() && !r.beside(): // no daemon starts before a run that begins this epoch, or a later one
		o.Epoch = s.adoption(r.Slot, 0, r.began).Epoch
	case s.old != nil:
		o.Epoch = s.old.EpochOf(next.CommitLSN)
	}
	return o
}

// besides says what became of rows that were not sent as they are.
func (s Sent) besides(deadTopic string) string {
	var text string
	if n := s.DeadLettered; n > 0 {
		text += fmt.Sprintf(", %d of them to %s", n, deadTopic)
	}
	if n := s.Skipped; n > 0 {
		text += fmt.Sprintf("; %s skipped by policy", human.Count(int(n), "row was", "rows were"))
	}
	return text
}
