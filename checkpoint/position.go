// Package checkpoint is the confirm rule (docs: ARCHITECTURE.md). [Rule] decides when the slot is confirmed, and up
// to where. [Tracker] knows which events Kafka has acknowledged. [History], [Resume] and [EventSet] know which events
// are in Kafka already. [PositionRecord] is what one process leaves for the next. The package does no I/O, reads no
// clock and starts no goroutine. Where the package says Kafka, and deduplicated delivery is not meant, any sink is.
//
// [Tracker.Acked] never decreases. It is the end LSN of a transaction, or a keepalive position, before which Kafka
// has acknowledged every event. An acknowledgement of an event that was never added is a panic.
package checkpoint

import (
	"strconv"

	"github.com/jackc/pglogrepl"
)

// Position identifies one event permanently: the cluster's system identifier, the timeline of the commit LSN, the
// commit LSN (the start of the commit record, known since Begin) and the event's ordinal in its transaction. Every
// decoded outbox row has an ordinal, from 0, whether it is sent or not. Positions of one (SystemID, Timeline) are
// ordered by (CommitLSN, Ordinal). Row LSNs would not do: they are neither unique nor increasing (PostgreSQL,
// "Logical Streaming Replication Protocol").
type Position struct {
	SystemID  uint64
	Timeline  int32
	CommitLSN pglogrepl.LSN
	Ordinal   uint32
}

// AppendText appends the text form "1:<system id>:<timeline>:<commit LSN, 16 hex digits>:<ordinal>" to b.
func (p Position) AppendText(b []byte) ([]byte, error) {
	b = append(b, "1:"...)
	b = strconv.AppendUint(b, p.SystemID, 10)
	return p.appendInHistory(append(b, ':')), nil
}

// appendInHistory appends "<timeline>:<commit LSN, 16 hex digits>:<ordinal>" to b.
func (p Position) appendInHistory(b []byte) []byte {
	b = strconv.AppendInt(b, int64(p.Timeline), 10)
	b = append(b, ':')
	b = append(b, "0000000000000000"...)
	for i, lsn := len(b)-1, p.CommitLSN; lsn != 0; i, lsn = i-1, lsn>>4 {
		b[i] = "0123456789abcdef"[lsn&0xf]
	}
	b = append(b, ':')
	return strconv.AppendUint(b, uint64(p.Ordinal), 10)
}

// String returns the text form.
func (p Position) String() string {
	b, _ := p.AppendText(nil)
	return string(b)
}

// ParsePosition parses the text form of a position, or the header outboxcdc-position of any version.
func ParsePosition(s string) (Position, error) {
	p, _, err := ParseHeader(s)
	return p, err
}
