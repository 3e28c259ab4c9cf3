package audit

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/router"
)

const (
	// maxRows is how many rows with one id are compared, and maxPlaces how many records a finding names: one id may be
	// that of millions.
	maxRows   = 256
	maxPlaces = 16
)

// group is what is known of one id while its entries are read: first the rows, then what may be their records.
type group struct {
	id      []byte
	rows    []candidate
	outside bool    // a row outside the range has the id
	records bool    // there are records
	stray   *Record // a record that is of no row of the group, rather one of our database than another
	places  []place
	events  map[content]map[checkpoint.Position]bool // if there are several rows
	more    bool                                     // there are rows that were not collected
}

// candidate is a row, and what the records with its id say about it.
type candidate struct {
	row         Row
	is          match
	why         string // it is unsure
	waits, dead bool
	held        bool // its dead letter is open, and holds its key

	resent, repeated int64
	content          uint64 // of the first record of the stream
	sent             bool   // there is one
	early            bool   // a record is older than the row
	differing        bool   // a further one is not like the first
	differs          *Record
}

// groups reads what was added, id by id. It collects the rows of an id. other is called with each entry after them,
// and with rows that are too many to be collected, end when all entries of the id were read.
func (c *Comparison) groups(other func(g *group, kind byte, r *reader) error, end func(*group) error) error {
	var g *group
	err := c.byID.each(func(entry []byte) error {
		r := &reader{b: entry}
		id := r.bytes()
		if r.bad || len(r.b) == 0 {
			return errDamaged
		}
		kind := r.b[0]
		r.b = r.b[1:]
		if g == nil || !bytes.Equal(g.id, id) {
			if g != nil {
				if err := end(g); err != nil {
					return err
				}
			}
			g = &group{id: slices.Clone(id)}
		}
		switch {
		case kind == entryOutside:
			g.outside = true
		case kind == entryRow && len(g.rows) < maxRows:
			own := &reader{b: slices.Clone(r.b)}
			g.rows = append(g.rows, candidate{row: c.decodeRow(own, g.id)})
			r.bad = own.bad
		default:
			if err := other(g, kind, r); err != nil {
				return err
			}
		}
		if r.bad {
			return errDamaged
		}
		return nil
	})
	if err == nil && g != nil {
		err = end(g)
	}
	return err
}

// eachPair calls fn with each row and each of its records.
func (c *Comparison) eachPair(j *Judge, fn func(*Row, *Record)) error {
	return c.groups(func(g *group, kind byte, r *reader) error {
		if kind != entryRecord {
			return nil
		}
		rec := c.decodeRecord(r, g.id)
		from := j.Origin(&rec)
		for i := range g.rows {
			if row := &g.rows[i].row; compareEvents(from, bytes.Equal(rec.Key, row.Key), rec.Value == row.Value) == same {
				fn(row, &rec)
			}
		}
		return nil
	}, func(*group) error { return nil })
}

// join judges what was added, and fills the order of the records.
func (c *Comparison) join(j *Judge) error {
	var previous []byte // the line of the previous record of the stream, with its id
	return c.groups(func(g *group, kind byte, r *reader) error {
		switch kind {
		case entryRow:
			row := c.decodeRow(r, g.id)
			if g.more = true; row.Skipped {
				c.counts.Skipped++
				return nil
			}
			return c.undecided(&row, j, fmt.Sprintf("more than %d rows have this id", maxRows), j.Young(&row))
		case entryWaiting:
			rec := c.decodeRecord(r, g.id)
			g.noteWaiting(&rec, j)
		case entryDead:
			rec := c.decodeRecord(r, g.id)
			g.noteDead(&rec, j)
		case entryRecord:
			before := r.b
			rec := c.decodeRecord(r, g.id)
			if !rec.Resent && !rec.Position.IsZero() {
				line := c.appendLine(appendBytes(c.buf[:0], g.id), &rec)
				c.buf = line
				if !bytes.Equal(line, previous) {
					previous = append(previous[:0], line...)
					if err := c.noteOrder(&rec); err != nil {
						return err
					}
				}
			}
			of := g.noteRecord(&rec, j, func() *Record {
				own := c.decodeRecord(&reader{b: slices.Clone(before)}, g.id)
				return &own
			})
			if !of {
				return c.noteLater(laterDelivered, rec.Topic, rec.Key, rec.Time)
			}
		default:
			r.bad = true
		}
		return nil
	}, func(g *group) error { return c.judge(g, j) })
}

