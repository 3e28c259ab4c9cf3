package audit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/internal/outboxtable"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/kafka"
)

// A model of what an audit reads: a table whose ids are used again, a topic with the records of two databases and of
// a lost history, of which Kafka deletes some by retention, compaction and DeleteRecords, and a slot. Checks:
//
//   - what is reported as missing was never sent, and does not wait; with what is not judged, it is everything that
//     was never sent
//   - after what is missing was sent, nothing is missing any more, and everything that was never sent is not judged
//   - an audit is clean only if no row is missing that Kafka should have

const (
	modelDatabase  = 16
	modelRetention = 10 * time.Hour
	modelTombstone = 4 * time.Hour
	modelParts     = 3
)

// modelRecord is a record in the log.
type modelRecord struct {
	kafka.Record
	gone bool
}

// modelEvent is a row, and what became of it.
type modelEvent struct {
	id, key, value string // id "": it has none
	created        time.Time
	sent, waits    bool
}

// model is a Snapshot, a Slot and a Log.
type model struct {
	*rand.Rand
	t      *testing.T
	now    time.Time
	events []modelEvent
	logs   [modelParts][]modelRecord
	first  [modelParts]int64
	set    kafka.Retention
	known  bool
	part   kafka.Partitioner
	lsn    pglogrepl.LSN
	// twins is whether rows are alike, nameless whether some have no id.
	twins, nameless bool
	// shrinks are partitions of which Kafka deletes all records before they are read.
	shrinks int
}

const lostLSN = 1 << 30

// newModel makes a random history of a day.
func newModel(t *testing.T, r *rand.Rand) *model {
	m := &model{Rand: r, t: t, now: time.Now(), part: kafka.NewPartitioner(), known: r.IntN(5) > 0, lsn: 100, shrinks: -1, twins: r.IntN(3) == 0, nameless: r.IntN(8) == 0}
	m.set = kafka.Retention{Delete: true, Time: modelRetention, Bytes: -1, Tombstones: modelTombstone, MaxMessage: 1000}
	switch r.IntN(6) {
	case 0:
		m.set.Bytes = 1
	case 1:
		m.set.Delete, m.set.Compact = false, true
	case 2:
		m.set.Compact = true
	}
	n := 5 + r.IntN(60)
	for i := range n {
		m.step(m.now.Add(-24*time.Hour + time.Duration(i)*24*time.Hour/time.Duration(n)))
	}
	for range r.IntN(3) {
		m.clean()
	}
	if r.IntN(5) == 0 { // the slot was lost with the newest rows, or has them still
		waits := r.IntN(2) == 0
		for range r.IntN(4) {
			m.events = append(m.events, m.event(m.now.Add(-time.Duration(r.IntN(5000))*time.Second)))
			m.events[len(m.events)-1].waits = waits
		}
	}
	if r.IntN(8) == 0 && m.set.Delete {
		m.shrinks = r.IntN(modelParts)
	}
	return m
}

// event makes an event. Each has a value of its own. There are few keys, and few ids, which are unique among the rows
// at one time only.
func (m *model) event(at time.Time) modelEvent {
	for {
		id := strconv.Itoa(m.IntN(200))
		if !slices.ContainsFunc(m.events, func(e modelEvent) bool { return e.id == id }) {
			m.lsn++
			return modelEvent{id: id, key: fmt.Sprint("k", m.IntN(6)), value: fmt.Sprint("v", m.lsn), created: at}
		}
	}
}

// step is something that happens at a time.
func (m *model) step(at time.Time) {
	skew := time.Duration(m.IntN(300)-150) * time.Second // of the clocks
	switch kind := m.IntN(14); {
	case kind == 0: // never delivered
		m.events = append(m.events, m.event(at))
	case kind == 1: // delivered, and lost by a failover
		e := m.event(at)
		m.put(e, at.Add(skew), m.position(lostLSN, modelDatabase))
	case kind == 2: // another database has the id
		e := m.event(at)
		e.value = "theirs"
		m.put(e, at.Add(skew), m.position(m.lsn, modelDatabase+1))
	case kind == 3: // another producer has the id
		e := m.event(at)
		m.put(e, at.Add(skew), "")
	case kind == 4: // delivered, and the row was deleted since, so that the id is used again
		e := m.event(at)
		m.put(e, at.Add(skew), m.position(m.lsn, modelDatabase))
	case kind == 6 && m.twins: // a row like another one: with its id, its key and its value
		if len(m.events) == 0 {
			return
		}
		e := m.events[m.IntN(len(m.events))]
		m.lsn++
		if e.created, e.waits, e.sent = at, false, e.id != "" && m.IntN(2) == 0; e.sent {
			m.put(e, at.Add(skew), m.position(m.lsn, modelDatabase))
		}
		m.events = append(m.events, e)
	case kind == 7 && m.nameless: // a row without an id, which nothing is sent of
		e := m.event(at)
		e.id = ""
		m.events = append(m.events, e)
	case kind == 5: // a tombstone of another producer, without an id
		e := m.event(at)
		e.id, e.value = "", ""
		m.put(e, at.Add(skew), "")
	default:
		e := m.event(at)
		e.sent = true
		header := m.position(m.lsn, modelDatabase)
		if m.IntN(4) == 0 { // by an earlier version
			header = m.position(m.lsn, 0)
		}
		m.put(e, at.Add(skew+time.Duration(m.IntN(1000))*time.Second), header)
		if m.IntN(10) == 0 {
			m.put(e, at.Add(skew+time.Hour), header)
		}
		m.events = append(m.events, e)
	}
	if m.IntN(15) == 0 {
		m.clean()
	}
}

