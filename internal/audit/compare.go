// Package audit compares outbox tables with Kafka: which events are missing, which records have no row, which are there twice, or in the
// wrong order.
//
// compare.go joins rows and records, which may be more than memory holds: both go to files on disk (spill.go), and one file at a time is
// read back. run.go reads the table, the slot and Kafka in the order that makes the answer exact.
package audit

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// Kind says what is wrong.
type Kind string

// The kinds of findings.
const (
	Missing   Kind = "missing"   // a committed row has no record, and nothing explains it
	Phantom   Kind = "phantom"   // a record has no row
	Differs   Kind = "differs"   // a record is not what the row is routed to now
	Duplicate Kind = "duplicate" // records of one event that are not alike
	Inversion Kind = "inversion" // a record comes after a later one of its key
)

// Kinds are all of them, in the order in which a report has them.
var Kinds = []Kind{Missing, Phantom, Differs, Duplicate, Inversion}

// Finding is one thing that is wrong.
type Finding struct {
	Kind    Kind       `json:"kind"`
	ID      string     `json:"id"`
	Table   string     `json:"table,omitempty"` // of the row; "": there is none
	Topic   string     `json:"topic"`
	Key     string     `json:"key"`
	Created *time.Time `json:"created_at,omitempty"`
	Why     string     `json:"why"`
	Places  []string   `json:"records,omitempty"` // topic/partition/offset
}

// Counts is the result in numbers.
type Counts struct {
	Rows      int64 `json:"rows"`
	Records   int64 `json:"records"`
	Delivered int64 `json:"delivered"`
	// Rows without a record, and why.
	Waiting      int64 `json:"waiting_in_slot"`
	DeadLettered int64 `json:"dead_lettered"`
	Skipped      int64 `json:"skipped_by_policy"`
	Unjudged     int64 `json:"older_than_retention"`
	// Records without a row in the range that are no findings.
	Newer   int64 `json:"newer_than_the_snapshot"`
	Outside int64 `json:"outside_the_range"`
	Foreign int64 `json:"of_other_servers"`
	// Repeated are further records of events that have one, each like the first.
	Repeated int64          `json:"identical_duplicates"`
	Resent   int64          `json:"sent_by_a_person"`
	Findings map[Kind]int64 `json:"findings"`
}

// Clean reports whether nothing was found.
func (c *Counts) Clean() bool {
	for _, n := range c.Findings {
		if n > 0 {
			return false
		}
	}
	return true
}

// Comparison joins rows with records. Its methods are for one goroutine.
type Comparison struct {
	limit  int64 // of a bucket, in bytes
	seed   maphash.Seed
	byID   *spill
	byKey  *spill // records of the stream, for their order
	later  *later // nil: keys with later events are not looked for
	topics []string
	index  map[string]uint64
	buf    []byte
	counts Counts

	suspects []*group // records without a row
}

// memoryFactor is how many bytes of memory one byte of a bucket takes while it is joined.
const memoryFactor = 6

// New creates a comparison, which keeps what it is given in files in dir ("": the system's temporary directory). memory bounds what a
// part of them may take while it is joined.
func New(dir string, memory int64) (*Comparison, error) {
	c := &Comparison{limit: memory / memoryFactor, seed: maphash.MakeSeed(), index: map[string]uint64{}}
	c.counts.Findings = map[Kind]int64{}
	var err error
	if c.byID, err = newSpill(dir); err != nil {
		return nil, err
	}
	if c.byKey, err = newSpill(dir); err != nil {
		return nil, errors.Join(err, c.byID.close())
	}
	return c, nil
}

// FindLater has Run also find the keys of missing rows for which Kafka has later events. It is called first.
func (c *Comparison) FindLater(dir string) error {
	s, err := newSpill(dir)
	if err != nil {
		return err
	}
	c.later = &later{s}
	return nil
}

// Close removes the files.
func (c *Comparison) Close() error {
	err := errors.Join(c.byID.close(), c.byKey.close())
	if c.later != nil {
		err = errors.Join(err, c.later.byKey.close())
	}
	return err
}

// topic is a number for a topic's name.
func (c *Comparison) topic(name string) uint64 {
	n, ok := c.index[name]
	if !ok {
		n = uint64(len(c.topics))
		c.index[name], c.topics = n, append(c.topics, name)
	}
	return n
}

