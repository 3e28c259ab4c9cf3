package checkpoint

import (
	"cmp"
	"hash/maphash"
	"slices"
	"sync"

	"github.com/jackc/pglogrepl"
)

// Found is a set of single events that are known to be in Kafka, because a record of theirs was read there or acknowledged. An
// event is known again by its position and its id: the position alone names another event if the settings that number events have
// changed, or if the server is an older copy that uses its LSNs again.
//
// All methods may be called by any goroutine.
type Found struct {
	seed maphash.Seed

	mu     sync.Mutex
	events []foundEvent
	sorted bool
	full   bool
}

// foundEvent is 24 bytes. The system identifier is the same for all.
type foundEvent struct {
	lsn      pglogrepl.LSN
	timeline int32
	ordinal  uint32
	id       uint64 // hash
}

// MaxFound bounds the events of a [Found], which take 24 bytes each. Beyond it fewer events are known, so that some are sent again.
const MaxFound = 1 << 19

// NewFound returns an empty set.
func NewFound() *Found { return &Found{seed: maphash.MakeSeed()} }

// Hash is what the set keeps of an event's id.
func (f *Found) Hash(id []byte) uint64 { return maphash.Bytes(f.seed, id) }

// Add notes an event, of which hash is the id's. False: the set is full, and the event is not noted.
func (f *Found) Add(p Position, hash uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.full {
		return false
	}
	if len(f.events) == MaxFound { // perhaps of duplicates
		f.sort()
		f.events = slices.Compact(f.events)
		if f.full = len(f.events) == MaxFound; f.full {
			return false
		}
	}
	f.events = append(f.events, foundEvent{p.CommitLSN, p.Timeline, p.Ordinal, hash})
	f.sorted = false
	return true
}

// Has reports whether the event at p, which has this id, was noted.
func (f *Found) Has(p Position, id []byte) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.events) == 0 {
		return false
	}
	f.sort()
	_, has := slices.BinarySearchFunc(f.events, foundEvent{p.CommitLSN, p.Timeline, p.Ordinal, f.Hash(id)}, foundEvent.compare)
	return has
}

// Forget drops all events for which drop is true. The positions that it is called with have no system identifier.
func (f *Found) Forget(drop func(Position) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = slices.DeleteFunc(f.events, func(e foundEvent) bool {
		return drop(Position{Timeline: e.timeline, CommitLSN: e.lsn, Ordinal: e.ordinal})
	})
	f.full = false
	if cap(f.events) > 4*len(f.events) {
		f.events = slices.Clip(slices.Clone(f.events))
	}
}

// Len is the number of events noted; full: there were more.
func (f *Found) Len() (n int, full bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.events), f.full
}

func (f *Found) sort() {
	if !f.sorted {
		slices.SortFunc(f.events, foundEvent.compare)
		f.sorted = true
	}
}

func (e foundEvent) compare(g foundEvent) int {
	return cmp.Or(cmp.Compare(e.lsn, g.lsn), cmp.Compare(e.ordinal, g.ordinal), cmp.Compare(e.timeline, g.timeline), cmp.Compare(e.id, g.id))
}
