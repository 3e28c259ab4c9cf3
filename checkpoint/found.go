package checkpoint

import (
	"cmp"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/jackc/pglogrepl"
)

// Found is the events in doubt whose records were read at the ends of partitions. A record counts only if no older
// event of its key was sent after it. Otherwise a reader would see the older state last: the event has to be sent
// again, too. An older event was sent after it if a later session has sent its record, or if its record follows in the
// same partition. A session sends in the order of the stream.
//
// The letters of held keys count in the same way: a command sends them to the topic of their key, in their order. Other
// dead letters are in no order.
//
// The records of a partition may be noted in any order, and more than once. All methods may be called by any goroutine.
type Found struct {
	seed    maphash.Seed
	isEmpty atomic.Bool   // avoids the lock
	newest  atomic.Uint64 // commit LSN of the newest event

	mu      sync.Mutex
	parts   map[partitionID]uint32  // index into settled
	settled []int64                 // by partition: the offset of the last record of an event that is settled; -1: none
	turns   map[int64]uint32        // by producer id: the turns of processes in their order
	others  map[uint64][]otherEvent // by key
	records []foundRecord
	isTidy  bool   // all records count, and are in the order of their events
	full    bool   // records had no room
	lost    uint32 // the newest sender of those, and of other records that are not kept
	unknown uint32 // the newest session, by Search.Others, of which a record may be missing in others
}

type partitionID struct {
	topic string
	id    int32
}

// foundRecord is a record of an event that is not settled.
type foundRecord struct {
	event     eventKey
	key       uint64 // hash of the topic and the key in which it is in order; 0: in none
	offset    int64
	partition uint32
	sender    uint32 // number of the session that has sent it: see Found.sender
}

// otherEvent is the oldest event of a key that other processes have sent in what counts as one session.
type otherEvent struct {
	event   eventKey
	session uint32 // by Search.Others
}

// NewFound returns an empty set.
func NewFound() *Found {
	f := &Found{seed: maphash.MakeSeed(), parts: map[partitionID]uint32{}, turns: map[int64]uint32{}, others: map[uint64][]otherEvent{}}
	f.isEmpty.Store(true)
	return f
}

// OwnRecord is an own record of an event that the server has.
type OwnRecord struct {
	Topic     string
	Partition int32
	Offset    int64
	Producer  int64 // id
	Epoch     int16 // of the producer
	Position  Position
	ID        []byte
	// KeyTopic and Key say in which order the event is: that of the key in the topic, which for a letter is not the topic
	// of the record. A nil key is in no order.
	KeyTopic string
	Key      []byte
}

// Note notes a record.
func (q *Search) Note(r *OwnRecord) {
	f, p := q.Found, r.Position
	f.mu.Lock()
	defer f.mu.Unlock()
	partition := f.partition(partitionID{r.Topic, r.Partition})
	switch {
	case p.Compare(q.Settled) <= 0: // those before it may not count because of it
		f.settled[partition] = max(f.settled[partition], r.Offset)
		f.isTidy = false
		return
	case p.CommitLSN >= q.Until:
		return
	}
	sender := f.sender(q.Producers, r)
	if len(f.records) == MaxEvents && !f.full { // records that do not count may take up room
		f.tidy()
		f.forgetAcked(q.Acked)
		f.full = len(f.records) > MaxEvents/16*15 // otherwise each record that does not count would lead to this again
	}
	f.isTidy = false
	rec := foundRecord{
		event:  eventKey{p.CommitLSN, p.Timeline, p.Ordinal, f.hash(r.ID)},
		offset: r.Offset, partition: partition, sender: sender,
	}
	if f.full {
		f.lose(&rec)
		f.unknown = max(f.unknown, q.Others[r.Producer])
		return
	}
	if r.Key != nil {
		rec.key = KeyHash(f.seed, r.KeyTopic, r.Key)
	}
	if session := q.Others[r.Producer]; session > 0 && rec.key != 0 {
		f.noteOther(rec.key, otherEvent{rec.event, session})
	}
	f.records = append(f.records, rec)
	f.newest.Store(max(f.newest.Load(), uint64(p.CommitLSN)))
	f.isEmpty.Store(false)
}

func (f *Found) hash(id []byte) uint64 { return maphash.Bytes(f.seed, id) }

// KeyHash identifies a key of a topic. It is not 0.
func KeyHash(seed maphash.Seed, topic string, key []byte) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	_, _ = h.WriteString(topic)
	_ = h.WriteByte(0) // no topic has it
	_, _ = h.Write(key)
	return max(1, h.Sum64())
}

func (f *Found) partition(at partitionID) uint32 {
	n, known := f.parts[at]
	if !known {
		n = uint32(len(f.settled))
		f.parts[at], f.settled = n, append(f.settled, -1)
	}
	return n
}

// sender returns the number of the session that has sent a record: a producer id is that of one turn of a process, as
// [PositionRecord.HasTurnAfter] says, and each session of the turn has its next epoch. The searches of a process name
// the producers in the order of their turns, and each search those of the one before.
func (f *Found) sender(producers []int64, r *OwnRecord) uint32 {
	if _, known := f.turns[r.Producer]; !known {
		for _, id := range producers {
			if _, known := f.turns[id]; !known {
				f.turns[id] = uint32(len(f.turns) + 1)
			}
		}
	}
	return f.turns[r.Producer]<<16 | uint32(uint16(r.Epoch))
}

