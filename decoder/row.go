package decoder

import (
	"errors"
	"fmt"
	"math"
)

// beginRow returns the relation of a row; nil: the message is decoded, or there is an error.
func (d *Decoder) beginRow(r *reader, m *Message, what string) (*Relation, error) {
	r.what = what
	d.requireTx(r)
	rel, err := d.rowRelation(r)
	if err == nil && rel == nil {
		*m = Message{Kind: KindIgnored}
	}
	return rel, err
}

func (d *Decoder) decodeInsert(r *reader, m *Message) error {
	rel, err := d.beginRow(r, m, "insert")
	if rel == nil {
		return err
	}
	if c := r.uint8(); c != 'N' {
		r.fail(5, fmt.Errorf("tuple marker %q instead of 'N'", c))
	}
	d.event.Values = r.tuple(d.event.Values, rel, false)
	return d.endEvent(r, m, rel, KindEvent)
}

// decodeUpdate decodes the new row. It takes unchanged TOAST values from the old row, if the whole old row was sent.
func (d *Decoder) decodeUpdate(r *reader, m *Message) error {
	rel, err := d.beginRow(r, m, "update")
	if rel == nil {
		return err
	}
	d.oldValues = d.oldValues[:0]
	at := r.off
	marker := r.uint8()
	if marker == 'O' || marker == 'K' { // the whole old row, or its key with NULL for all other columns
		if d.oldValues = r.tuple(d.oldValues, rel, true); marker == 'K' {
			d.oldValues = d.oldValues[:0]
		}
		at = r.off
		marker = r.uint8()
	}
	if marker != 'N' {
		r.fail(at, fmt.Errorf("tuple marker %q instead of 'N'", marker))
	}
	d.event.Values = r.tuple(d.event.Values, rel, true)
	for i := range d.event.Values {
		if v := &d.event.Values[i]; v.Unchanged && i < len(d.oldValues) && d.oldValues[i].Data != nil {
			*v = d.oldValues[i]
		}
	}
	return d.endEvent(r, m, rel, KindUpdate)
}

// endEvent ends the decoding of an event and gives it its ordinal.
func (d *Decoder) endEvent(r *reader, m *Message, rel *Relation, kind Kind) error {
	if d.ordinal > math.MaxUint32 {
		r.fail(0, errors.New("more than 2^32 events in one transaction"))
	}
	if err := r.end(); err != nil {
		return err
	}
	d.event.Relation, d.event.Begin, d.event.Ordinal, d.event.Update = rel, d.begin, uint32(d.ordinal), kind == KindUpdate
	d.ordinal++
	*m = Message{Kind: kind, Event: &d.event, Relation: rel}
	return nil
}

// tuple reads a row into values, reusing its memory.
func (r *reader) tuple(values []Value, rel *Relation, update bool) []Value {
	values = values[:0]
	at := r.off
	if n := int(r.uint16()); r.err == nil && n != len(rel.Columns) {
		r.fail(at, fmt.Errorf("a row of %d columns, but %s has %d", n, rel, len(rel.Columns)))
	}
	if r.err != nil {
		return values
	}
	for i := range rel.Columns {
		values = append(values, r.value(&rel.Columns[i], update))
	}
	return values
}

// value reads one column of a tuple.
func (r *reader) value(c *Column, update bool) Value {
	at := r.off
	switch kind := r.uint8(); kind {
	case 'n':
		return Value{Null: true}
	case 't':
		size := r.uint32()
		if int64(size) > int64(len(r.b)-r.off) {
			r.fail(at, fmt.Errorf("column %q claims %d bytes, the message has %d left", c.Name, size, len(r.b)-r.off))
		}
		return Value{Data: r.next(int(size))}
	case 'u':
		if update {
			return Value{Null: true, Unchanged: true}
		}
		// Only an update may omit a TOAST value. Decoding it as NULL would lose the payload.
		r.fail(at, fmt.Errorf("column %q is an unchanged TOAST value, which an insert cannot have", c.Name))
	case 'b':
		r.fail(at, fmt.Errorf("column %q is in binary format, which was not requested", c.Name))
	default:
		r.fail(at, fmt.Errorf("column %q is of unknown kind %q", c.Name, kind))
	}
	return Value{}
}

// decodeDelete finds the table of a delete. It does not read the tuple.
func (d *Decoder) decodeDelete(r *reader, m *Message) error {
	r.what = "delete"
	d.requireTx(r)
	rel := d.relation(r)
	if r.err != nil {
		return &Error{What: r.what, Offset: r.errOffset, Err: r.err}
	}
	*m = Message{Kind: KindDelete, Relation: rel.Relation}
	if rel.Relation == nil {
		m.Kind = KindIgnored
	}
	return nil
}