// Hash is the hash of an id. Two ids may have the same.
func (c *Comparison) Hash(id []byte) uint64 { return maphash.Bytes(c.seed, id) }

// AddRow adds an event of a table.
func (c *Comparison) AddRow(r *Row) error {
	if !r.Outside {
		c.counts.Rows++
	}
	c.buf = c.encodeRow(c.buf[:0], r)
	return c.byID.add(c.Hash(r.ID), c.buf)
}

// AddWaiting adds the topic and the id of an event that waits in the slot.
func (c *Comparison) AddWaiting(topic string, id []byte) error {
	c.buf = binary.AppendUvarint(appendBytes(append(c.buf[:0], entryWaiting), id), c.topic(topic))
	return c.byID.add(c.Hash(id), c.buf)
}

// AddRecord adds a record. Those of one partition come in the order of their offsets.
func (c *Comparison) AddRecord(r *Record) error {
	c.counts.Records++
	c.buf = c.encodeRecord(c.buf[:0], r)
	if err := c.byID.add(c.Hash(r.ID), c.buf); err != nil {
		return err
	}
	if r.Dead != "" || r.Resent || r.Position.IsZero() {
		return nil // no order is promised
	}
	return c.byKey.add(c.keyHash(r.Topic, r.Key), c.buf)
}

func (c *Comparison) keyHash(topic string, key []byte) uint64 {
	var h maphash.Hash
	h.SetSeed(c.seed)
	h.WriteString(topic) //nolint:errcheck // never fails
	h.WriteByte(0)       //nolint:errcheck // never fails
	h.Write(key)         //nolint:errcheck // never fails
	return h.Sum64()
}

// Judge says what a comparison cannot know from rows and records alone.
type Judge struct {
	// Tables are the names of the tables, by index.
	Tables []string
	// Deep also compares the content of records with what their rows are routed to.
	Deep bool
	// Since is the beginning of the range; zero: there is none.
	Since time.Time
	// Newer reports whether a record with that position may be younger than the rows.
	Newer func(checkpoint.Position) bool
	// Abandoned says why the server does not have the transaction of a position any more; "": it may have it.
	Abandoned func(checkpoint.Position) string
	// Ours reports whether a position is of the server that the rows were read from.
	Ours func(checkpoint.Position) bool
	// Deleted reports whether Kafka may have deleted the record of a row, because of the topic's retention.
	Deleted func(*Row) bool
	// Exist returns those of the ids that rows outside the range have.
	Exist func(ids []string) (map[string]bool, error)
	// ExistNow returns those of the ids that rows have that became visible after the snapshot.
	ExistNow func(ids []string) (map[string]bool, error)
	// Lost is called for each row that is missing; nil: it is not.
	Lost func(*Row) error
	// Later is called for each key that FindLater is about.
	Later func(topic, key string) error
	// Report is called for each finding.
	Report func(Finding) error
}

// Run joins what was added and reports what is wrong. It is called once.
func (c *Comparison) Run(j *Judge) (Counts, error) {
	for b := range buckets {
		if err := c.joinIDs(b, j); err != nil {
			return c.counts, err
		}
	}
	if err := c.judgeSuspects(j); err != nil {
		return c.counts, err
	}
	for b := range buckets {
		if err := c.checkOrder(b, j); err != nil {
			return c.counts, err
		}
	}
	if c.later != nil {
		if err := c.later.run(c.limit, c.topics, j.Later); err != nil {
			return c.counts, err
		}
	}
	return c.counts, nil
}

// noteLater notes an event for FindLater. Without a time there is no order to speak of.
func (c *Comparison) noteLater(what byte, topic string, key []byte, at time.Time) error {
	if c.later == nil || at.IsZero() {
		return nil
	}
	return c.later.add(c.keyHash(topic, key), what, c.topic(topic), key, at)
}

// group is everything about one id.
type group struct {
	rows    []Row
	records []Record
	dead    []Record
	waiting []string // topics of events that wait in the slot
	outside bool     // a row outside the range has the id
}

