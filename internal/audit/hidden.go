package audit

import (
	"bytes"
	"encoding/binary"
	"time"
)

// Compaction deletes a record if a later one in its partition has the same key. So a row without a record is missing
// after all if Kafka has no such record. Which rows and records have a key is found out by sorting both by key.
const (
	keyRecord = iota + 1 // comes first
	keyRow
)

// NoteKey notes that a record, of whatever producer, has a key. An earlier record with that key may be deleted by
// compaction.
func (c *Comparison) NoteKey(topic string, key []byte, at time.Time) error {
	c.buf = append(appendBytes(binary.AppendUvarint(c.buf[:0], c.topic(topic)), key), keyRecord)
	c.buf = binary.AppendVarint(c.buf, at.UnixMilli())
	return c.byKey.add(c.buf)
}

// noteHidden notes a row whose record compaction may have deleted.
func (c *Comparison) noteHidden(row *Row) error {
	c.buf = append(appendBytes(binary.AppendUvarint(c.buf[:0], c.topic(row.Topic)), row.Key), keyRow)
	c.buf = c.encodeRow(c.buf, row)
	return c.byKey.add(c.buf)
}

// judgeHidden judges the rows of noteHidden.
func (c *Comparison) judgeHidden(j *Judge) error {
	var place []byte
	var newest time.Time
	return c.byKey.each(func(entry []byte) error {
		r := &reader{b: entry}
		r.uint()
		r.bytes()
		own := entry[:len(entry)-len(r.b)]
		if r.bad || len(r.b) == 0 {
			return errDamaged
		}
		if !bytes.Equal(place, own) {
			place, newest = append(place[:0], own...), time.Time{}
		}
		kind := r.b[0]
		if r.b = r.b[1:]; kind == keyRecord {
			if at := time.UnixMilli(r.int()).UTC(); newest.IsZero() || at.After(newest) {
				newest = at
			}
			return nil
		}
		id := r.bytes()
		r.bool() // the kind of the entry
		row := c.decodeRow(r, id)
		if r.bad {
			return errDamaged
		}
		if why, young := j.Hidden(&row, newest); why != "" {
			return c.undecided(&row, j, why, young)
		}
		return c.missing(&row, j, "no record has this id, and none that is newer has its key")
	})
}
