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
	Content uint64    // hash of topic, key, value and headers, see [Content]
	Poison  string    // the cause, if no record can be made of the row
	Skipped bool      // the policy for that cause is to skip the event
	Outside bool      // the row is outside the range: it is not judged, and explains its record
	// ByID is whether the hash of the id chooses the partition, because the record has no key. Otherwise that of the key does.
	ByID bool
	// Partition is the partition that the row names, if OwnPartition is true.
	Partition    int32
	OwnPartition bool
}

// Record is a record of Kafka.
type Record struct {
	ID        []byte
	Topic     string
	Partition int32
	Offset    int64
	Key       []byte
	Position  checkpoint.Position // zero: the record has none
	Content   uint64
	Dead      string // of a dead letter: the cause
	// Resent is a record that a person has sent: recovered, replayed, or retried. It is outside the order of the stream.
	Resent bool
	Time   time.Time
}

// The kinds of entries that are joined by id.
const (
	entryRow     = 'r'
	entryRecord  = 'k'
	entryWaiting = 'w'
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
	b = append(b, entryRow)
	b = appendBytes(b, r.ID)
	b = binary.AppendUvarint(b, uint64(r.Table))
	b = binary.AppendUvarint(b, c.topic(r.Topic))
	b = appendBytes(b, r.Key)
	created := int64(0)
	if !r.Created.IsZero() {
		created = r.Created.UnixMicro()
	}
	b = binary.AppendVarint(b, created)
	b = binary.BigEndian.AppendUint64(b, r.Content)
	b = appendBytes(b, []byte(r.Poison))
	b = appendBool(appendBool(appendBool(b, r.Skipped), r.Outside), r.ByID)
	return binary.AppendUvarint(appendBool(b, r.OwnPartition), uint64(r.Partition))
}

func (c *Comparison) encodeRecord(b []byte, r *Record) []byte {
	b = append(b, entryRecord)
	b = appendBytes(b, r.ID)
	b = binary.AppendUvarint(b, c.topic(r.Topic))
	b = binary.AppendUvarint(b, uint64(r.Partition))
	b = binary.AppendUvarint(b, uint64(r.Offset))
	b = appendBytes(b, r.Key)
	b = appendPosition(b, r.Position)
	b = binary.BigEndian.AppendUint64(b, r.Content)
	b = appendBytes(b, []byte(r.Dead))
	return binary.AppendVarint(appendBool(b, r.Resent), r.Time.UnixMilli())
}

func appendPosition(b []byte, p checkpoint.Position) []byte {
	b = binary.AppendUvarint(b, p.SystemID)
	b = binary.AppendUvarint(b, uint64(p.Timeline))
	b = binary.AppendUvarint(b, uint64(p.CommitLSN))
	return binary.AppendUvarint(b, uint64(p.Ordinal))
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

func (r *reader) bytes() []byte {
	n := r.uint()
	if n > uint64(len(r.b)) {
		r.b, r.bad = nil, true
		return nil
	}
	out := r.b[:n:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) fixed() uint64 {
	if len(r.b) < 8 {
		r.b, r.bad = nil, true
		return 0
	}
	v := binary.BigEndian.Uint64(r.b)
	r.b = r.b[8:]
	return v
}

func (r *reader) bool() bool {
	if len(r.b) < 1 {
		r.bad = true
		return false
	}
	v := r.b[0] == 1
	r.b = r.b[1:]
	return v
}

func (r *reader) position() checkpoint.Position {
	return checkpoint.Position{
		SystemID: r.uint(), Timeline: int32(r.uint()), CommitLSN: pglogrepl.LSN(r.uint()), Ordinal: uint32(r.uint()),
	}
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
	row.Content, row.Poison, row.Skipped, row.Outside = r.fixed(), string(r.bytes()), r.bool(), r.bool()
	row.ByID, row.OwnPartition, row.Partition = r.bool(), r.bool(), int32(r.uint())
	return row
}

func (c *Comparison) decodeRecord(r *reader, id []byte) Record {
	return Record{
		ID: id, Topic: c.topicName(r), Partition: int32(r.uint()), Offset: int64(r.uint()), Key: r.bytes(),
		Position: r.position(), Content: r.fixed(), Dead: string(r.bytes()), Resent: r.bool(),
		Time: time.UnixMilli(r.int()).UTC(),
	}
}
