package checkpoint

import "slices"

// HasTurnAfter reports whether another process has had the slot since the process with this producer id. A process that
// gets the slot back needs a new id: then the order of Producers is that in which all their sessions were. An id that
// was used and that the record does not name had its turn before those that it names.
func (s *PositionRecord) HasTurnAfter(producer int64, used bool) bool {
	i := slices.Index(s.Producers, producer)
	return (i >= 0 || used) && i < len(s.Producers)-1
}

// addTurns adds the producers of an older list to those of a newer one, and returns them. The newer one decides about
// the order. It may lack some, because of Settle, or because its writer had not read of them: those stay behind what
// they follow in the older one.
func addTurns(turns, older []int64) (all []int64) {
	behind := map[int64][]int64{} // by the producer that they follow; -1: none
	for _, id := range turns {
		behind[id] = nil
	}
	follows := int64(-1)
	for _, id := range older {
		if _, known := behind[id]; known {
			follows = id
		} else {
			behind[follows] = append(behind[follows], id)
		}
	}
	for _, id := range turns {
		all = append(append(all, id), behind[id]...)
	}
	return append(behind[-1], all...)
}
