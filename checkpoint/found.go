package checkpoint

import (
	"cmp"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
)

// Found is the events in doubt whose records were read at the ends of partitions. A record counts only if no record
// of an earlier event follows it in its partition. Otherwise that earlier event was sent again after it, and a reader
// of the partition would see the older state last: the later event has to be sent again, too. The letters of held keys
// have no such order: those of a key are always in order, and those of several keys need none. But once an event was
// sent again to its partition, a letter of a later event is overtaken: an older event of its key may have been sent
// again, too.
//
// The records of a partition may be noted in any order, and more than once. All methods may be called by any goroutine.
type Found struct {
	seed    maphash.Seed
	isEmpty atomic.Bool // avoids the lock

	mu      sync.Mutex
	parts   map[partitionID]*foundRecords
	count   int
	full    bool
	index   []eventKey // of the records that count, without letters; nil: to be built
	letters []eventKey // of held keys
	resent  *eventKey  // the first event that was sent again after a later one; nil: none was
}

type partitionID struct {
	topic string
	id    int32
}

// foundRecords are the records of one partition.
type foundRecords struct {
	records []foundRecord
	settled foundRecord // the last record of an event that is not in doubt; offset -1: none
	letters bool        // of held keys
	resent  *eventKey   // the first event that was sent again after a later one; nil: none was
}

type foundRecord struct {
	offset int64
	event  eventKey
}

// NewFound returns an empty set.
func NewFound() *Found {
	f := &Found{seed: maphash.MakeSeed(), parts: map[partitionID]*foundRecords{}}
	f.isEmpty.Store(true)
	return f
}

// Note notes an own record of an event that the server has, at an offset of a partition.
func (q *Search) Note(topic string, partition int32, offset int64, p Position, id []byte) {
	f := q.Found
	f.mu.Lock()
	defer f.mu.Unlock()
	at := partitionID{topic, partition}
	part := f.parts[at]
	if part == nil {
		part = &foundRecords{settled: foundRecord{offset: -1}, letters: topic == q.Letters}
		f.parts[at] = part
	}
	f.index = nil
	rec := foundRecord{offset, eventKey{p.CommitLSN, p.Timeline, p.Ordinal, f.hash(id)}}
	if p.Compare(q.Acked) <= 0 {
		part.settle(rec)
		return
	}
	if p.CommitLSN >= q.Until {
		return
	}
	if f.count == MaxEvents && !f.full { // records that do not count may take up room
		f.count = 0
		for _, part := range f.parts {
			part.tidy()
			f.count += len(part.records)
		}
		f.full = f.count > MaxEvents/16*15 // otherwise each record that does not count would lead to this again
	}
	if f.full { // those before this one may not count because of it
		part.settle(foundRecord{offset: offset})
		return
	}
	f.count++
	part.records = append(part.records, rec)
	f.isEmpty.Store(false)
}

func (f *Found) hash(id []byte) uint64 { return maphash.Bytes(f.seed, id) }

// tidy removes the records that do not count. Those that remain are in the order of their offsets and of their
// positions.
func (r *foundRecords) tidy() {
	slices.SortFunc(r.records, func(a, b foundRecord) int { return cmp.Compare(a.offset, b.offset) })
	if r.letters {
		return
	}
	kept := r.records[:0]
	for _, rec := range r.records {
		if rec.offset < r.settled.offset {
			if rec.event.isAfter(r.settled.event) {
				r.noteResent(r.settled.event)
			}
			continue
		}
		for len(kept) > 0 && (kept[len(kept)-1].event.isAfter(rec.event) || kept[len(kept)-1].event == rec.event) {
			if kept[len(kept)-1].offset != rec.offset {
				r.noteResent(rec.event)
			}
			kept = kept[:len(kept)-1]
		}
		kept = append(kept, rec)
	}
	r.records = kept
}

func (r *foundRecords) settle(rec foundRecord) {
	if rec.offset > r.settled.offset {
		r.settled = rec
	}
}

func (r *foundRecords) noteResent(e eventKey) {
	if r.resent == nil || r.resent.isAfter(e) {
		r.resent = &e
	}
}

func (e eventKey) isAfter(g eventKey) bool {
	return cmp.Or(cmp.Compare(e.lsn, g.lsn), cmp.Compare(e.ordinal, g.ordinal)) > 0
}

// Has reports whether a record of the event at p with this id counts, or is a letter of a held key.
func (f *Found) Has(p Position, id []byte) bool {
	if f.isEmpty.Load() {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.in(&f.index, p, id) || f.in(&f.letters, p, id)
}

// HasLetter reports whether there is a letter of a held key of the event at p with this id, and whether an older event
// of its key may have been sent again after it. An event that also has a record that counts is judged by that.
func (f *Found) HasLetter(p Position, id []byte) (has, overtaken bool) {
	if f.isEmpty.Load() {
		return false, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	has = f.in(&f.letters, p, id) && !f.in(&f.index, p, id)
	return has, has && f.resent != nil && eventKey{lsn: p.CommitLSN, ordinal: p.Ordinal}.isAfter(*f.resent)
}

// in looks an event up in one of the indexes.
func (f *Found) in(index *[]eventKey, p Position, id []byte) bool {
	if f.index == nil {
		f.build()
	}
	_, has := slices.BinarySearchFunc(*index, eventKey{p.CommitLSN, p.Timeline, p.Ordinal, f.hash(id)}, eventKey.compare)
	return has
}

func (f *Found) build() {
	f.index, f.letters, f.resent = make([]eventKey, 0, f.count), nil, nil
	for _, part := range f.parts {
		part.tidy()
		index := &f.index
		if part.letters {
			index = &f.letters
		}
		for _, rec := range part.records {
			*index = append(*index, rec.event)
		}
		if e := part.resent; e != nil && (f.resent == nil || f.resent.isAfter(*e)) {
			f.resent = e
		}
	}
	f.count = len(f.index) + len(f.letters)
	slices.SortFunc(f.index, eventKey.compare)
	slices.SortFunc(f.letters, eventKey.compare)
}

// AllPartitions are all partitions of a topic.
const AllPartitions = -1

// Forget removes the records of a partition, or of AllPartitions, because an end can no longer be read.
func (f *Found) Forget(topic string, partition int32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for at, part := range f.parts {
		if at.topic == topic && (at.id == partition || partition == AllPartitions) {
			f.count -= len(part.records)
			delete(f.parts, at)
		}
	}
	f.index = nil
}

// Topics returns the topics with records, sorted. A later session has to read on in them: it may have been an earlier
// event that was sent last.
func (f *Found) Topics() (topics []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for at := range f.parts {
		topics = append(topics, at.topic)
	}
	slices.Sort(topics)
	return slices.Compact(topics)
}

// Len returns the number of records, and whether the set had no room for others.
func (f *Found) Len() (n int, full bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count, f.full
}
