package recovery

import (
	"hash/maphash"
	"slices"

	"github.com/outboxcdc/outboxcdc/internal/audit"
	"github.com/outboxcdc/outboxcdc/router"
)

// Event tells an event from others: an id can be used again, also with its key.
type Event struct {
	Topic, ID, Key string
	Value          uint64 // its hash
}

func eventOf(topic string, rec *router.Record, r *router.Router) Event {
	return Event{topic, string(rec.ID), string(rec.Key), audit.Hash(r, rec.Value)}
}

// Set is a set of events. It keeps 8 bytes of each. Two events may count as one, so that a row that is not in the set
// may be sent, which is a duplicate. A row that is in the set is always found.
type Set struct {
	hashes []uint64
	sorted bool
}

var seed = maphash.MakeSeed()

// Add adds an event.
func (s *Set) Add(e Event) { s.hashes, s.sorted = append(s.hashes, maphash.Comparable(seed, e)), false }

// AddAll adds the events of another set.
func (s *Set) AddAll(other *Set) { s.hashes, s.sorted = append(s.hashes, other.hashes...), false }

// Has reports whether the set has the event.
func (s *Set) Has(e Event) bool {
	if !s.sorted {
		slices.Sort(s.hashes)
		s.sorted = true
	}
	_, found := slices.BinarySearch(s.hashes, maphash.Comparable(seed, e))
	return found
}

// Len is the number of events that were added.
func (s *Set) Len() int { return len(s.hashes) }
