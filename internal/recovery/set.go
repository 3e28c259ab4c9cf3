package recovery

import (
	"encoding/binary"
	"hash/maphash"
	"slices"
)

// Set is a set of events, by topic, id and key: an id can be used again. It keeps 8 bytes of each. Two events may
// count as one, so that a row that is not in the set may be sent, which is a duplicate. A row that is in the set is always found.
type Set struct {
	seed   maphash.Seed
	hashes []uint64
	sorted bool
}

// NewSet returns an empty set.
func NewSet() *Set { return &Set{seed: maphash.MakeSeed()} }

// Add adds an event.
func (s *Set) Add(topic string, id, key []byte) {
	s.hashes, s.sorted = append(s.hashes, s.hash(topic, id, key)), false
}

func (s *Set) hash(topic string, id, key []byte) uint64 {
	var h maphash.Hash
	h.SetSeed(s.seed)
	h.WriteString(topic)                                //nolint:errcheck // never fails
	h.WriteByte(0)                                      //nolint:errcheck // never fails
	h.Write(binary.AppendUvarint(nil, uint64(len(id)))) //nolint:errcheck // never fails
	h.Write(id)                                         //nolint:errcheck // never fails
	h.Write(key)                                        //nolint:errcheck // never fails
	return h.Sum64()
}

// Has reports whether the set has the event.
func (s *Set) Has(topic string, id, key []byte) bool {
	if !s.sorted {
		slices.Sort(s.hashes)
		s.sorted = true
	}
	_, found := slices.BinarySearch(s.hashes, s.hash(topic, id, key))
	return found
}

// Len is the number of events that were added.
func (s *Set) Len() int { return len(s.hashes) }

// Sets are several sets as one.
type Sets []*Set

// Has reports whether one of the sets has the event.
func (s Sets) Has(topic string, id, key []byte) bool {
	return slices.ContainsFunc(s, func(one *Set) bool { return one.Has(topic, id, key) })
}

// Len is the number of events that were added.
func (s Sets) Len() (n int) {
	for _, one := range s {
		n += one.Len()
	}
	return n
}
