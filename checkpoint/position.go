// Package checkpoint is the confirm rule (docs: ARCHITECTURE.md). [Rule] decides when the slot is confirmed, and up to where. [Tracker]
// knows which events Kafka has acknowledged. [History], [Resume] and [EventSet] know which events are in Kafka already. [PositionRecord]
// is what one process leaves for the next. The package does no I/O, reads no clock and starts no goroutine.
//
// [Tracker.Acked] never decreases. It is the end LSN of a transaction, or a keepalive position, before which Kafka has acknowledged every
// event. An acknowledgement of an event that was never added is a panic.
package checkpoint

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pglogrepl"
)

// Position identifies one event permanently: the cluster's system identifier, the timeline of the commit LSN, the commit
// LSN (the start of the commit record, known since Begin) and the event's ordinal in its transaction. Every decoded outbox
// row has an ordinal, from 0, whether it is sent or not. Positions of one (SystemID, Timeline) are ordered by (CommitLSN,
// Ordinal). Row LSNs would not do: they are neither unique nor increasing (PostgreSQL, "Logical Streaming Replication
// Protocol").
type Position struct {
	SystemID  uint64
	Timeline  int32
	CommitLSN pglogrepl.LSN
	Ordinal   uint32
}

// positionVersion is the first field of the text form. A reader refuses other versions.
const positionVersion = "1"

// AppendText appends the text form "1:<system id>:<timeline>:<commit LSN, 16 hex digits>:<ordinal>" to b.
func (p Position) AppendText(b []byte) ([]byte, error) {
	b = append(b, positionVersion...)
	b = append(b, ':')
	b = strconv.AppendUint(b, p.SystemID, 10)
	b = append(b, ':')
	b = strconv.AppendInt(b, int64(p.Timeline), 10)
	b = append(b, ':')
	b = append(b, "0000000000000000"...)
	for i, lsn := len(b)-1, p.CommitLSN; lsn != 0; i, lsn = i-1, lsn>>4 {
		b[i] = "0123456789abcdef"[lsn&0xf]
	}
	b = append(b, ':')
	return strconv.AppendUint(b, uint64(p.Ordinal), 10), nil
}

// String returns the text form, which records carry in the header outboxcdc-position.
func (p Position) String() string {
	b, _ := p.AppendText(nil)
	return string(b)
}

// ParsePosition parses the text form of a position.
func ParsePosition(s string) (Position, error) {
	f := strings.Split(s, ":")
	if len(f) != 5 || f[0] != positionVersion || len(f[3]) != 16 {
		return Position{}, fmt.Errorf("parse position %q: want 1:<system id>:<timeline>:<16 hex digits>:<ordinal>", s)
	}
	var p Position
	var err error
	parse := func(field string, base, bits int) uint64 {
		v, e := strconv.ParseUint(field, base, bits)
		if e != nil && err == nil {
			err = fmt.Errorf("parse position %q: %w", s, e)
		}
		return v
	}
	p.SystemID = parse(f[1], 10, 64)
	p.Timeline = int32(parse(f[2], 10, 31))
	p.CommitLSN = pglogrepl.LSN(parse(f[3], 16, 64))
	p.Ordinal = uint32(parse(f[4], 10, 32))
	if err != nil {
		return Position{}, err
	}
	return p, nil
}