func (m *model) position(lsn pglogrepl.LSN, database uint32) string {
	p := checkpoint.Position{SystemID: system, Timeline: 1, CommitLSN: lsn}
	if database == 0 {
		return checkpoint.FormatHeader(p, checkpoint.Origin{})
	}
	return checkpoint.FormatHeader(p, checkpoint.Origin{Database: database, Slot: "s"})
}

func (m *model) put(e modelEvent, at time.Time, position string) {
	n := m.part.Of([]byte(e.key), modelParts)
	rec := modelRecord{Record: kafka.Record{Offset: int64(len(m.logs[n])), Time: at.Truncate(time.Millisecond), Key: []byte(e.key), Value: []byte(e.value)}}
	if at.After(m.now) {
		rec.Time = m.now
	}
	if e.value == "" {
		rec.Value = nil
	}
	if e.id != "" {
		rec.Headers = append(rec.Headers, router.Header{Name: "id", Value: []byte(e.id)})
	}
	if position != "" {
		rec.Headers = append(rec.Headers, router.Header{Name: router.HeaderPosition, Value: []byte(position)})
	}
	m.logs[n] = append(m.logs[n], rec)
}

// clean is what Kafka does in the background, to a partition. What it deletes by age is older than the retention now.
func (m *model) clean() {
	n := m.IntN(modelParts)
	log := m.logs[n]
	if m.set.Delete {
		for int(m.first[n]) < len(log) && (log[m.first[n]].gone || log[m.first[n]].Time.Before(m.now.Add(-modelRetention)) || m.set.Bytes > 0 && m.IntN(3) > 0) {
			m.first[n]++
		}
	}
	if m.set.Compact {
		last := map[string]int{}
		for i := range log {
			last[string(log[i].Key)] = i
		}
		for i := range log {
			r := &log[i]
			r.gone = r.gone || last[string(r.Key)] != i || r.Value == nil && r.Time.Before(m.now.Add(-modelTombstone))
		}
	}
}

func (m *model) WALEnd() pglogrepl.LSN                      { return 1 << 20 }
func (m *model) Zoned(int) bool                             { return true }
func (m *model) Indexed(context.Context, int) (bool, error) { return true, nil }

func (m *model) Rows(_ context.Context, _ int, _ outboxtable.Range, fn func(*outboxtable.Row) error) error {
	for _, e := range m.events {
		row := outboxRow(e.id, e.key, e.value, e.created)
		if err := fn(&row); err != nil {
			return err
		}
	}
	return nil
}

func (m *model) Existing(_ context.Context, _ int, _ string, ids []string) (map[string]bool, error) {
	out := map[string]bool{}
	for _, id := range ids {
		out[id] = slices.ContainsFunc(m.events, func(e modelEvent) bool { return e.id == id })
	}
	return out, nil
}

func (m *model) Read(context.Context) (*replication.Slot, error) {
	return &replication.Slot{ConfirmedFlush: 1}, nil
}

func (m *model) Waiting(_ context.Context, _ pglogrepl.LSN, fn func(*router.Record) error) error {
	for _, e := range m.events {
		if !e.waits {
			continue
		}
		if err := fn(&router.Record{ID: []byte(e.id), Topic: "t", Key: []byte(e.key), Value: []byte(e.value)}); err != nil {
			return err
		}
	}
	return nil
}

func (m *model) Spans(_ context.Context, _ []string, since time.Time) (spans []kafka.Span, _ []string, _ error) {
	for n, log := range m.logs {
		s := kafka.Span{Topic: "t", Partition: int32(n), First: m.first[n], From: int64(len(log)), End: int64(len(log))}
		for i := range log {
			if r := &log[i]; !r.gone && r.Offset >= s.First {
				s.Oldest = cmpTime(s.Oldest, r.Time)
				if !r.Time.Before(since) {
					s.From = min(s.From, r.Offset)
				}
			}
		}
		if since.IsZero() {
			s.From = s.First
		}
		spans = append(spans, s)
	}
	return spans, nil, nil
}

func cmpTime(first, other time.Time) time.Time {
	if first.IsZero() {
		return other
	}
	return first
}

func (m *model) Retention(context.Context, []string) (map[string]kafka.Retention, error) {
	if !m.known {
		return nil, nil
	}
	return map[string]kafka.Retention{"t": m.set}, nil
}

func (m *model) TooLarge(*router.Record, int) bool { return false }

