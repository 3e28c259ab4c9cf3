package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/decoder"
	"github.com/outboxcdc/outboxcdc/internal/outboxtable"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/kafka"
)

// The table and the logs, as a command reads them: snapshots of the rows, the slot, and the records of Kafka. A
// commit is in the WAL, and may be delivered, before its rows are visible. With synchronous_commit = off it is the
// other way round. The types here are those of the product, so that package audit reads the simulated servers as it
// reads real ones.

// simTable is what decides when rows are visible.
type simTable struct {
	standby  bool // commits wait for a synchronous standby before their rows are visible
	lazy     bool // some commits do not wait for the flush (synchronous_commit = off)
	restarts int  // a snapshot does not outlive one
	placed   bool // another client than the daemon has moved the slot
}

// sight is when the rows of a transaction are visible.
type sight struct {
	delay time.Duration // from the flush
	from  time.Time     // zero: not flushed yet
	early bool          // visible before the flush
	gone  bool          // the server has lost the transaction
}

// hide begins the commit of a transaction. w.mu is held.
func (pg *simPG) hide(tx *simTx) {
	w := pg.w
	if !w.audited {
		return
	}
	tx.early = pg.lazy && w.IntN(2) == 0
	switch draw := w.IntN(8); {
	case draw < 3: // at once
	case !pg.standby || draw < 5:
		tx.delay = w.upTo(20 * time.Millisecond)
	case draw < 7:
		tx.delay = w.upTo(3 * time.Second)
	default:
		tx.delay = w.upTo(time.Minute)
	}
	if tx.early {
		tx.delay = 0
		tx.from = time.Now()
	}
}

// show makes the rows of all transactions that are flushed now visible, each after its delay. w.mu is held.
func (pg *simPG) show() {
	for _, tx := range pg.wal[min(pg.flushed, len(pg.wal)):] {
		if tx.from.IsZero() {
			tx.from = time.Now().Add(tx.delay)
		}
	}
}

// restarted is when the server is up again: what it has recovered is visible. w.mu is held.
func (pg *simPG) restarted() {
	pg.restarts++
	for _, tx := range pg.wal {
		if tx.from.After(time.Now()) {
			tx.from = time.Now()
		}
	}
}

// isRow reports whether the server has the event's row, and isVisible whether a snapshot that is taken now has it.
func (e *event) isRow() bool { return e.tx != nil && !e.tx.gone }

func (e *event) isVisible() bool {
	return e.isRow() && !e.tx.from.IsZero() && !time.Now().Before(e.tx.from)
}

// slotHas reports whether the slot will stream the event, or the recovery slot if there is no other. w.mu is held.
func (pg *simPG) slotHas(e *event) bool {
	from := pg.confirmed
	if !pg.hasSlot() {
		from = pg.recovery
	}
	return from != 0 && e.isRow() && !e.tx.hidden && e.tx.commit >= from
}

func (pg *simPG) hasSlot() bool {
	kind := replication.KindOf(pg.openErr)
	return kind != replication.SlotMissing && kind != replication.SlotLost
}

// simReader is a command with connections to both servers.
type simReader struct {
	p        *process // for what its calls take
	restarts int      // of the server before it connected; -1: it has not connected
	// answers, if not nil, is called at the instant of an answer, with w.mu held.
	answers func(ends bool)
}

// ask is a question to the server. Without an error w.mu is held.
func (r *simReader) ask(ctx context.Context) error {
	w := r.p.w
	r.p.spend(ctx, readTable, 3*time.Millisecond)
	w.mu.Lock()
	hang := w.pg.hang
	if r.restarts < 0 && hang != nil {
		w.mu.Unlock()
		select {
		case <-hang:
		case <-ctx.Done():
		}
		r.p.spend(ctx, readTable, 3*time.Millisecond)
		w.mu.Lock()
	}
	if r.restarts < 0 {
		r.restarts = w.pg.restarts
	}
	if ctx.Err() != nil || r.p.isDead || w.pg.down || r.restarts != w.pg.restarts {
		w.mu.Unlock()
		return errors.Join(errGone, ctx.Err())
	}
	return nil
}

// SimSnapshot is the rows that were visible at one instant. It is an audit.Snapshot.
type SimSnapshot struct {
	r    *simReader
	end  pglogrepl.LSN
	rows []simRow
	has  map[string]bool

	isReleased bool
}

// simRow is a row of a snapshot.
type simRow struct {
	e       *event
	values  []decoder.Value
	created time.Time
}

// rowRelation is the table as a snapshot describes it.
var rowRelation = &decoder.Relation{Namespace: "public", Name: "outbox", Columns: []decoder.Column{
	{Name: "id", TypeOID: 25},
	{Name: "aggregate_type", TypeOID: 25},
	{Name: "aggregate_id", TypeOID: 25},
	{Name: "event_type", TypeOID: 25},
	{Name: "payload", TypeOID: 25},
	{Name: "headers", TypeOID: 3802},
	{Name: "created_at", TypeOID: 1184},
}}

