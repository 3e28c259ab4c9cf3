package audit

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// Row is an event of an outbox table.
type Row struct {
	ID      []byte
	Table   int // index of the table
	Topic   string
	Key     []byte
	Created time.Time // zero: the table has no such column
	Sent    time.Time // the time that its record has, if a column sets it; zero: when it was sent
	Content uint64    // hash of topic, key, value and headers
	Value   uint64    // hash of the value
	Poison  string    // the cause, if no record can be made of the row
	Skipped bool      // the policy for that cause is to skip the event
	Outside bool      // the row is outside the range: it is not judged, and explains its record
	// ByID is whether the hash of the id chooses the partition, because the record has no key. Otherwise that of the key
	// does.
	ByID bool
	// Partition is the partition that the row names, if OwnPartition is true.
	Partition    int32
	OwnPartition bool
}

// Record is a record of Kafka, or an event that waits in the slot.
type Record struct {
	ID        []byte
	Topic     string
	Partition int32
	Offset    int64
	Key       []byte
	Position  checkpoint.Position // zero: the record has none
	Origin    checkpoint.Origin   // of the position; zero: it is not known
	Content   uint64
	Value     uint64
	Dead      string // of a dead letter: the cause
	Cut       bool   // a dead letter that was shortened
	Held      bool   // an open letter of a held key
	// Resent is a record that a person has sent: recovered, replayed, or retried. It is outside the order of the stream.
	Resent bool
	Time   time.Time
	// Uncommitted is a record of a Kafka transaction that was aborted, or is open.
	Uncommitted bool
}

// The kinds of entries that are joined by id, in the order in which a group is read: first the rows.
const (
	entryRow = iota + 1
	entryOutside
	entryWaiting
	entryDead
	entryRecord
)

func appendBytes(b, data []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(data))), data...)
}

func appendBool(b []byte, is bool) []byte {
	if is {
		return append(b, 1)
	}
	return append(b, 0)
}

func (c *Comparison) encodeRow(b []byte, r *Row) []byte {
	b = appendBytes(b, r.ID)
	if r.Outside {
		return append(b, entryOutside)
	}
	b = append(b, entryRow)
	b = binary.AppendUvarint(b, uint64(r.Table))
	b = binary.AppendUvarint(b, c.topic(r.Topic))
	b = appendBytes(b, r.Key)
	created := int64(0)
	if !r.Created.IsZero() {
		created = r.Created.UnixMicro()
	}
	b = binary.AppendVarint(b, created)
	sent := int64(0)
	if !r.Sent.IsZero() {
		sent = r.Sent.UnixMilli()
	}
	b = binary.AppendVarint(b, sent)
	b = binary.BigEndian.AppendUint64(b, r.Content)
	b = binary.BigEndian.AppendUint64(b, r.Value)
	b = appendBytes(b, []byte(r.Poison))
	b = appendBool(appendBool(b, r.Skipped), r.ByID)
	return binary.AppendUvarint(appendBool(b, r.OwnPartition), uint64(r.Partition))
}

// encodeRecord encodes a record so that those of one id are sorted by their lines, and those of one line by their
// offsets.
func (c *Comparison) encodeRecord(b []byte, kind byte, r *Record) []byte {
	b = append(appendBytes(b, r.ID), kind)
	b = c.appendLine(b, r)
	b = binary.BigEndian.AppendUint64(b, uint64(r.Offset))
	b = appendPosition(b, r)
	b = binary.BigEndian.AppendUint64(b, r.Content)
	b = binary.BigEndian.AppendUint64(b, r.Value)
	b = appendBytes(b, []byte(r.Dead))
	b = appendBool(appendBool(appendBool(appendBool(b, r.Cut), r.Held), r.Resent), r.Uncommitted)
	return binary.AppendVarint(b, r.Time.UnixMilli())
}

// appendLine appends what has an order: the records of one key in one partition, from one slot.
func (c *Comparison) appendLine(b []byte, r *Record) []byte {
	b = binary.AppendUvarint(b, c.topic(r.Topic))
	b = binary.BigEndian.AppendUint32(b, uint32(r.Partition))
	b = appendBytes(b, r.Key)
	b = binary.AppendUvarint(b, r.Position.SystemID)
	return appendBytes(binary.AppendUvarint(b, uint64(r.Origin.Database)), []byte(r.Origin.Slot))
}

// appendPosition appends the rest of a position.
func appendPosition(b []byte, r *Record) []byte {
	b = binary.AppendUvarint(b, uint64(r.Origin.Epoch))
	b = binary.AppendUvarint(b, uint64(r.Position.Timeline))
	b = binary.AppendUvarint(b, uint64(r.Position.CommitLSN))
	return binary.AppendUvarint(b, uint64(r.Position.Ordinal))
}

// reader decodes an entry.
type reader struct {
	b   []byte
	bad bool
}

var errDamaged = errors.New("a temporary file is damaged")

func (r *reader) uint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.b, r.bad = nil, true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) int() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.b, r.bad = nil, true
		return 0
	}
	r.b = r.b[n:]
	return v
}

// take returns the next n bytes, or nil.
func (r *reader) take(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.b, r.bad = nil, true
		return nil
	}
	out := r.b[:n:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) bytes() []byte { return r.take(r.uint()) }

func (r *reader) fixed() uint64 {
	if b := r.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (r *reader) fixed32() uint32 {
	if b := r.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (r *reader) bool() bool {
	b := r.take(1)
	return b != nil && b[0] == 1
}

func (c *Comparison) line(r *reader, rec *Record) {
	rec.Topic, rec.Partition, rec.Key = c.topicName(r), int32(r.fixed32()), r.bytes()
	rec.Position.SystemID, rec.Origin.Database, rec.Origin.Slot = r.uint(), uint32(r.uint()), string(r.bytes())
}

func (r *reader) position(rec *Record) {
	rec.Origin.Epoch = uint32(r.uint())
	p := &rec.Position
	p.Timeline, p.CommitLSN, p.Ordinal = int32(r.uint()), pglogrepl.LSN(r.uint()), uint32(r.uint())
}

func (c *Comparison) topicName(r *reader) string {
	n := r.uint()
	if n >= uint64(len(c.topics)) {
		r.bad = true
		return ""
	}
	return c.topics[n]
}

func (c *Comparison) decodeRow(r *reader, id []byte) Row {
	row := Row{ID: id, Table: int(r.uint()), Topic: c.topicName(r), Key: r.bytes()}
	if created := r.int(); created != 0 {
		row.Created = time.UnixMicro(created).UTC()
	}
	if sent := r.int(); sent != 0 {
		row.Sent = time.UnixMilli(sent).UTC()
	}
	row.Content, row.Value, row.Poison, row.Skipped = r.fixed(), r.fixed(), string(r.bytes()), r.bool()
	row.ByID, row.OwnPartition, row.Partition = r.bool(), r.bool(), int32(r.uint())
	return row
}

func (c *Comparison) decodeRecord(r *reader, id []byte) Record {
	rec := Record{ID: id}
	c.line(r, &rec)
	rec.Offset = int64(r.fixed())
	r.position(&rec)
	rec.Content, rec.Value, rec.Dead = r.fixed(), r.fixed(), string(r.bytes())
	rec.Cut, rec.Held, rec.Resent, rec.Uncommitted, rec.Time = r.bool(), r.bool(), r.bool(), r.bool(), time.UnixMilli(r.int()).UTC()
	return rec
}