// tidy removes the records that do not count, and sorts the rest.
func (f *Found) tidy() {
	if f.isTidy {
		return
	}
	f.records = slices.DeleteFunc(f.records, func(r foundRecord) bool {
		return r.offset < f.settled[r.partition] || r.key != 0 && r.sender < f.lost
	})
	f.removeOvertaken(func(a, b *foundRecord) int { // what follows in the partition, from the end
		return cmp.Or(cmp.Compare(a.partition, b.partition), cmp.Compare(b.offset, a.offset))
	}, func(a, b *foundRecord) bool { return a.partition == b.partition })
	f.removeOvertaken(func(a, b *foundRecord) int { // what later sessions have sent; each one is in order
		return cmp.Or(cmp.Compare(b.sender, a.sender), b.event.compare(a.event))
	}, func(_, _ *foundRecord) bool { return true })
	slices.SortFunc(f.records, func(a, b foundRecord) int {
		return cmp.Or(a.event.compare(b.event), cmp.Compare(b.sender, a.sender), cmp.Compare(b.offset, a.offset))
	})
	f.records = slices.CompactFunc(f.records, func(a, b foundRecord) bool { return a.event == b.event && a.key == b.key })
	f.isTidy = true
}

// lose notes that a record is not kept. Those that were sent before it may not count because of it.
func (f *Found) lose(r *foundRecord) {
	f.settled[r.partition], f.lost = max(f.settled[r.partition], r.offset), max(f.lost, r.sender)
}

// forgetAcked makes room if most of it is taken. A session that delivers a long backlog is not settled, so there may be
// any number of records at or before the acked position. They matter only because of those that were sent before them.
func (f *Found) forgetAcked(acked Position) {
	if len(f.records) <= MaxEvents/16*15 {
		return
	}
	f.records = slices.DeleteFunc(f.records, func(r foundRecord) bool {
		if r.event.isAfter(eventKey{lsn: acked.CommitLSN, ordinal: acked.Ordinal}) {
			return false
		}
		f.lose(&r)
		return true
	})
}

// removeOvertaken sorts the records of each key by later, and removes those after which an older event was sent.
func (f *Found) removeOvertaken(later func(a, b *foundRecord) int, same func(a, b *foundRecord) bool) {
	slices.SortFunc(f.records, func(a, b foundRecord) int { return cmp.Or(cmp.Compare(a.key, b.key), later(&a, &b)) })
	kept := f.records[:0]
	var oldest, last foundRecord
	for i, r := range f.records {
		if i == 0 || r.key != last.key || !same(&r, &last) {
			oldest = r
		}
		last = r
		if r.key != 0 && r.event.isAfter(oldest.event) {
			continue
		}
		oldest = r
		kept = append(kept, r)
	}
	f.records = kept
}

func (e eventKey) isAfter(g eventKey) bool {
	return cmp.Or(cmp.Compare(e.lsn, g.lsn), cmp.Compare(e.ordinal, g.ordinal)) > 0
}

// Has reports whether a record of the event at p with this id counts.
func (f *Found) Has(p Position, id []byte) bool {
	if f.isEmpty.Load() {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tidy()
	_, has := slices.BinarySearchFunc(f.records, eventKey{p.CommitLSN, p.Timeline, p.Ordinal, f.hash(id)}, func(r foundRecord, want eventKey) int { return r.event.compare(want) })
	return has
}

// LastOther returns the last session of other processes, by [Search.Others], that has sent an event of the key that is
// older than the one at p; 0: none has.
func (f *Found) LastOther(p Position, topic string, key []byte) (session uint32) {
	if key == nil || f.isEmpty.Load() {
		return 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	session = f.unknown
	if len(f.others) == 0 {
		return session
	}
	for _, o := range f.others[KeyHash(f.seed, topic, key)] {
		if (eventKey{lsn: p.CommitLSN, ordinal: p.Ordinal}).isAfter(o.event) {
			session = max(session, o.session)
		}
	}
	return session
}

// NoteUnread notes that an end was not read as far as necessary, so that other processes may have sent any event.
func (q *Search) NoteUnread() {
	f := q.Found
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, session := range q.Others {
		f.unknown = max(f.unknown, session)
		f.isEmpty.Store(false)
	}
}

func (f *Found) noteOther(key uint64, other otherEvent) {
	for i, o := range f.others[key] {
		if o.session == other.session {
			if o.event.isAfter(other.event) {
				f.others[key][i] = other
			}
			return
		}
	}
	f.others[key] = append(f.others[key], other)
}

// Newest returns the commit LSN of the newest event of which a record was noted.
func (f *Found) Newest() pglogrepl.LSN { return pglogrepl.LSN(f.newest.Load()) }

// AllPartitions are all partitions of a topic.
const AllPartitions = -1

// Forget removes the records of a partition, or of AllPartitions, because an end can no longer be read.
func (f *Found) Forget(topic string, partition int32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for at, n := range f.parts {
		if at.topic == topic && (at.id == partition || partition == AllPartitions) {
			f.records = slices.DeleteFunc(f.records, func(r foundRecord) bool { return r.partition == n })
			f.settled[n] = -1
		}
	}
}

// Topics returns the topics with records, sorted. A later session has to read on in them: it may have been an earlier
// event that was sent last.
func (f *Found) Topics() (topics []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	has := make([]bool, len(f.settled))
	for i := range f.records {
		has[f.records[i].partition] = true
	}
	for at, n := range f.parts {
		if has[n] {
			topics = append(topics, at.topic)
		}
	}
	slices.Sort(topics)
	return slices.Compact(topics)
}

// Len returns the number of records, and whether the set had no room for others.
func (f *Found) Len() (n int, full bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.records), f.full
}
