package inbox

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Position is the value of the header outboxcdc-position: which event the record is of, and where the record comes
// from. The zero value means none.
type Position struct {
	System    uint64 // the system identifier of the database server
	Timeline  uint32
	CommitLSN uint64
	Ordinal   uint32

	// The origin of the record. Database is an OID. In version 1 of the header all three are zero.
	Database uint32
	Slot     string
	// Epoch orders the histories of a slot: after a restore the server may have a lower timeline, but records have a
	// higher epoch. 0 says nothing about the order: timelines decide.
	Epoch uint32
}

// ParsePosition parses the value of the header outboxcdc-position: "2:<system id>:<database
// OID>:<slot>:<epoch>:<timeline>:<commit LSN, 16 hex digits>:<ordinal>", or version 1, "1:<system
// id>:<timeline>:<commit LSN, 16 hex digits>:<ordinal>".
func ParsePosition(header string) (Position, error) {
	f := strings.Split(header, ":")
	var p Position
	var err error
	parse := func(field string, base, bits int) uint64 {
		n, e := strconv.ParseUint(field, base, bits)
		if e != nil && err == nil {
			err = e
		}
		return n
	}
	switch {
	case f[0] == "1" && len(f) == 5:
	case f[0] == "2" && len(f) == 8:
		p.Database, p.Slot, p.Epoch = uint32(parse(f[2], 10, 32)), f[3], uint32(parse(f[4], 10, 32))
		if err == nil && (p.Database == 0 || !isSlotName(p.Slot)) {
			err = errors.New("it has no database, or no name of a slot")
		}
	case f[0] != "1" && f[0] != "2" && len(f) > 1:
		return Position{}, fmt.Errorf("outboxcdc-position %q has version %s, and this version of the inbox reads versions 1 and 2 only: "+
			"update the module github.com/outboxcdc/outboxcdc/inbox", header, f[0])
	default:
		return Position{}, fmt.Errorf("outboxcdc-position %q: want 1:<system id>:<timeline>:<16 hex digits>:<ordinal> or "+
			"2:<system id>:<database OID>:<slot>:<epoch>:<timeline>:<16 hex digits>:<ordinal>", header)
	}
	last := f[len(f)-3:]
	p.System, p.Timeline = parse(f[1], 10, 64), uint32(parse(last[0], 10, 32))
	p.CommitLSN, p.Ordinal = parse(last[1], 16, 64), uint32(parse(last[2], 10, 32))
	switch {
	case err != nil:
	case len(last[1]) != 16:
		err = errors.New("the LSN has not 16 hex digits")
	case p.System == 0:
		err = errors.New("it has no system id")
	}
	if err != nil {
		return Position{}, fmt.Errorf("outboxcdc-position %q: %w", header, err)
	}
	return p, nil
}

// isSlotName reports whether Postgres accepts the name of a slot.
func isSlotName(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(c rune) bool { return c != '_' && (c < 'a' || c > 'z') && (c < '0' || c > '9') })
}

// String returns the value of the header.
func (p Position) String() string {
	if p.Slot == "" {
		return fmt.Sprintf("1:%d:%d:%016x:%d", p.System, p.Timeline, p.CommitLSN, p.Ordinal)
	}
	return fmt.Sprintf("2:%d:%d:%s:%d:%d:%016x:%d", p.System, p.Database, p.Slot, p.Epoch, p.Timeline, p.CommitLSN, p.Ordinal)
}

// Compare compares two positions of one slot. The epoch comes first, and the timeline before the LSN: a failover goes
// back in LSNs, and a restore also in timelines.
func (p Position) Compare(q Position) int {
	return cmp.Or(cmp.Compare(p.Epoch, q.Epoch), p.compareInHistory(q))
}

func (p Position) compareInHistory(q Position) int {
	return cmp.Or(cmp.Compare(p.Timeline, q.Timeline), cmp.Compare(p.CommitLSN, q.CommitLSN), cmp.Compare(p.Ordinal, q.Ordinal))
}

// isAfter reports whether a record at p comes after the last handled one of its slot. An epoch of 0 says nothing: the
// daemon had no position record. Otherwise a daemon that delivers at least once from now on would seem to send old
// records only.
func (p Position) isAfter(last Position) bool {
	if p.Epoch == 0 {
		return p.compareInHistory(last) > 0
	}
	return p.Compare(last) > 0
}

// hasOrder reports whether positions p and q have an order: they are of one slot. A position of version 1 does not
// name its slot, and counts as one of any slot of its server.
func (p Position) hasOrder(q Position) bool {
	return p.System == q.System && (p.Slot == "" || q.Slot == "" || p.Database == q.Database && p.Slot == q.Slot)
}

// isSame reports whether p and q are positions of one event. The daemon may have sent its record once with an origin
// and once without.
func (p Position) isSame(q Position) bool { return p.hasOrder(q) && p.compareInHistory(q) == 0 }

func containsEvent(positions []Position, p Position) bool {
	return slices.ContainsFunc(positions, p.isSame)
}

// parsePositions parses positions that are separated by spaces.
func parsePositions(text string) (positions []Position, err error) {
	for field := range strings.FieldsSeq(text) {
		p, err := ParsePosition(field)
		if err != nil {
			return nil, err
		}
		positions = append(positions, p)
	}
	return positions, nil
}

func formatPositions(positions []Position) string {
	texts := make([]string, len(positions))
	for i, p := range positions {
		texts[i] = p.String()
	}
	return strings.Join(texts, " ")
}