// take takes a snapshot, and then reads the end of the WAL. taken, if not nil, is called in between, with w.mu held.
func (r *simReader) take(ctx context.Context, taken func(*SimSnapshot)) (*SimSnapshot, error) {
	if err := r.ask(ctx); err != nil {
		return nil, err
	}
	w := r.p.w
	s := &SimSnapshot{r: r, has: map[string]bool{}}
	for _, e := range w.pg.events {
		if !e.isVisible() {
			continue
		}
		text := func(s string) decoder.Value { return decoder.Value{Data: []byte(s)} }
		key := text(e.key)
		if e.poison == noKey {
			key = decoder.Value{Null: true}
		}
		s.rows = append(s.rows, simRow{e, []decoder.Value{
			text(strconv.Itoa(e.id)), text(e.topic()), key, text("e"), text(e.value), text("{}"), {Null: true},
		}, e.created})
		s.has[strconv.Itoa(e.id)] = true
		w.reached[auditEarly] = w.reached[auditEarly] || e.tx.commit >= w.pg.flushedEnd
	}
	if taken != nil {
		taken(s)
	}
	w.mu.Unlock()
	var err error
	s.end, err = r.WALEnd(ctx)
	return s, err
}

// WALEnd returns the end of the WAL.
func (r *simReader) WALEnd(ctx context.Context) (pglogrepl.LSN, error) {
	if err := r.ask(ctx); err != nil {
		return 0, err
	}
	defer r.p.w.mu.Unlock()
	return r.p.w.pg.end, nil
}

// WALEnd is a position after the commit of each row.
func (s *SimSnapshot) WALEnd() pglogrepl.LSN { return s.end }

// Release ends the snapshot.
func (s *SimSnapshot) Release() { s.isReleased = true }

// ask is simReader.ask; the snapshot must not be released.
func (s *SimSnapshot) ask(ctx context.Context) error {
	if s.isReleased {
		panic("a snapshot is read that was released")
	}
	return s.r.ask(ctx)
}

// Zoned and Indexed are about created_at.
func (s *SimSnapshot) Zoned(int) bool                             { return true }
func (s *SimSnapshot) Indexed(context.Context, int) (bool, error) { return true, nil }

// Rows calls fn with each row, in the order in which they were inserted.
func (s *SimSnapshot) Rows(ctx context.Context, _ int, _ outboxtable.Range, fn func(*outboxtable.Row) error) error {
	if err := s.ask(ctx); err != nil {
		return err
	}
	s.r.p.w.mu.Unlock()
	for i := range s.rows {
		row := &s.rows[i]
		if err := fn(&outboxtable.Row{Event: decoder.Event{Relation: rowRelation, Values: row.values, Begin: decoder.Begin{CommitTime: row.e.stamp}}, CreatedAt: row.created}); err != nil {
			return err
		}
	}
	return nil
}

// Existing returns which of the ids rows have.
func (s *SimSnapshot) Existing(ctx context.Context, _ int, _ string, ids []string) (map[string]bool, error) {
	if err := s.ask(ctx); err != nil {
		return nil, err
	}
	s.r.p.w.mu.Unlock()
	found := map[string]bool{}
	for _, id := range ids {
		if s.has[id] {
			found[id] = true
		}
	}
	return found, nil
}

func (r *simReader) answer(ends bool) {
	if r.answers != nil {
		r.answers(ends)
	}
}

// Read returns the slot; nil: there is none.
func (r *simReader) Read(ctx context.Context) (*replication.Slot, error) {
	if err := r.ask(ctx); err != nil {
		return nil, err
	}
	pg := r.p.w.pg
	defer pg.w.mu.Unlock()
	r.answer(false)
	slot := pg.slot()
	switch replication.KindOf(pg.openErr) {
	case replication.SlotMissing:
		return nil, nil
	case replication.SlotLost:
		slot.WALStatus = "lost"
	}
	return slot, nil
}

// Waiting reads a copy of the slot, when the WAL is flushed up to a position.
func (r *simReader) Waiting(ctx context.Context, upTo pglogrepl.LSN, fn func(*router.Record) error) error {
	return r.WaitingIn(ctx, false, upTo, fn)
}