func (m *model) ReadSpan(_ context.Context, s *kafka.Span, fn func(*kafka.Record) error) error {
	if n := int(s.Partition); n == m.shrinks {
		s.Deleted, s.From, m.first[n] = s.End-s.From, s.End, s.End
	}
	for i := range m.logs[s.Partition] {
		r := &m.logs[s.Partition][i]
		if r.gone || r.Offset < s.From || r.Offset >= s.End {
			continue
		}
		if err := fn(&r.Record); err != nil {
			return err
		}
	}
	return nil
}

// like are the rows with one id, key and value.
type like struct {
	id, key string
	value   uint64
}

// modelRows are how many of them there are, and what became of them.
type modelRows struct {
	rows, there     int
	lost, undecided int  // as reported
	young           bool // Kafka should have the records of all that are not there
}

// judge audits the model, and returns what is wrong.
func (m *model) judge(onlyMissing bool) (counts [4]int, lost []like, wrong string) {
	a, _ := newOrder(m.t)
	all := map[like]*modelRows{}
	of := func(l like) *modelRows {
		if all[l] == nil {
			all[l] = &modelRows{young: true}
		}
		return all[l]
	}
	for _, e := range m.events {
		x := of(e.like(a.Router))
		if x.rows++; e.sent || e.waits {
			x.there++
		} else {
			x.young = x.young && e.created.After(m.now.Add(-modelRetention))
		}
	}
	a.Database, a.OnlyMissing, a.Topics, a.Release = modelDatabase, onlyMissing, []string{"t"}, func() {}
	a.WALEnd = func(context.Context) (pglogrepl.LSN, error) { return lostLSN, nil }
	a.Fresh = func(context.Context) (Snapshot, func(), error) { return m, func() {}, nil }
	a.Lineage.Timeline = 1
	a.Lost = func(r *Row) error { of(like{string(r.ID), string(r.Key), r.Value}).lost++; return nil }
	a.Undecided = func(r *Row, _ string) error { of(like{string(r.ID), string(r.Key), r.Value}).undecided++; return nil }
	res, err := a.Run(m.t.Context(), m, m, m, "")
	if err != nil {
		return counts, nil, err.Error()
	}
	for l, x := range all {
		missing := x.rows - x.there
		switch {
		case x.lost > missing:
			return counts, nil, fmt.Sprintf("of %d rows like %v %d were never sent, and %d are missing", x.rows, l, missing, x.lost)
		case x.lost+x.undecided < missing:
			return counts, nil, fmt.Sprintf("of %d rows like %v %d were never sent, %d are missing and %d not judged", x.rows, l, missing, x.lost, x.undecided)
		case missing > 0 && res.Clean() && (x.lost > 0 || !m.known || x.young && !m.set.Compact):
			return counts, nil, fmt.Sprintf("the audit is clean, and %d rows like %v are missing", missing, l)
		}
		if x.lost > 0 {
			lost = append(lost, l)
		}
		counts[0] += x.there
		counts[1] += x.lost
		counts[2] += missing - x.lost
	}
	if res.Clean() {
		counts[3]++
	}
	return counts, lost, ""
}

func (e *modelEvent) like(r *router.Router) like { return like{e.id, e.key, Hash(r, []byte(e.value))} }

// recover sends the rows that are missing, like the command, and returns what is wrong afterwards.
func (m *model) recover(missing []like) (wrong string) {
	a, _ := newOrder(m.t)
	for i := range m.events {
		if e := &m.events[i]; slices.Contains(missing, e.like(a.Router)) {
			m.lsn++
			e.sent = true
			m.put(*e, m.now, m.position(m.lsn, modelDatabase))
			log := m.logs[m.part.Of([]byte(e.key), modelParts)]
			log[len(log)-1].Headers = append(log[len(log)-1].Headers, router.Header{Name: HeaderRecovered, Value: []byte("run")})
		}
	}
	_, lost, wrong := m.judge(true)
	if len(lost) > 0 {
		return fmt.Sprintf("the missing rows were sent, and %v are missing", lost)
	}
	return wrong
}

// TestRandomHistories audits random histories. OUTBOXCDC_TEST_HISTORIES is their number, 1000 by default.
func TestRandomHistories(t *testing.T) {
	n := uint64(1000)
	if text := os.Getenv("OUTBOXCDC_TEST_HISTORIES"); text != "" {
		n, _ = strconv.ParseUint(text, 10, 64)
	}
	var sum [4]int
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(24 * time.Hour) // of the fake clock: no time passes
		for seed := range n {
			m := newModel(t, rand.New(rand.NewPCG(seed, 3)))
			counts, lost, wrong := m.judge(seed%2 == 0)
			if wrong == "" && len(lost) > 0 && seed%2 == 0 && m.shrinks < 0 { // an audit reads more than recover
				wrong = m.recover(lost)
			}
			if wrong != "" {
				t.Fatalf("seed %d: %s; settings %+v, known %v, first %v", seed, wrong, m.set, m.known, m.first)
			}
			for i := range sum {
				sum[i] += counts[i]
			}
		}
	})
	t.Logf("%d histories: %d rows were sent, %d missing ones found, %d missing ones not judged, %d audits clean", n, sum[0], sum[1], sum[2], sum[3])
	if n >= 1000 && min(sum[0], sum[1], sum[2], sum[3]) < 50 {
		t.Error("the histories are too much alike")
	}
}