// split makes a group of each row if the rows go to different topics: events of tables that do not share a topic may have the same ids
// (route.id). Otherwise it returns g.
func (g *group) split() []*group {
	if len(g.rows) < 2 {
		return []*group{g}
	}
	byTopic := map[string]*group{}
	all := make([]*group, len(g.rows))
	for i, row := range g.rows {
		if byTopic[row.Topic] != nil {
			return []*group{g}
		}
		all[i] = &group{rows: g.rows[i : i+1]}
		byTopic[row.Topic] = all[i]
	}
	for _, r := range g.records {
		of := byTopic[r.Topic]
		if of == nil { // which row it is of cannot be known
			return []*group{g}
		}
		of.records = append(of.records, r)
	}
	for _, topic := range g.waiting {
		of := byTopic[topic]
		if of == nil {
			return []*group{g}
		}
		of.waiting = append(of.waiting, topic)
	}
	for _, r := range g.dead {
		for _, of := range all {
			if bytes.Equal(r.Key, of.rows[0].Key) {
				of.dead = append(of.dead, r)
			}
		}
	}
	return all
}

// withoutForeign removes records of other servers whose key is not that of the row: ids can be unique on one server only. The key of an
// event is the same after an upgrade that changes the server's system identifier. It reports whether there were such records.
func (g *group) withoutForeign(j *Judge) (found bool) {
	key, n := g.rows[0].Key, len(g.records)
	g.records = slices.DeleteFunc(g.records, func(r Record) bool {
		return !r.Position.IsZero() && !j.Ours(r.Position) && !bytes.Equal(r.Key, key)
	})
	g.dead = slices.DeleteFunc(g.dead, func(r Record) bool {
		return !r.Position.IsZero() && !j.Ours(r.Position) && !bytes.Equal(r.Key, key)
	})
	return len(g.records) < n
}

func (c *Comparison) joinIDs(b int, j *Judge) error {
	entries, err := c.byID.read(b, c.limit)
	if err != nil {
		return err
	}
	groups := map[string]*group{}
	var order []string
	for _, e := range entries {
		r := &reader{b: e[1:]}
		id := r.bytes()
		g := groups[string(id)]
		if g == nil {
			g = &group{}
			groups[string(id)] = g
			order = append(order, string(id))
		}
		switch e[0] {
		case entryRow:
			if row := c.decodeRow(r, id); row.Outside {
				g.outside = true
			} else {
				g.rows = append(g.rows, row)
			}
		case entryRecord:
			rec := c.decodeRecord(r, id)
			if rec.Dead != "" {
				g.dead = append(g.dead, rec)
			} else {
				g.records = append(g.records, rec)
			}
		case entryWaiting:
			g.waiting = append(g.waiting, c.topicName(r))
		}
		if r.bad {
			return errDamaged
		}
	}
	var orphans []*group
	for _, id := range order {
		g := groups[id]
		if len(g.rows) == 0 {
			if len(g.records) == 0 {
				continue
			}
			r := &g.records[0]
			if err := c.noteLater(laterDelivered, r.Topic, r.Key, r.Time); err != nil {
				return err
			}
			if g.outside {
				c.counts.Outside++
			} else {
				orphans = append(orphans, g)
			}
			continue
		}
		for _, one := range g.split() {
			if err := c.judge(one, j); err != nil {
				return err
			}
		}
	}
	return c.judgeOrphans(orphans, j)
}

// judge says what became of an event that has a row.
func (c *Comparison) judge(g *group, j *Judge) error {
	row := &g.rows[0]
	if len(g.rows) > 1 {
		if err := c.report(j, c.finding(Duplicate, row, g.records, j, "%d rows have this id, so that consumers take them for one event", len(g.rows))); err != nil {
			return err
		}
	}
	foreign := g.withoutForeign(j)
	if len(g.records) == 0 {
		return c.judgeMissing(g, row, foreign, j)
	}
	c.counts.Delivered++
	if err := c.noteLater(laterDelivered, row.Topic, row.Key, row.Created); err != nil {
		return err
	}
	if err := c.judgeCopies(g, row, j); err != nil {
		return err
	}
	if !j.Deep || row.Poison != "" {
		return nil
	}
	for i := range g.records {
		if r := &g.records[i]; r.Content != row.Content && !r.Resent {
			why := "key, value or headers are not what the row is routed to now"
			if r.Topic != row.Topic {
				why = fmt.Sprintf("the record is in topic %s, and the row is routed to %s now", r.Topic, row.Topic)
			}
			return c.report(j, c.finding(Differs, row, g.records[i:i+1], j, "%s", why))
		}
	}
	return nil
}

