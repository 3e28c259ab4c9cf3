package decoder

import (
	"encoding/binary"
	"time"

	"github.com/jackc/pglogrepl"
)

// An encoder of pgoutput, for the test tables and for the fuzzer: encoding a decoded message must give the same bytes.

var be = binary.BigEndian

func micros(t time.Time) uint64 { return uint64(t.UnixMicro() - postgresEpoch) }

func encBegin(b Begin) []byte {
	p := be.AppendUint64([]byte{'B'}, uint64(b.CommitLSN))
	return be.AppendUint32(be.AppendUint64(p, micros(b.CommitTime)), b.XID)
}

func encCommit(c Commit) []byte {
	p := be.AppendUint64([]byte{'C', 0}, uint64(c.CommitLSN))
	return be.AppendUint64(be.AppendUint64(p, uint64(c.EndLSN)), micros(c.CommitTime))
}

// encRelation writes defaults for the fields that the decoder does not keep: replica identity, key flags, type
// modifiers.
func encRelation(r *Relation) []byte {
	p := be.AppendUint32([]byte{'R'}, r.OID)
	p = append(append(p, r.Namespace...), 0)
	p = append(append(p, r.Name...), 0, 'd')
	p = be.AppendUint16(p, uint16(len(r.Columns)))
	for _, c := range r.Columns {
		p = append(append(append(p, 0), c.Name...), 0)
		p = be.AppendUint32(be.AppendUint32(p, c.TypeOID), 0)
	}
	return p
}

func encInsert(oid uint32, values ...Value) []byte {
	return encTuple(append(be.AppendUint32([]byte{'I'}, oid), 'N'), values)
}

// encUpdate includes the whole old row unless old is nil.
func encUpdate(oid uint32, old []Value, values ...Value) []byte {
	p := be.AppendUint32([]byte{'U'}, oid)
	if old != nil {
		p = encTuple(append(p, 'O'), old)
	}
	return encTuple(append(p, 'N'), values)
}

func encMessage(transactional bool, prefix, content string) []byte {
	p := []byte{'M', 0}
	if transactional {
		p[1] = 1
	}
	p = append(append(be.AppendUint64(p, 0x1A00), prefix...), 0)
	return append(be.AppendUint32(p, uint32(len(content))), content...)
}

func encTuple(p []byte, values []Value) []byte {
	p = be.AppendUint16(p, uint16(len(values)))
	for _, v := range values {
		switch {
		case v.Unchanged:
			p = append(p, 'u')
			continue
		case v.Null:
			p = append(p, 'n')
			continue
		}
		p = append(be.AppendUint32(append(p, 't'), uint32(len(v.Data))), v.Data...)
	}
	return p
}

func text(s string) Value { return Value{Data: []byte(s)} }

var null = Value{Null: true}

func table(oid uint32, name string, columns ...string) *Relation {
	r := &Relation{OID: oid, Namespace: "public", Name: name}
	for _, c := range columns {
		r.Columns = append(r.Columns, Column{Name: c, TypeOID: 25})
	}
	return r
}

func begin(commit pglogrepl.LSN) Begin {
	return Begin{CommitLSN: commit, CommitTime: time.Date(2026, 11, 21, 11, 12, 13, 456789000, time.UTC), XID: 700}
}

func commit(at pglogrepl.LSN) Commit {
	return Commit{CommitLSN: at, EndLSN: at + 0x30, CommitTime: time.Date(2026, 11, 21, 11, 12, 13, 456789000, time.UTC)}
}
