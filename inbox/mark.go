package inbox

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// maxRecent is the number of positions that a mark remembers besides the last one.
const maxRecent = 64

// Advance adds a position that was handled.
func (m *Mark) Advance(p Position) {
	if i := slices.Index(m.Accepted, p); i >= 0 {
		m.Accepted = slices.Delete(slices.Clone(m.Accepted), i, i+1)
		if i, _ := slices.BinarySearchFunc(m.Recent, p, Position.Compare); i > 0 && p.System == m.Position.System {
			m.Recent = slices.Insert(slices.Clone(m.Recent), i, p)
		}
		return // the mark stays where it is
	}
	if p.System != m.Position.System {
		former := slices.DeleteFunc(slices.Clone(m.Former), func(q Position) bool { return q.System == p.System })
		if m.Position != (Position{}) {
			former = append(former, m.Position)
		}
		m.Former, m.Recent = former, nil
	}
	m.Position = p
	m.Recent = append(m.Recent[max(0, len(m.Recent)-maxRecent+1):len(m.Recent):len(m.Recent)], p)
}

// IsNew reports whether a record at p is new to a consumer with a mark. A record that is not new is a duplicate: its position is that of a
// record that was handled, as far back as the mark remembers, or is before all of these.
func (s *Store) IsNew(p Position, m Mark) (bool, error) {
	if m.Position == (Position{}) || slices.Contains(m.Accepted, p) {
		return true, nil
	}
	if p.System != m.Position.System {
		if !slices.Contains(s.Systems, m.Position.System) || !slices.Contains(s.Systems, p.System) {
			return false, &OtherSystemError{Mark: m.Position, Record: p}
		}
		i := slices.IndexFunc(m.Former, func(q Position) bool { return q.System == p.System })
		return i < 0 || p.Compare(m.Former[i]) > 0, nil
	}
	if p.Compare(m.Position) > 0 {
		return true, nil
	}
	if len(m.Recent) > 0 && p.Compare(m.Recent[0]) > 0 && !slices.Contains(m.Recent, p) {
		return false, &OrderError{Mark: m.Position, Record: p}
	}
	return false, nil
}

// encodeRecent packs positions of one system into 16 bytes each.
func encodeRecent(positions []Position) []byte {
	b := make([]byte, 0, 16*len(positions))
	for _, p := range positions {
		b = binary.BigEndian.AppendUint32(b, p.Timeline)
		b = binary.BigEndian.AppendUint64(b, p.CommitLSN)
		b = binary.BigEndian.AppendUint32(b, p.Ordinal)
	}
	return b
}

func decodeRecent(b []byte, system uint64) (positions []Position) {
	for ; len(b) >= 16; b = b[16:] {
		positions = append(positions, Position{system, binary.BigEndian.Uint32(b), binary.BigEndian.Uint64(b[4:]), binary.BigEndian.Uint32(b[12:])})
	}
	return positions
}

// OrderError means that a record is neither new by its position nor a duplicate: its partition has no order of positions.
type OrderError struct {
	Mark   Position // the last one that was handled
	Record Position
}

func (e *OrderError) Error() string {
	return fmt.Sprintf("a record has position %v, which is before the last one (%v), and no such record was handled: the positions of this partition "+
		"are not in order. If two slots write to the topic (also of two databases of one server): handle its records by id (ByID). If keys have changed "+
		"their partition (added partitions, changed routing), or an event was skipped and is sent after all: Store.AcceptRecord takes this record for new", e.Record, e.Mark)
}

// OtherSystemError means that a record comes from another database server than the records before it.
type OtherSystemError struct {
	Mark   Position // the last one that was handled
	Record Position
}

func (e *OtherSystemError) Error() string {
	return fmt.Sprintf("a record has position %v of system %d, and the records before it are of system %d (last: %v), which cannot be compared. "+
		"If the server was replaced (major upgrade, move), or two servers write to this topic, with one slot each: set Store.Systems to {%[3]d, %[2]d}. "+
		"If several slots of one server write to it: handle its records by id (ByID)", e.Record, e.Record.System, e.Mark.System, e.Mark)
}
