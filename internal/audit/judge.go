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

// judge says what became of an event that has a row.
func (c *Comparison) judge(g *group, j *Judge) error {
	row := &g.rows[0]
	if len(g.rows) > 1 {
		if err := c.report(j, c.finding(Duplicate, row, g.records, j, "%d rows have this id, so that consumers take them for one event", len(g.rows))); err != nil {
			return err
		}
	}
	foreign := g.withoutForeign(j)
	foreign = g.withoutOtherTables(j) || foreign
	if len(g.records) == 0 {
		return c.judgeMissing(g, row, foreign, j)
	}
	c.counts.Delivered++
	c.counts.add(row.Topic, 0)
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
		why = "only records of another server or table have this id, with another key"
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
	if j.OnlyMissing {
		return nil
	}
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
			c.suspects = append(c.suspects, g)
		}
	}
	if len(c.suspects) < maxSuspects {
		return nil
	}
	return c.judgeSuspects(j)
}

// maxSuspects bounds the memory for records without a row.
const maxSuspects = 100_000

// judgeSuspects reports records whose events have no row.
func (c *Comparison) judgeSuspects(j *Judge) error {
	all := c.suspects
	c.suspects = nil
	suspects, err := c.drop(all, j.Exist, &c.counts.Outside)
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
