// Package recovery sends rows of outbox tables to Kafka, for the commands recover, backfill and replay. Which rows they are is decided by
// others: for recover and backfill by package audit, for replay by the user.
package recovery

import (
	"hash/maphash"
	"slices"
)

// Set is a set of event ids. It keeps 8 bytes of each: two ids may count as one, so that a row that is not in the set may be sent, which
// is a duplicate. A row that is in the set is always found.
type Set struct {
	seed   maphash.Seed
	hashes []uint64
	sorted bool
}

// NewSet returns an empty set.
func NewSet() *Set { return &Set{seed: maphash.MakeSeed()} }

// Add adds an id.
func (s *Set) Add(id []byte) {
	s.hashes, s.sorted = append(s.hashes, maphash.Bytes(s.seed, id)), false
}

// Has reports whether the set has the id.
func (s *Set) Has(id []byte) bool {
	if !s.sorted {
		slices.Sort(s.hashes)
		s.sorted = true
	}
	_, found := slices.BinarySearch(s.hashes, maphash.Bytes(s.seed, id))
	return found
}

// Len is the number of ids that were added.
func (s *Set) Len() int { return len(s.hashes) }
