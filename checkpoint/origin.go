package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pglogrepl"
)

// Origin is the part of the header outboxcdc-position that is not in the [Position]: the stream that the record comes
// from, and the age of its history. It does not identify the event: two slots of one database send the same events.
// The zero value means that the record does not name its origin, because an earlier version sent it.
type Origin struct {
	Database uint32 // OID
	Slot     string
	// Epoch orders the histories of the slot. It is one higher after every adoption and on every new timeline, while the
	// number of a timeline decreases after a restore. 0 is the first epoch, or one that is not known, because there is
	// no position record: with at-least-once delivery. So consumers compare a record of epoch 0 with earlier ones by its
	// timeline.
	Epoch uint32
}

// IsZero reports whether the origin is not known.
func (o Origin) IsZero() bool { return o == Origin{} }

// AppendHeader appends the value of the header outboxcdc-position to b: version 2, "2:<system id>:<database
// OID>:<slot>:<epoch>:<timeline>:<commit LSN, 16 hex digits>:<ordinal>", or version 1 if the origin is not known,
// see [Position.AppendText].
func AppendHeader(b []byte, p Position, o Origin) []byte {
	if o.IsZero() {
		b, _ = p.AppendText(b) // its error is always nil
		return b
	}
	b = append(b, "2:"...)
	b = strconv.AppendUint(b, p.SystemID, 10)
	b = append(b, ':')
	b = strconv.AppendUint(b, uint64(o.Database), 10)
	b = append(b, ':')
	b = append(b, o.Slot...)
	b = append(b, ':')
	b = strconv.AppendUint(b, uint64(o.Epoch), 10)
	return p.appendInHistory(append(b, ':'))
}

// FormatHeader returns the value of the header outboxcdc-position. See [AppendHeader].
func FormatHeader(p Position, o Origin) string { return string(AppendHeader(nil, p, o)) }

// ParseHeader parses the value of the header outboxcdc-position. The origin of version 1 is zero.
func ParseHeader(text string) (p Position, o Origin, err error) {
	f := strings.Split(text, ":")
	parse := func(field string, base, bits int) uint64 {
		v, e := strconv.ParseUint(field, base, bits)
		if e != nil && err == nil {
			err = e
		}
		return v
	}
	switch {
	case f[0] == "1" && len(f) == 5:
	case f[0] == "2" && len(f) == 8:
		o = Origin{Database: uint32(parse(f[2], 10, 32)), Slot: f[3], Epoch: uint32(parse(f[4], 10, 32))}
		if err == nil && (o.Database == 0 || !isSlotName(o.Slot)) {
			err = errors.New("it names no database or no slot")
		}
	default:
		return Position{}, Origin{}, fmt.Errorf("parse position %q: want 1:<system id>:<timeline>:<16 hex digits>:<ordinal> or "+
			"2:<system id>:<database OID>:<slot>:<epoch>:<timeline>:<16 hex digits>:<ordinal>", text)
	}
	in := f[len(f)-3:] // its place in the history
	p = Position{SystemID: parse(f[1], 10, 64), Timeline: int32(parse(in[0], 10, 31)), CommitLSN: pglogrepl.LSN(parse(in[1], 16, 64)), Ordinal: uint32(parse(in[2], 10, 32))}
	if err == nil && len(in[1]) != 16 {
		err = errors.New("the LSN has not 16 hex digits")
	}
	if err != nil {
		return Position{}, Origin{}, fmt.Errorf("parse position %q: %w", text, err)
	}
	return p, o, nil
}

// isSlotName reports whether Postgres accepts the name of a slot.
func isSlotName(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(c rune) bool { return c != '_' && (c < 'a' || c > 'z') && (c < '0' || c > '9') })
}

// Order compares two records by their headers, as consumers do: -1 if the first is of an earlier event than the
// second, 0 if both are of the same event, 1 if the first is of a later one. The epoch decides before the timeline,
// and a record without an origin has epoch 0. ok is false if the two have no order: they are of two systems, two
// databases or two slots. Each slot counts its epochs for itself.
func Order(p Position, o Origin, q Position, r Origin) (order int, ok bool) {
	if p.SystemID != q.SystemID || !o.IsZero() && !r.IsZero() && (o.Database != r.Database || o.Slot != r.Slot) {
		return 0, false
	}
	return cmp.Or(cmp.Compare(o.Epoch, r.Epoch), cmp.Compare(p.Timeline, q.Timeline), p.Compare(q)), true
}
