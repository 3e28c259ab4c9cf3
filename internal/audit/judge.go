package audit

import (
	"fmt"
	"slices"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// Judge says what a comparison cannot know from rows and records alone.
type Judge struct {
	// Tables are the names of the tables, by index.
	Tables []string
	// Deep also compares the content of records with what their rows are routed to.
	Deep bool
	// OnlyMissing leaves records without a row unjudged.
	OnlyMissing bool
	// Since is the beginning of the range; zero: there is none.
	Since time.Time
	// Kept is the time since which no row was removed; zero: none was removed.
	Kept time.Time
	// Slot is the name of the slot. A record without a row that another slot has delivered, by its header, is of the rows
	// of another daemon, or of an earlier one.
	Slot string
	// Origin says where a record comes from.
	Origin func(*Record) origin
	// Newer reports whether a record with that position may be younger than the rows.
	Newer func(checkpoint.Position) bool
	// Abandoned says why the server does not have the transaction of a position any more; "": it may have it.
	Abandoned func(checkpoint.Position) string
	// Refuse marks a row without a record as poison if Kafka does not take its record; nil: it takes all.
	Refuse func(*Row)
	// Early reports whether a record of a row is older than the row; nil: none is.
	Early func(*Row, *Record) bool
	// Deleted says why Kafka may have deleted the record of a row; "": it has not, except that compaction may have.
	Deleted func(*Row) string
	// Hides reports whether compaction may have deleted the record of a row, if a later record had its key. nil: it has
	// deleted nothing.
	Hides func(*Row) bool
	// Hidden says why compaction may have deleted the record of a row. newest is the time of the newest record with its
	// key in the topic; zero: there is none. young is as for Young.
	Hidden func(row *Row, newest time.Time) (why string, young bool)
	// Young reports whether Kafka should have the record of a row by the retention of its topic, or whether that is not
	// known.
	Young func(*Row) bool
	// Exist returns those of the ids that rows outside the range have.
	Exist func(ids []string) (map[string]bool, error)
	// ExistNow returns those of the ids that rows have that became visible after the snapshot.
	ExistNow func(ids []string) (map[string]bool, error)
	// Lost is called for each row that is missing, Undecided for each that is not judged, with the reason; nil: it is
	// not. The row is valid until the function returns.
	Lost      func(*Row) error
	Undecided func(row *Row, why string) error
	// Later is called for each key that FindLater is about. certain is whether Kafka has later events of it; otherwise
	// it may have. missing is whether they are later than a missing row; otherwise than one that is not judged.
	Later func(topic, key string, certain, missing bool) error
	// SendsUndecided is whether rows that are not judged may be sent, so that Later is about their keys as well.
	SendsUndecided bool
	// Report is called for each finding.
	Report func(Finding) error
}

// foreign reports whether a record is of another server, database or slot, also of a server that ours has replaced, or
// of a transaction of another producer.
func (j *Judge) foreign(r *Record) bool {
	from := j.Origin(r)
	return from.isForeign() || from == former || r.Origin.Slot != "" && r.Origin.Slot != j.Slot
}

// judge says what became of the events with one id.
func (c *Comparison) judge(g *group, j *Judge) error {
	g.judgeTwins()
	if err := c.reportSharedID(g, j); err != nil {
		return err
	}
	for i := range g.rows {
		if err := c.judgeRow(g, &g.rows[i], j); err != nil {
			return err
		}
	}
	if g.stray == nil {
		return nil
	}
	return c.judgeStray(g, j)
}

// reportSharedID reports rows of one topic that have the same id.
func (c *Comparison) reportSharedID(g *group, j *Judge) error {
	n := map[string]int{}
	if len(g.rows) > 1 && len(g.id) > 0 {
		for i := range g.rows {
			n[g.rows[i].row.Topic]++
		}
	}
	for i := range g.rows {
		row := &g.rows[i].row
		if n[row.Topic] < 2 {
			continue
		}
		if err := c.report(j, c.finding(Duplicate, row, g.places, j, "%d rows have this id, so that consumers take them for one event", n[row.Topic])); err != nil {
			return err
		}
		n[row.Topic] = 0
	}
	return nil
}

// judgeRow says what became of the event of a row.
func (c *Comparison) judgeRow(g *group, x *candidate, j *Judge) error {
	row := &x.row
	if x.is != same {
		return c.judgeMissing(g, x, j)
	}
	c.counts.Delivered++
	c.counts.Resent += x.resent
	c.counts.Repeated += x.repeated
	if x.early {
		c.counts.Early++
	}
	c.counts.add(row.Topic, 0)
	if err := c.noteLater(laterDelivered, row.Topic, row.Key, row.Created); err != nil {
		return err
	}
	if x.differing {
		if err := c.report(j, c.finding(Duplicate, row, g.places, j, "its records differ in topic, key, value or headers")); err != nil {
			return err
		}
	}
	return c.reportDiffering(x, j)
}

// reportDiffering reports a record that is not what its row is routed to now.
func (c *Comparison) reportDiffering(x *candidate, j *Judge) error {
	row, r := &x.row, x.differs
	if !j.Deep || r == nil || row.Poison != "" {
		return nil
	}
	why := "key, value or headers are not what the row is routed to now"
	if r.Topic != row.Topic {
		why = fmt.Sprintf("the record is in topic %s, and the row is routed to %s now", r.Topic, row.Topic)
	}
	return c.report(j, c.finding(Differs, row, []place{placeOf(r)}, j, "%s", why))
}

// judgeMissing explains why an event has no record, or reports it.
func (c *Comparison) judgeMissing(g *group, x *candidate, j *Judge) error {
	row := &x.row
	if row.Poison == "" && j.Refuse != nil {
		j.Refuse(row)
	}
	switch {
	case x.waits:
		c.counts.Waiting++
		return nil
	case x.dead && x.held:
		c.counts.Held++
		return nil
	case x.dead:
		c.counts.DeadLettered++
		return nil
	case row.Skipped:
		c.counts.Skipped++
		return nil
	case len(g.id) == 0:
		return c.undecided(row, j, "it has no id (NULL, or an empty text), and no dead letter has its key and value", j.Young(row))
	case x.is == unsure:
		if err := c.reportDiffering(x, j); err != nil {
			return err
		}
		return c.undecided(row, j, x.why, j.Young(row))
	}
	if why := j.Deleted(row); why != "" {
		return c.undecided(row, j, why, j.Young(row))
	}
	if row.Poison == "" && j.Hides != nil && j.Hides(row) {
		return c.noteHidden(row)
	}
	why := "no record has this id"
	switch {
	case row.Poison != "":
		why = "poison, " + row.Poison + ", and no dead letter has this id"
	case g.records:
		why = "the records with this id are of other events: their key and value differ, or the server has lost their transactions"
	}
	return c.missing(row, j, why)
}

// missing reports a row that is missing.
func (c *Comparison) missing(row *Row, j *Judge, why string) error {
	c.counts.add(row.Topic, 1)
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

// undecided counts a row that is not judged.
func (c *Comparison) undecided(row *Row, j *Judge, why string, young bool) error {
	c.counts.Unjudged++
	if j.SendsUndecided {
		if err := c.noteLater(laterUndecided, row.Topic, row.Key, row.Created); err != nil {
			return err
		}
	}
	if young {
		c.counts.Young++
	}
	k := undecidedKey{row.Table, row.Topic, why}
	u := c.undecidedRows[k]
	if u == nil {
		u = &Undecided{Table: j.Tables[row.Table], Topic: row.Topic, Why: why}
		c.undecidedRows[k] = u
	}
	u.Rows++
	if at := row.Created; !at.IsZero() {
		if u.First == nil || at.Before(*u.First) {
			u.First = &at
		}
		if u.Last == nil || at.After(*u.Last) {
			u.Last = &at
		}
	}
	if j.Undecided == nil {
		return nil
	}
	return j.Undecided(row, why)
}

// suspect is a record without a row.
type suspect struct {
	record *Record
	places []place
}

// judgeStray sorts out a record that is of no row of the range. The rest are suspects.
func (c *Comparison) judgeStray(g *group, j *Judge) error {
	r := g.stray
	known := !r.Position.IsZero()
	switch {
	case g.outside && len(g.rows) == 0 && j.Origin(r) != lost:
		c.counts.Outside++
	case j.OnlyMissing:
	case j.foreign(r):
		c.counts.Foreign++
	case r.Time.Before(j.Since): // its row is older than the range, and may have been deleted
		c.counts.Outside++
	case j.Origin(r) == lost:
		return c.phantom(&suspect{r, g.places}, j, j.Abandoned(r.Position))
	case known && j.Newer(r.Position):
		c.counts.Newer++
	case r.Time.Before(j.Kept):
		c.counts.Removable++
	case len(g.rows) > 0 && len(j.Tables) > 1: // a row of another table may have the id
		c.counts.Outside++
	case len(g.rows) > 0:
		return c.phantom(&suspect{r, g.places}, j, "the row with this id has another key and value: the row of this record was deleted, and its id was used again")
	default:
		c.suspects = append(c.suspects, suspect{r, g.places})
		c.suspectBytes += int64(len(r.ID) + len(r.Key) + 500)
		if len(c.suspects) >= maxSuspects || c.suspectBytes > c.share {
			return c.judgeSuspects(j)
		}
	}
	return nil
}

// phantom reports a record without a row.
func (c *Comparison) phantom(s *suspect, j *Judge, why string) error {
	r := s.record
	if !r.Position.IsZero() && r.Origin.IsZero() {
		c.counts.Unnamed++
	}
	return c.report(j, c.finding(Phantom, &Row{ID: r.ID, Topic: r.Topic, Key: r.Key, Table: -1}, s.places, j, "%s", why))
}

// maxSuspects bounds the memory for records without a row.
const maxSuspects = 100_000

// judgeSuspects reports records whose events have no row.
func (c *Comparison) judgeSuspects(j *Judge) error {
	all := c.suspects
	c.suspects, c.suspectBytes = nil, 0
	suspects, err := c.drop(all, j.Exist, &c.counts.Outside)
	if err != nil {
		return err
	}
	if suspects, err = c.drop(suspects, j.ExistNow, &c.counts.Newer); err != nil {
		return err
	}
	for i := range suspects {
		if err := c.phantom(&suspects[i], j, "the table has no row with this id: it was deleted, or never committed"); err != nil {
			return err
		}
	}
	return nil
}

// drop counts, and removes, the suspects whose id exists somewhere.
func (c *Comparison) drop(suspects []suspect, exist func([]string) (map[string]bool, error), count *int64) (left []suspect, err error) {
	for part := range slices.Chunk(suspects, 10_000) {
		ids := make([]string, len(part))
		for i, g := range part {
			ids[i] = string(g.record.ID)
		}
		found, err := exist(ids)
		if err != nil {
			return nil, err
		}
		for _, g := range part {
			if found[string(g.record.ID)] {
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

func (c *Comparison) finding(kind Kind, row *Row, places []place, j *Judge, why string, args ...any) Finding {
	f := Finding{Kind: kind, ID: string(row.ID), Topic: row.Topic, Key: string(row.Key), Why: fmt.Sprintf(why, args...)}
	for _, p := range places {
		f.Places = append(f.Places, fmt.Sprintf("%s/%d/%d", p.topic, p.partition, p.offset))
	}
	if row.Table >= 0 {
		f.Table = j.Tables[row.Table]
	}
	if !row.Created.IsZero() {
		f.Created = &row.Created
	}
	return f
}

// place is where a record is.
type place struct {
	topic     string
	partition int32
	offset    int64
}

func placeOf(r *Record) place { return place{r.Topic, r.Partition, r.Offset} }