// of calls fn with the rows that something in a topic can be about: those of the topic, and if there are none, all.
// Tables that do not share a topic may have the same ids: then what is in another topic than the row's is not the
// row's unless it has the key.
func (g *group) of(topic string, j *Judge, fn func(x *candidate, other bool)) {
	has := slices.ContainsFunc(g.rows, func(x candidate) bool { return x.row.Topic == topic })
	for i := range g.rows {
		if x := &g.rows[i]; !has || x.row.Topic == topic {
			fn(x, !has && len(j.Tables) > 1)
		}
	}
}

// noteWaiting notes an event that waits in the slot: it is of our database.
func (g *group) noteWaiting(r *Record, j *Judge) {
	g.of(r.Topic, j, func(x *candidate, other bool) {
		key := bytes.Equal(r.Key, x.row.Key)
		switch compareEvents(here, key, r.Value == x.row.Value) {
		case same:
			x.waits = x.waits || !other
			g.noteEvent(r)
		case unsure:
			if !other && x.is == apart {
				x.is, x.why = unsure, doubt("an event in the slot", here, key)
			}
		case apart:
		}
	})
}

// noteDead notes a dead letter. That of an update says nothing about the row's insert, which is its event. If only its
// key or its value is that of the row, the row may have been fixed since, or the id was used again. One that was
// shortened may have neither: then it has to be of our database, and its row poison.
func (g *group) noteDead(r *Record, j *Judge) {
	from := j.Origin(r)
	if from == lost || r.Dead == string(router.Update) {
		return
	}
	for i := range g.rows {
		x := &g.rows[i]
		key, value := bytes.Equal(r.Key, x.row.Key), r.Value == x.row.Value
		cut := r.Cut && from == here && len(j.Tables) < 2 && len(g.id) > 0 && bytes.HasPrefix(x.row.Key, r.Key)
		switch {
		case from.isForeign(): // as with a record
			if x.is == apart && compareEvents(from, key, value) == unsure {
				x.is, x.why = unsure, doubt("a dead letter", from, key)
			}
		case key && value, cut && x.row.Poison != "" && len(g.rows) == 1:
			x.dead, x.held = true, x.held || r.Held
			g.noteEvent(r)
		case key || cut || value && len(j.Tables) < 2:
			if x.is == apart {
				x.is, x.why = unsure, doubt("a dead letter", from, key)
			}
		}
	}
}

// noteRecord notes a record, and reports whether it is that of a row. keep returns a copy of it that stays valid.
func (g *group) noteRecord(r *Record, j *Judge, keep func() *Record) (of bool) {
	if len(g.places) < maxPlaces {
		g.places = append(g.places, placeOf(r))
	}
	from := j.Origin(r)
	g.records = true
	stray := true
	g.of(r.Topic, j, func(x *candidate, other bool) {
		key := bytes.Equal(r.Key, x.row.Key)
		if other && !key {
			return
		}
		is := compareEvents(from, key, r.Value == x.row.Value)
		switch is {
		case apart:
			return
		case unsure:
			if x.is == apart {
				x.is, x.why = unsure, doubt("a record", from, key)
			}
			x.differing = x.differing || !from.isForeign() && !r.Resent
		case same:
			x.is, of = same, true
			g.noteEvent(r)
			x.noteCopy(r)
			x.early = x.early || j.Early != nil && j.Early(&x.row, r)
		}
		if x.differs == nil && !from.isForeign() && r.Content != x.row.Content && !r.Resent {
			x.differs = keep()
		}
		stray = false
	})
	if stray && (g.stray == nil || j.foreign(g.stray) && !j.foreign(r)) {
		g.stray = keep()
	}
	return of
}

// noteCopy counts the records of a row.
func (x *candidate) noteCopy(r *Record) {
	switch {
	case r.Resent:
		x.resent++
	case !x.sent:
		x.sent, x.content = true, r.Content
	case r.Content == x.content:
		x.repeated++
	default:
		x.differing = true
	}
}
