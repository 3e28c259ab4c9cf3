package checkpoint

import (
	"cmp"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/jackc/pglogrepl"
)

// EventSet is a set of single events that are in Kafka, because their records were acknowledged. An event is
// recognised by its position and its id: the position alone names another event if the settings that number events
// have changed, or if the server is an older copy that uses its LSNs again.
//
// All methods may be called by any goroutine.
type EventSet struct {
	seed maphash.Seed

	isEmpty atomic.Bool // avoids the lock; it is false before an Add returns

	mu      sync.Mutex
	events  []ackedEvent
	session uint32
	sorted  bool
	full    bool
}

// ackedEvent is an event, and the number of the session in which it was acknowledged.
type ackedEvent struct {
	eventKey
	session uint32
}

// eventKey identifies an event. The system identifier is the same for all events.
type eventKey struct {
	lsn      pglogrepl.LSN
	timeline int32
	ordinal  uint32
	id       uint64 // hash
}

// MaxEvents is the maximum number of events in an [EventSet]. Events that no longer fit are sent again.
const MaxEvents = 1 << 19

// NewEventSet returns an empty set.
func NewEventSet() *EventSet {
	s := &EventSet{seed: maphash.MakeSeed()}
	s.isEmpty.Store(true)
	return s
}

// Hash is the form in which the set keeps an event's id.
func (s *EventSet) Hash(id []byte) uint64 { return maphash.Bytes(s.seed, id) }

// NextSession counts the sessions of the process, from 1. The events that are added next belong to this one.
func (s *EventSet) NextSession() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.session++
	return s.session
}

// Session returns the number of the last session.
func (s *EventSet) Session() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.session
}

// Add adds an event, whose id has this hash. It reports false if the set is full.
func (s *EventSet) Add(p Position, hash uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.full {
		return false
	}
	if len(s.events) == MaxEvents { // duplicates may take up room
		s.sort()
		s.events = slices.CompactFunc(s.events, func(a, b ackedEvent) bool { return a.eventKey == b.eventKey })
		if s.full = len(s.events) == MaxEvents; s.full {
			return false
		}
	}
	s.events = append(s.events, ackedEvent{eventKey{p.CommitLSN, p.Timeline, p.Ordinal, hash}, s.session})
	s.isEmpty.Store(false)
	s.sorted = false
	return true
}

// Has reports whether the set has the event at p with this id, and the last session in which it was acknowledged.
func (s *EventSet) Has(p Position, id []byte) (session uint32, has bool) {
	if s.isEmpty.Load() {
		return 0, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sort()
	want := eventKey{p.CommitLSN, p.Timeline, p.Ordinal, s.Hash(id)}
	i, has := slices.BinarySearchFunc(s.events, want, func(e ackedEvent, want eventKey) int { return e.eventKey.compare(want) })
	if !has {
		return 0, false
	}
	return s.events[i].session, true
}

// Newest returns the commit LSN of the newest event.
func (s *EventSet) Newest() (newest pglogrepl.LSN) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.events {
		newest = max(newest, s.events[i].lsn)
	}
	return newest
}

// Forget removes all events for which drop returns true. The positions passed to drop have no system identifier.
func (s *EventSet) Forget(drop func(Position) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = slices.DeleteFunc(s.events, func(e ackedEvent) bool {
		return drop(Position{Timeline: e.timeline, CommitLSN: e.lsn, Ordinal: e.ordinal})
	})
	s.full = false
	s.isEmpty.Store(len(s.events) == 0)
	if cap(s.events) > 4*len(s.events) {
		s.events = slices.Clip(slices.Clone(s.events))
	}
}

// Len returns the number of events, and whether the set had no room for others.
func (s *EventSet) Len() (n int, full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.events), s.full
}

func (s *EventSet) sort() {
	if !s.sorted {
		slices.SortFunc(s.events, func(a, b ackedEvent) int { // the last session first
			return cmp.Or(a.eventKey.compare(b.eventKey), cmp.Compare(b.session, a.session))
		})
		s.sorted = true
	}
}

func (e eventKey) compare(g eventKey) int {
	return cmp.Or(cmp.Compare(e.lsn, g.lsn), cmp.Compare(e.ordinal, g.ordinal), cmp.Compare(e.timeline, g.timeline), cmp.Compare(e.id, g.id))
}