// judgeMissing explains why an event has no record, or reports it.
func (c *Comparison) judgeMissing(g *group, row *Row, foreign bool, j *Judge) error {
	why := "no record has this id"
	if foreign {
		why = "only records of another server have this id, with another key"
	}
	switch {
	case len(g.waiting) > 0:
		c.counts.Waiting++
		return nil
	case len(g.dead) > 0:
		c.counts.DeadLettered++
		return nil
	case row.Skipped:
		c.counts.Skipped++
		return nil
	case row.Poison == "" && j.Deleted(row):
		c.counts.Unjudged++
		return nil
	case row.Poison != "":
		why = "poison, " + row.Poison + ", and no dead letter has this id"
	}
	if j.Lost != nil {
		if err := j.Lost(row); err != nil {
			return err
		}
	}
	if err := c.noteLater(laterMissing, row.Topic, row.Key, row.Created); err != nil {
		return err
	}
	return c.report(j, c.finding(Missing, row, nil, j, "%s", why))
}

// judgeCopies counts further records of an event.
func (c *Comparison) judgeCopies(g *group, row *Row, j *Judge) error {
	var first *Record
	for i := range g.records {
		r := &g.records[i]
		switch {
		case r.Resent:
			c.counts.Resent++
		case first == nil:
			first = r
		case r.Content == first.Content:
			c.counts.Repeated++
		default:
			c.counts.Findings[Duplicate]++
			return j.Report(c.finding(Duplicate, row, g.records, j, "its records differ in topic, key, value or headers"))
		}
	}
	return nil
}

// judgeOrphans sorts out records whose events have no row in the range. The rest are suspects.
func (c *Comparison) judgeOrphans(orphans []*group, j *Judge) error {
	var suspects []*group
	for _, g := range orphans {
		r := &g.records[0]
		known := !r.Position.IsZero()
		switch {
		case known && !j.Ours(r.Position):
			c.counts.Foreign++
		case r.Time.Before(j.Since): // its row is older than the range, and may have been deleted
			c.counts.Outside++
		case known && j.Abandoned(r.Position) == "" && j.Newer(r.Position):
			c.counts.Newer++
		default:
			suspects = append(suspects, g)
		}
	}
	c.suspects = append(c.suspects, suspects...)
	return nil
}

// judgeSuspects reports records whose events have no row.
func (c *Comparison) judgeSuspects(j *Judge) error {
	suspects, err := c.drop(c.suspects, j.Exist, &c.counts.Outside)
	if err != nil {
		return err
	}
	if suspects, err = c.drop(suspects, j.ExistNow, &c.counts.Newer); err != nil {
		return err
	}
	for _, g := range suspects {
		r := &g.records[0]
		why := "the table has no row with this id: it was deleted, or never committed"
		if lost := j.Abandoned(r.Position); !r.Position.IsZero() && lost != "" {
			why = lost
		}
		if err := c.report(j, c.finding(Phantom, &Row{ID: r.ID, Topic: r.Topic, Key: r.Key, Table: -1}, g.records, j, "%s", why)); err != nil {
			return err
		}
	}
	return nil
}

// drop counts, and removes, the suspects whose id exists somewhere.
func (c *Comparison) drop(suspects []*group, exist func([]string) (map[string]bool, error), count *int64) (left []*group, err error) {
	for part := range slices.Chunk(suspects, 10_000) {
		ids := make([]string, len(part))
		for i, g := range part {
			ids[i] = string(g.records[0].ID)
		}
		found, err := exist(ids)
		if err != nil {
			return nil, err
		}
		for _, g := range part {
			if found[string(g.records[0].ID)] {
				*count++
			} else {
				left = append(left, g)
			}
		}
	}
	return left, nil
}

func (c *Comparison) report(j *Judge, f Finding) error {
	c.counts.Findings[f.Kind]++
	return j.Report(f)
}

func (c *Comparison) finding(kind Kind, row *Row, records []Record, j *Judge, why string, args ...any) Finding {
	f := Finding{Kind: kind, ID: string(row.ID), Topic: row.Topic, Key: string(row.Key), Why: fmt.Sprintf(why, args...)}
	if row.Table >= 0 {
		f.Table = j.Tables[row.Table]
	}
	if !row.Created.IsZero() {
		f.Created = &row.Created
	}
	for i := range records {
		r := &records[i]
		f.Places = append(f.Places, fmt.Sprintf("%s/%d/%d", r.Topic, r.Partition, r.Offset))
	}
	return f
}