// WaitingIn is Waiting of the slot, or of the recovery slot.
func (r *simReader) WaitingIn(ctx context.Context, recovery bool, upTo pglogrepl.LSN, fn func(*router.Record) error) error {
	pg := r.p.w.pg
	for {
		if err := r.ask(ctx); err != nil {
			return err
		}
		if pg.flushedEnd >= upTo {
			break
		}
		pg.w.mu.Unlock()
		r.p.spendAll(ctx, readTable, 50*time.Millisecond)
	}
	r.answer(false)
	var waiting []*event
	from, err := pg.confirmed, pg.openErr
	if recovery {
		if from, err = pg.recovery, nil; from == 0 {
			err = errGone
		}
	}
	if pg.filter {
		err = errors.Join(err, errGone)
	}
	for _, tx := range pg.wal[min(pg.firstAfter(from), pg.flushed):pg.flushed] {
		for _, row := range tx.rows {
			if row.ev != nil && !tx.hidden {
				waiting = append(waiting, row.ev)
			}
		}
	}
	pg.w.mu.Unlock()
	if err != nil {
		return fmt.Errorf("read what waits in the slot: %w", err)
	}
	for _, e := range waiting {
		rec := &router.Record{ID: []byte(strconv.Itoa(e.id)), Topic: e.topic(), Key: []byte(e.key), Value: []byte(e.value)}
		if e.poison == noKey {
			rec.Key = nil
		}
		if err := fn(rec); err != nil {
			return err
		}
	}
	return nil
}

// simRecords are the records that Kafka has, and how many of each event.
type simRecords struct {
	records map[simPartition][]*simRecord
	copies  map[*event]int
}

// simRecord is a record. Its offset is its place in the log.
type simRecord struct {
	kafka.Record
	e    *event
	kept bool // it was stored
	lost bool // Kafka has lost it
}

// copied returns a copy of a record for the logs that audits read.
func (w *world) copied(e *event, rec *router.Record) *simRecord {
	if !w.audited {
		return nil
	}
	r := &simRecord{e: e, Record: kafka.Record{Key: slices.Clone(rec.Key), Value: slices.Clone(rec.Value)}}
	for _, h := range rec.Headers {
		r.Headers = append(r.Headers, router.Header{Name: h.Name, Value: slices.Clone(h.Value)})
	}
	return r
}

// keep stores a record in the log that audits read, also one of a lost history. w.mu is held.
func (f *flight) keep() {
	if f.record != nil && !f.record.kept {
		if f.by.k.w.recovering {
			f.by.k.w.fail("%s delivers event %d, and a recovery has not finished", f.by.p, f.e.id)
		}
		if f.e.recovered {
			f.by.k.w.fail("%s sends event %d, which recover has sent", f.by.p, f.e.id)
		}
		f.by.k.put(f.partitionOf(), f.record)
	}
}

// put stores a record. w.mu is held.
func (k *simRecords) put(at simPartition, r *simRecord) {
	k.putStranger(at, r)
	k.copies[r.e]++
}

// Spans returns all partitions, from the first record since a time up to their ends of now.
func (r *simReader) Spans(ctx context.Context, topics []string, since time.Time) (spans []kafka.Span, missing []string, err error) {
	w := r.p.w
	r.p.spend(ctx, readRecords, 3*time.Millisecond)
	w.mu.Lock()
	defer w.mu.Unlock()
	k := w.kafka
	if err := errors.Join(ctx.Err(), k.openErr); err != nil {
		return nil, nil, err
	}
	r.answer(true)
	for topic, name := range simTopics {
		if !slices.Contains(topics, name) {
			continue
		}
		count := 1
		if topic < len(k.now.counts) {
			count = k.now.counts[topic]
		}
		for n := range count {
			log := k.records[simPartition{topic, n}]
			from := slices.IndexFunc(log, func(r *simRecord) bool { return !r.Time.Before(since) })
			if from < 0 {
				from = len(log)
			}
			spans = append(spans, kafka.Span{Topic: name, Partition: int32(n), From: int64(from), End: int64(len(log))})
		}
	}
	return spans, nil, nil
}

// Retention returns the settings of the topics.
func (r *simReader) Retention(_ context.Context, topics []string) (map[string]kafka.Retention, error) {
	out := map[string]kafka.Retention{}
	for _, topic := range topics {
		out[topic] = kafka.Retention{Delete: true, Time: 7 * 24 * time.Hour, Bytes: -1, Tombstones: 24 * time.Hour, MaxMessage: 1 << 20}
	}
	return out, nil
}

// TooLarge reports whether Kafka refuses the event.
func (r *simReader) TooLarge(rec *router.Record, _ int) bool {
	w := r.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	i, err := strconv.Atoi(string(rec.ID))
	return err == nil && i >= 0 && i < len(w.pg.events) && w.pg.events[i].poison == hopeless
}

// ReadSpan reads a partition. It takes no time, because several are read side by side.
func (r *simReader) ReadSpan(_ context.Context, s *kafka.Span, fn func(*kafka.Record) error) error {
	w := r.p.w
	w.mu.Lock()
	var records []kafka.Record
	for _, rec := range w.kafka.records[simPartition{slices.Index(simTopics[:], s.Topic), int(s.Partition)}][s.From:s.End] {
		if !rec.lost {
			records = append(records, rec.Record)
		}
	}
	w.mu.Unlock()
	for i := range records {
		if err := fn(&records[i]); err != nil {
			return err
		}
	}
	return nil
}

// SimTopics are the topics of the events.
func SimTopics() []string { return simTopics[:simLanes/2] }
