package walsendertest

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
)

// Tx is a transaction of the script.
type Tx struct {
	Commit pglogrepl.LSN // start of its commit record
	End    pglogrepl.LSN // where the next transaction may start
	XID    uint32
	Time   time.Time
	Body   [][]byte // pgoutput messages between Begin and Commit
}

// Messages returns the transaction as pgoutput sends it.
func (t *Tx) Messages() [][]byte {
	msgs := append([][]byte{Begin(t.Commit, t.Time, t.XID)}, t.Body...)
	return append(msgs, Commit(t.Commit, t.End, t.Time))
}

var be = binary.BigEndian

// pgTime is the protocol's clock: microseconds since 2000-01-01.
func pgTime(t time.Time) uint64 { return uint64(t.UnixMicro() - 946684800*1_000_000) }

// Begin is pgoutput's message of that name (PostgreSQL, "Logical Replication Message Formats"); so are the ones below.
func Begin(commit pglogrepl.LSN, at time.Time, xid uint32) []byte {
	return be.AppendUint32(be.AppendUint64(be.AppendUint64([]byte{'B'}, uint64(commit)), pgTime(at)), xid)
}

// Commit ends the transaction that Begin started.
func Commit(commit, end pglogrepl.LSN, at time.Time) []byte {
	return be.AppendUint64(be.AppendUint64(be.AppendUint64([]byte{'C', 0}, uint64(commit)), uint64(end)), pgTime(at))
}

// textOID is the type of every column in this package.
const textOID = 25

// Relation announces a table.
func Relation(t *Table) []byte {
	b := be.AppendUint32([]byte{'R'}, t.OID)
	b = append(append(b, t.Schema...), 0)
	b = append(append(b, t.Name...), 0, 'd')
	b = be.AppendUint16(b, uint16(len(t.Columns)))
	for _, c := range t.Columns {
		b = append(append(append(b, 0), c...), 0)
		b = be.AppendUint32(be.AppendUint32(b, textOID), 0xFFFFFFFF)
	}
	return b
}

// Insert is a new row; nil is NULL.
func Insert(t *Table, values ...any) []byte {
	if len(values) != len(t.Columns) {
		panic(fmt.Sprintf("walsendertest: %d values for %d columns", len(values), len(t.Columns)))
	}
	return tuple(be.AppendUint32([]byte{'I'}, t.OID), values)
}

// Update is the new version of a row; nil is NULL.
func Update(t *Table, values ...any) []byte {
	if len(values) != len(t.Columns) {
		panic(fmt.Sprintf("walsendertest: %d values for %d columns", len(values), len(t.Columns)))
	}
	return tuple(be.AppendUint32([]byte{'U'}, t.OID), values)
}

func tuple(b []byte, values []any) []byte {
	b = append(b, 'N')
	b = be.AppendUint16(b, uint16(len(values)))
	for _, v := range values {
		if v == nil {
			b = append(b, 'n')
			continue
		}
		text := fmt.Sprint(v)
		b = append(be.AppendUint32(append(b, 't'), uint32(len(text))), text...)
	}
	return b
}

// Message is a logical message.
func Message(transactional bool, prefix, content string) []byte {
	b := []byte{'M', 0}
	if transactional {
		b[1] = 1
	}
	b = append(append(be.AppendUint64(b, 1), prefix...), 0)
	return append(be.AppendUint32(b, uint32(len(content))), content...)
}

// Row is an Insert into a table of the bundled layout.
func Row(t *Table, id, aggregateType, key, payload string) []byte {
	values := map[string]any{
		"id": id, "aggregate_type": aggregateType, "aggregate_id": key, "event_type": "created", "payload": payload,
		"headers": "{}", "created_at": "2026-11-21 10:00:00+00",
	}
	row := make([]any, len(t.Columns))
	for i, c := range t.Columns {
		row[i] = values[c]
	}
	return Insert(t, row...)
}

// CopyData is the whole message around a payload, for [Session.Raw].
func CopyData(payload []byte) []byte {
	return append(be.AppendUint32([]byte{'d'}, uint32(4+len(payload))), payload...)
}

// XLogData is the CopyData payload that carries a message of pgoutput; WALStart is at.
func XLogData(at pglogrepl.LSN, msg []byte) []byte {
	b := be.AppendUint64(be.AppendUint64([]byte{pglogrepl.XLogDataByteID}, uint64(at)), uint64(at))
	return append(be.AppendUint64(b, pgTime(time.Now())), msg...)
}

// Keepalive is the CopyData payload of a primary keepalive.
func Keepalive(end pglogrepl.LSN, reply bool) []byte {
	b := be.AppendUint64([]byte{pglogrepl.PrimaryKeepaliveMessageByteID}, uint64(end))
	b = be.AppendUint64(b, pgTime(time.Now()))
	if reply {
		return append(b, 1)
	}
	return append(b, 0)
}
