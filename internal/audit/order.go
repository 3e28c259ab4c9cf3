package audit

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// noteOrder notes the first record of an event in its line, for checkOrder. Further ones are duplicates: consumers
// know them by their position.
func (c *Comparison) noteOrder(r *Record) error {
	b := binary.BigEndian.AppendUint64(c.appendLine(c.lineBuf[:0], r), uint64(r.Offset))
	c.lineBuf = append(appendPosition(b, r), r.ID...)
	return c.byLine.add(c.lineBuf)
}

// checkOrder looks for records whose first delivery comes after that of a later event of the same key.
func (c *Comparison) checkOrder(j *Judge) error {
	var newest Record
	var line []byte
	return c.byLine.each(func(entry []byte) error {
		r := &reader{b: entry}
		var rec Record
		c.line(r, &rec)
		own := entry[:len(entry)-len(r.b)]
		rec.Offset = int64(r.fixed())
		r.position(&rec)
		rec.ID = r.b
		if r.bad {
			return errDamaged
		}
		if bytes.Equal(line, own) && isBefore(&rec, &newest) {
			row := &Row{ID: rec.ID, Topic: rec.Topic, Key: rec.Key, Table: -1}
			return c.report(j, c.finding(Inversion, row, []place{placeOf(&newest), placeOf(&rec)}, j,
				"its position %s is before %s, that of an earlier record of the key", rec.Position, newest.Position))
		}
		line = append(line[:0], own...)
		rec.Key, rec.ID = slices.Clone(rec.Key), nil
		newest = rec
		return nil
	})
}

// isBefore orders two records of one line as consumers do.
func isBefore(a, b *Record) bool {
	order, ok := checkpoint.Order(a.Position, a.Origin, b.Position, b.Origin)
	return ok && order < 0
}
