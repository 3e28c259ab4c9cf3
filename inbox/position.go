package inbox

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Position is the identity of an event: the header outboxcdc-position. The zero value means none.
type Position struct {
	System    uint64 // the system identifier of the database server
	Timeline  uint32
	CommitLSN uint64
	Ordinal   uint32
}

// ParsePosition parses the value of the header outboxcdc-position, "1:<system id>:<timeline>:<commit LSN, 16 hex digits>:<ordinal>".
func ParsePosition(header string) (Position, error) {
	f := strings.Split(header, ":")
	if f[0] != "1" && len(f) > 1 {
		return Position{}, fmt.Errorf("outboxcdc-position %q has version %s, and this version of the inbox reads version 1 only: "+
			"update the module github.com/outboxcdc/outboxcdc/inbox", header, f[0])
	}
	if len(f) != 5 || len(f[3]) != 16 {
		return Position{}, fmt.Errorf("outboxcdc-position %q: want 1:<system id>:<timeline>:<16 hex digits>:<ordinal>", header)
	}
	var n [4]uint64
	for i, size := range []struct{ base, bits int }{{10, 64}, {10, 32}, {16, 64}, {10, 32}} {
		var err error
		if n[i], err = strconv.ParseUint(f[i+1], size.base, size.bits); err != nil {
			return Position{}, fmt.Errorf("outboxcdc-position %q: %w", header, err)
		}
	}
	if n[0] == 0 {
		return Position{}, fmt.Errorf("outboxcdc-position %q has no system id", header)
	}
	return Position{n[0], uint32(n[1]), n[2], uint32(n[3])}, nil
}

// String returns the value of the header.
func (p Position) String() string {
	return fmt.Sprintf("1:%d:%d:%016x:%d", p.System, p.Timeline, p.CommitLSN, p.Ordinal)
}

// Compare compares two positions of one system. The timeline comes first: a failover goes back in LSNs.
func (p Position) Compare(q Position) int {
	return cmp.Or(cmp.Compare(p.Timeline, q.Timeline), cmp.Compare(p.CommitLSN, q.CommitLSN), cmp.Compare(p.Ordinal, q.Ordinal))
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
