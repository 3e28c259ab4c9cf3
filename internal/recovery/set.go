// Package recovery sends rows of outbox tables to Kafka, for the commands recover, backfill and replay. Which rows they are is decided by
// others: for recover and backfill by package audit, for replay by the user.
package recovery

import (
	"hash/maphash"
	"slices"
)

// Set is a set of events, by topic and id: tables with different topics may have the same ids. It keeps 8 bytes of each. Two events may
// count as one, so that a row that is not in the set may be sent, which is a duplicate. A row that is in the set is always found.
type Set struct {
	seed   maphash.Seed
	hashes []uint64
	sorted bool
}

// NewSet returns an empty set.
func NewSet() *Set { return &Set{seed: maphash.MakeSeed()} }

// Add adds an event.
func (s *Set) Add(topic string, id []byte) {
	s.hashes, s.sorted = append(s.hashes, s.hash(topic, id)), false
}

func (s *Set) hash(topic string, id []byte) uint64 {
	var h maphash.Hash
	h.SetSeed(s.seed)
	h.WriteString(topic) //nolint:errcheck // never fails
	h.WriteByte(0)       //nolint:errcheck // never fails
	h.Write(id)          //nolint:errcheck // never fails
	return h.Sum64()
}

// Has reports whether the set has the event.
func (s *Set) Has(topic string, id []byte) bool {
	if !s.sorted {
		slices.Sort(s.hashes)
		s.sorted = true
	}
	_, found := slices.BinarySearch(s.hashes, s.hash(topic, id))
	return found
}

// Len is the number of events that were added.
func (s *Set) Len() int { return len(s.hashes) }
