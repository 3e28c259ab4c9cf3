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
	if i := slices.IndexFunc(m.Accepted, p.isSame); i >= 0 {
		m.Accepted = slices.Delete(slices.Clone(m.Accepted), i, i+1)
		if i, _ := slices.BinarySearchFunc(m.Recent, p, Position.Compare); i > 0 && p.hasOrder(m.Position) {
			m.Recent = slices.Insert(slices.Clone(m.Recent), i, p)
		}
		return // the mark stays where it is
	}
	if !p.hasOrder(m.Position) {
		former := slices.DeleteFunc(slices.Clone(m.Former), p.hasOrder)
		if m.Position != (Position{}) {
			former = append(former, m.Position)
		}
		m.Former, m.Recent = former, nil
	}
	m.Position = p
	m.Recent = append(m.Recent[max(0, len(m.Recent)-maxRecent+1):len(m.Recent):len(m.Recent)], p)
}

// IsNew reports whether a record at p is new to a consumer with a mark. A record that is not new is a duplicate: its
// position is that of a record that was handled, as far back as the mark remembers, or is before all of these. Only
// positions of one slot are compared: the mark has the last one of each.
func (s *Store) IsNew(p Position, m Mark) (bool, error) {
	if m.Position == (Position{}) || containsEvent(m.Accepted, p) {
		return true, nil
	}
	if p.System != m.Position.System && (!slices.Contains(s.Systems, m.Position.System) || !slices.Contains(s.Systems, p.System)) {
		return false, &OtherSystemError{Mark: m.Position, Record: p}
	}
	if !p.hasOrder(m.Position) {
		i := slices.IndexFunc(m.Former, p.hasOrder)
		return i < 0 || p.isAfter(m.Former[i]), nil
	}
	if p.isAfter(m.Position) {
		return true, nil
	}
	if len(m.Recent) > 0 && p.isAfter(m.Recent[0]) && !containsEvent(m.Recent, p) {
		return false, &OrderError{Mark: m.Position, Record: p}
	}
	return false, nil
}

// recentWithEpochs is the first byte of recent positions with epochs. Without it, positions take 16 bytes each, and
// have no epochs.
const recentWithEpochs = 2

// encodeRecent packs positions of one slot.
func encodeRecent(positions []Position) []byte {
	b := make([]byte, 0, 1+20*len(positions))
	epochs := slices.ContainsFunc(positions, func(p Position) bool { return p.Epoch > 0 })
	if epochs {
		b = append(b, recentWithEpochs)
	}
	for _, p := range positions {
		if epochs {
			b = binary.BigEndian.AppendUint32(b, p.Epoch)
		}
		b = binary.BigEndian.AppendUint32(b, p.Timeline)
		b = binary.BigEndian.AppendUint64(b, p.CommitLSN)
		b = binary.BigEndian.AppendUint32(b, p.Ordinal)
	}
	return b
}

// decodeRecent unpacks positions of the slot of last.
func decodeRecent(b []byte, last Position) (positions []Position) {
	p, epochs := last, len(b)%16 != 0 // 1 + 20 n is never a multiple of 16
	if epochs {
		b = b[1:]
	}
	for len(b) >= 16 {
		if p.Epoch = 0; epochs {
			p.Epoch, b = binary.BigEndian.Uint32(b), b[4:]
		}
		p.Timeline, p.CommitLSN, p.Ordinal = binary.BigEndian.Uint32(b), binary.BigEndian.Uint64(b[4:]), binary.BigEndian.Uint32(b[12:])
		positions, b = append(positions, p), b[16:]
	}
	return positions
}

// OrderError means that a record is neither new by its position nor a duplicate: its partition has no order of
// positions.
type OrderError struct {
	Mark   Position // the last one that was handled
	Record Position
}

func (e *OrderError) Error() string {
	return fmt.Sprintf("a record has position %v, which is before the last one (%v), and no such record was handled: the positions of this partition "+
		"are not in order. If two slots write to the topic with a daemon that does not name them (version 1 of the header): update the daemon, or handle its records "+
		"by id (ByID). If keys have changed "+
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
		"If several slots of one server write to it with version 1 of the header: handle its records by id (ByID)", e.Record, e.Record.System, e.Mark.System, e.Mark)
}
