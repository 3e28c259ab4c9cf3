// Package checkpoint is the confirm rule (docs: ARCHITECTURE.md): what has to happen before the slot is confirmed, and when ([Rule]). Its
// parts are what Kafka has acknowledged ([Tracker]), what is in Kafka already ([History], [Resume], [Found]), and what one process
// leaves for the next ([PositionRecord]). It does no I/O, reads no clock and starts no goroutine.
//
// It promises that [Tracker.Acked] is always the end LSN of a transaction before which every event has been acknowledged (or a keepalive
// position with nothing unacknowledged before it), and that it never falls. An acknowledgement that the tracker never asked for is a
// panic, not a guess.
package checkpoint

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pglogrepl"
)

// Position identifies one event for ever: the cluster's system identifier, the timeline that the commit LSN lies on,
// the commit LSN (the start of the commit record, known since Begin) and the event's number in its transaction,
// counted from 0 over every decoded outbox row, sent or not. Positions of one (SystemID, Timeline) are ordered by
// (CommitLSN, Ordinal); the LSN of a row is no part of it because it is neither unique nor rising
// (PostgreSQL, "Logical Streaming Replication Protocol").
type Position struct {
	SystemID  uint64
	Timeline  int32
	CommitLSN pglogrepl.LSN
	Ordinal   uint32
}

// positionVersion is the first field of the text form; a reader refuses what it does not know.
const positionVersion = "1"

// AppendText appends the text form "1:<system id>:<timeline>:<commit LSN, 16 hex digits>:<ordinal>" to b.
func (p Position) AppendText(b []byte) ([]byte, error) {
	b = append(b, positionVersion...)
	b = append(b, ':')
	b = strconv.AppendUint(b, p.SystemID, 10)
	b = append(b, ':')
	b = strconv.AppendInt(b, int64(p.Timeline), 10)
	b = append(b, ':')
	const digits = "0123456789abcdef"
	for shift := 60; shift >= 0; shift -= 4 {
		b = append(b, digits[uint64(p.CommitLSN)>>shift&0xf])
	}
	b = append(b, ':')
	return strconv.AppendUint(b, uint64(p.Ordinal), 10), nil
}

// String is the text form that records carry in the header outboxcdc-position.
func (p Position) String() string {
	b, _ := p.AppendText(nil)
	return string(b)
}

// ParsePosition reads what [Position.String] wrote.
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
