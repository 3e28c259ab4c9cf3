package relay

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/router"
)

// Runs of deduplicated delivery: the broker keeps a log of each partition and the position topic. Between two
// processes topics grow, the routing changes, and poison is fixed. Additional checks:
//
//   - only events that were acked, or found in a log, are skipped (simSink.Send)
//   - an event is not sent if a log that was read, or had to be read, has a predecessor's record of it (I12), unless
//     a record was stored late: after the log was read, or after records of a later session
//   - nor if an earlier event was sent again before it in its partition, or a record of an earlier event follows its
//     record (followsResent, I13)
//   - at the end, the last record of each key in a partition is the newest one of the key (judgeOrder, I13)
//   - a position record covers only acked events, and only positions that the newest record allows are confirmed
//   - one writer at a time: no record leaves after a session of a later stream has read the ends of its topic, and
//     records in flight then left at least half of fence_wait before (depart, judgeReading). Records that Kafka
//     stores later, or that left before their process was frozen, are counted (judgeLate)

// simFence may be shorter than the time in which a dead process's requests arrive. Repeats are excused then.
const simFence = 5*time.Second + 1_000_003

// simPartition is a partition. Topics are numbered as in simTopics.
type simPartition struct{ topic, n int }

// logged is a record of a partition.
type logged struct {
	e       *event // nil: of another slot, or no event
	pid     int64
	epoch   int16
	session int // in the order of time
	pos     checkpoint.Position
	id      string
	at      time.Time
	// late: it was in flight for longer than half of fence_wait.
	late bool
	// routed is the topic to which its event was routed, also if it is a dead letter.
	routed string
	loose  bool // it is a dead letter that holds no key: it is in no order
	// retried: a command has stored it.
	retried bool
	// gone: Kafka has deleted it, because of retention or compaction.
	gone bool
	// hidden is the number of the stream whose session did not read it, because more than look_back records of others
	// follow.
	hidden int
}

// placement is where a process sends events, according to its settings and the partition counts at its start.
type placement struct {
	counts    [simLanes / 2]int // partitions of each topic except the dead-letter topic
	partition [simLanes]int     // by lane, modulo the count
	routes    map[string]string // other topics, by aggregate type
	fixed     bool              // tooLarge events are no longer too large
}

// simDeduplication is the part of a sink for deduplicated delivery.
type simDeduplication struct {
	pid          int64
	epoch        int16
	number       int // of all sessions
	q            *checkpoint.Search
	notBefore    time.Time
	toRead       [len(simTopics)]bool // topics whose ends are to be read
	wasRead      [len(simTopics)]bool
	readAt       [len(simTopics)]time.Time
	sentUntil    [len(simTopics)]uint64 // number of the last event, and one
	seen         time.Time              // when the lease was last renewed
	lacksAnswers bool
	since        time.Time          // when the predecessor's record was loaded
	expects      pglogrepl.LSN      // commit LSN of the acked transaction of the predecessor's record
	known        bool               // there was a predecessor's record, so ends may be read
	resent       map[[2]string]bool // topics and keys of which it has sent an event in doubt
}

// TestSimDeduplicated is TestSim with deduplicated delivery, every other run with dead letters.
func TestSimDeduplicated(t *testing.T) {
	first, n := atLeastSeeds(t, 4000)
	res := simRuns(t, "random runs of deduplicated delivery, fresh seeds", "", first, func(i int) (simOptions, bool) {
		seed := first + uint64(i)
		return simOptions{seed: seed, dedup: true, dead: seed%2 == 1, twice: seed%20 == 0}, i < n
	})
	if !t.Failed() {
		res.mustReach(t, markNames[firstDeduplicated:firstAudited], 3000)
	}
}

func (w *world) deduplicates() bool { return w.cfg.Deduplication.Slot != "" }

// partitionOf returns the partition of a record.
func (f *flight) partitionOf() simPartition {
	if f.dead {
		return simPartition{len(simTopics) - 1, 0}
	}
	at := &f.by.p.placement
	return at.of(f.e.lane)
}

// queue returns the first lane whose records go to the same partition. They are stored in the order in which they
// were sent.
func (at *placement) queue(lane int) int {
	for first := range lane {
		if at.of(first) == at.of(lane) {
			return first
		}
	}
	return lane
}

// of returns the partition of the events of a lane that are no dead letters.
func (at *placement) of(lane int) simPartition {
	topic := slices.Index(simTopics[:], at.topicName(lane))
	return simPartition{topic, at.partition[lane] % at.counts[topic]}
}

// key returns the topic and the key in which an event is in order.
func (at *placement) key(e *event) [2]string { return [2]string{at.topicName(e.lane), e.key} }

func (at *placement) topicName(lane int) string {
	topic := simTopics[lane/2]
	if t, ok := at.routes[topic]; ok {
		return t
	}
	return topic
}

// append adds a record to its partition's log. w.mu is held.
func (k *simKafka) append(f *flight) {
	id, at := f.by.st.id, f.partitionOf()
	k.logs[at] = append(k.logs[at], logged{e: f.e, routed: f.by.p.placement.topicName(f.e.lane), loose: f.dead && f.letter == nil, pid: f.by.pid, epoch: f.by.epoch, session: f.by.number, pos: checkpoint.Position{
		SystemID: id.SystemID, Timeline: id.TimelineOf(f.e.tx.commit), CommitLSN: f.e.tx.commit, Ordinal: uint32(f.e.ordinal),
	}, id: strconv.Itoa(f.e.id), at: time.Now(), late: time.Since(f.at) >= k.w.cfg.Deduplication.FenceWait/2})
}

// strangers adds records of other producers to our partitions, some with positions like ours, of another slot of the
// server.
func (w *world) strangers() {
	w.edit(func() {
		lane := w.IntN(simLanes)
		at := simPartition{lane / 2, w.kafka.now.partition[lane] % w.kafka.now.counts[lane/2]}
		for range 1 + w.IntN(4) {
			pos := checkpoint.Position{SystemID: w.pg.id.SystemID, Timeline: w.pg.id.Timeline, CommitLSN: w.pg.end + 0x1000, Ordinal: 3}
			if w.IntN(3) == 0 {
				pos = checkpoint.Position{}
			}
			w.kafka.logs[at] = append(w.kafka.logs[at], logged{pid: -1, pos: pos})
		}
	})
}

// grow adds a partition to a topic. Later processes send keys to other partitions.
func (w *world) grow() {
	w.edit(func() {
		topic := w.IntN(simLanes / 2)
		k := w.kafka
		k.now.counts[topic]++
		for lane := 2 * topic; lane < 2*topic+2; lane++ {
			k.now.partition[lane] = w.IntN(100)
		}
	})
}

// reroute changes the routing of later processes.
func (w *world) reroute() {
	w.edit(func() {
		w.kafka.now.routes = map[string]string{}
		if a, b := w.IntN(simLanes/2), w.IntN(simLanes/2); a != b {
			w.kafka.now.routes = map[string]string{simTopics[a]: simTopics[b], simTopics[b]: simTopics[a]}
		}
	})
}

// fix raises the size limits: for later processes no event is too large.
func (w *world) fix() {
	w.edit(func() { w.kafka.now.fixed = w.dead && !(w.holding && w.kafka.now.fixed) })
}

// retain deletes the first records of a partition.
func (w *world) retain() {
	w.edit(func() {
		log := w.kafka.logs[w.somePartition()]
		for i := range log[:w.IntN(len(log)+1)] {
			log[i].gone = true
		}
		w.reached[deletedRecords] = w.reached[deletedRecords] || len(log) > 0 && log[0].gone
	})
}

// compact deletes the records of a partition that a later record of their key follows.
func (w *world) compact() {
	w.edit(func() {
		log := w.kafka.logs[w.somePartition()]
		last := map[string]int{}
		for i := range log {
			if log[i].e == nil {
				continue
			}
			if before, ok := last[log[i].e.key]; ok {
				log[before].gone, w.reached[deletedRecords] = true, true
			}
			last[log[i].e.key] = i
		}
	})
}

func (w *world) somePartition() simPartition {
	lane := w.IntN(simLanes)
	at := w.kafka.now
	return at.of(lane)
}

func (s *simSink) ProducerID() int64 { return s.pid }

func (s *simSink) RenewProducer() { s.p.pid = 0 }

func (s *simSink) Lane(rec *router.Record) int32 {
	s.k.w.mu.Lock()
	defer s.k.w.mu.Unlock()
	e := s.event(rec)
	if e == nil || rec.Topic == deadTopic {
		return 0
	}
	return int32(s.p.placement.of(e.lane).n)
}

// noteDoubtful notes that an event is sent that earlier sessions may have sent. It reports whether an older one of its
// key was, in this session or, since the event was acknowledged, in an earlier one of the process.
func (s *simSink) noteDoubtful(f *flight) (follows bool) {
	w := s.k.w
	if f.dead && (!w.holding || f.e.poison == noKey) || f.e.tx.commit >= s.st.id.WALEnd {
		return false
	}
	if s.resent == nil {
		s.resent = map[[2]string]bool{}
	}
	at := &s.p.placement
	key := at.key(f.e)
	follows = s.resent[key] || s.p.overtaken[f.e] || s.othersSentBefore(f.e)
	s.resent[key] = true
	for _, later := range w.pg.order[f.e.order+1:] {
		if later.ackedIn != s && s.p.delivered(later) && at.key(later) == key {
			s.p.overtaken[later] = true
		}
	}
	return follows
}

// othersSentBefore reports whether a later session than that in which the event was acknowledged has sent an older one
// of its key.
func (s *simSink) othersSentBefore(e *event) bool {
	if s.q == nil || e.ackedIn == nil {
		return false
	}
	return s.isOvertaken(&logged{e: e, routed: s.p.placement.topicName(e.lane), pid: e.ackedIn.pid, session: e.ackedIn.number, pos: checkpoint.Position{CommitLSN: e.tx.commit, Ordinal: uint32(e.ordinal)}}, nil)
}

// isOvertaken reports whether an older event of its key was sent after a record of ours, according to what is stored.
func (s *simSink) isOvertaken(l *logged, log []logged) bool {
	if l.loose {
		return false
	}
	for _, other := range s.k.logs {
		for i := range other {
			b := &other[i]
			if b.e == nil || b.loose || !slices.Contains(s.q.Producers, b.pid) || !checkpoint.Holds(s.q.Lineage, b.pos) || b.routed != l.routed || b.e.key != l.e.key || b.pos.Compare(l.pos) >= 0 {
				continue
			}
			if b.session > l.session || slices.ContainsFunc(log, func(later logged) bool { return later == *b }) {
				return true
			}
		}
	}
	return false
}

// simKey is a key of the events of a lane.
type simKey struct {
	lane int
	key  string
}

func (e *event) simKey() simKey { return simKey{e.lane, e.key} }

// judgeOrder checks that the last record of each key in a partition is the newest one of the key: a reader of the
// partition that keeps the newest state of each key ends with it (I13).
func (w *world) judgeOrder() {
	if w.back || !w.deduplicates() || w.owner && !w.adopted.IsZero() { // after an adoption events are sent again, to other partitions if the routing has changed
		return
	}
	for at, log := range w.kafka.logs {
		if at.topic == len(simTopics)-1 { // dead letters have no order
			continue
		}
		newest, last, late := map[simKey]*logged{}, map[simKey]*logged{}, map[simKey]*logged{} // late: the newest one after the last
		for i := range log {
			l := &log[i]
			if l.e == nil || l.e.order < 0 || !checkpoint.Holds(&w.pg.id, l.pos) {
				continue
			}
			key := l.e.simKey() // another routing may bring the same key from another topic
			if l.late {
				if n := late[key]; n == nil || l.pos.Compare(n.pos) > 0 {
					late[key] = l
				}
				continue
			}
			delete(late, key)
			if n := newest[key]; n == nil || l.pos.Compare(n.pos) > 0 {
				newest[key] = l
			}
			last[key] = l
		}
		for key, l := range last {
			// A process with other numbers of partitions, or another routing, may have sent the newest one elsewhere.
			n := newest[key]
			if l := late[key]; l != nil && l.pos.Compare(n.pos) >= 0 { // and so the newest one is the last
				continue
			}
			if n.pos.Compare(l.pos) > 0 && !w.kafka.hasElsewhere(n.e, at, l.at) {
				w.fail("the last record of key %v in partition %v is event %d, and event %d is newer", key, at, l.e.id, n.e.id)
				return
			}
		}
	}
}

// hasElsewhere reports whether another partition has got a record of an event since a time.
func (k *simKafka) hasElsewhere(e *event, at simPartition, since time.Time) bool {
	for other, log := range k.logs {
		if other != at && slices.ContainsFunc(log, func(l logged) bool { return l.e == e && l.at.After(since) }) {
			return true
		}
	}
	return false
}

func (s *simSink) Topics(from uint64) (out []string) {
	s.k.w.mu.Lock()
	defer s.k.w.mu.Unlock()
	for i, until := range s.sentUntil {
		if until > from {
			out = append(out, simTopics[i])
		}
	}
	return out
}

func (s *simSink) Unanswered() bool {
	s.k.w.mu.Lock()
	defer s.k.w.mu.Unlock()
	return s.lacksAnswers
}

func (s *simSink) LoadPosition(ctx context.Context) (*checkpoint.PositionRecord, error) {
	p, w := s.p, s.k.w
	p.spend(ctx, loadPosition, 3*time.Millisecond)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err := p.call("load the position"); err != nil {
		return nil, err
	}
	defer w.mu.Unlock()
	if s.failed {
		return nil, errKafka
	}
	if s.k.unusable {
		return nil, unusablePositions()
	}
	saved := checkpoint.Merge(s.k.saved)
	s.known, s.since = saved != nil, time.Now()
	if !s.known {
		return nil, nil
	}
	if checkpoint.Holds(&w.pg.id, saved.Acked) {
		s.expects = saved.AckedTx.CommitLSN
	}
	w.reached[uncleanPredecessor] = w.reached[uncleanPredecessor] || !saved.Clean
	w.reached[cleanPredecessor] = w.reached[cleanPredecessor] || saved.Clean
	return saved, nil
}

func (s *simSink) SavePosition(rec checkpoint.PositionRecord, done func(error)) {
	w, p := s.k.w, s.p
	w.mu.Lock()
	d := time.Duration(p.draw(savePosition)%2_000_000)&^1 + 1003
	w.mu.Unlock()
	// It leaves a little later, because the lease may be renewed at the instant of the call.
	left, stored := false, false
	var try func()
	try = func() {
		w.mu.Lock()
		switch {
		case s.closed || p.isDead:
			w.mu.Unlock()
			return
		case s.failed:
			if p.thaw == nil {
				w.mu.Unlock()
				done(errKafka)
				return
			}
		case !left:
			again := d
			if left = s.leased() && !s.closing && p.thaw == nil; !left {
				w.reached[heldBack] = true
				again = 50*time.Millisecond + 2*time.Duration(p.n)
			}
			w.mu.Unlock()
			time.AfterFunc(again, try)
			return
		case !stored && s.k.unusable && p.thaw == nil:
			w.mu.Unlock()
			done(unusablePositions())
			return
		case !stored:
			stored = true
			if p.thaw == nil && p.count("save the position") != nil {
				return
			}
			s.k.save(s, &rec)
		}
		again := p.thaw != nil || s.stuck
		w.mu.Unlock()
		if again { // the answer is on its way
			time.AfterFunc(time.Second+2*time.Duration(p.n), try)
			return
		}
		done(nil)
	}
	time.AfterFunc(d, try)
}

// save stores a position record. w.mu is held.
func (k *simKafka) save(s *simSink, rec *checkpoint.PositionRecord) {
	w := k.w
	w.see(s.p, "position", uint64(rec.Confirm), rec.Generation)
	for _, e := range w.pg.order {
		if e.acked || e.skipped || rec.Acked.IsZero() || w.excused[Lost] != "" { // perhaps of another history, which the session will notice
			continue
		}
		if pos := (checkpoint.Position{CommitLSN: e.tx.commit, Ordinal: uint32(e.ordinal)}); pos.Compare(rec.Acked.On(&w.pg.id)) <= 0 {
			w.fail("%s writes that everything up to %s is acked, and event %d is not", s.p, rec.Acked, e.id)
			break
		}
	}
	if rec.Clean && s.n > 0 {
		w.fail("%s writes that its end is clean with %d records in flight", s.p, s.n)
	}
	k.saved = append(k.saved, *rec)
	if len(k.saved) > 20 {
		k.saved = k.saved[1:]
	}
}

// suspects reports whether the session still expects the acked transaction of its predecessor's record. Nothing is
// confirmed before that. at is when the transaction arrived.
func (s *simSink) suspects(st *simStream) (at time.Time, is bool) {
	for _, tx := range s.k.w.pg.wal {
		if tx.commit == s.expects && tx.commit >= st.start {
			return tx.readAt, tx.readIn != st
		}
	}
	return time.Time{}, false
}

// allowed returns the position that the newest position record allows.
func (k *simKafka) allowed() pglogrepl.LSN {
	if saved := checkpoint.Merge(k.saved); saved != nil {
		return saved.ConfirmedOn(&k.w.pg.id)
	}
	return 0
}

func (s *simSink) ReadEnds(q checkpoint.Search, notBefore time.Time) {
	w := s.k.w
	w.mu.Lock()
	defer w.mu.Unlock()
	s.q, s.notBefore = &q, notBefore
	for i, topic := range simTopics {
		if slices.Contains(q.Topics, topic) {
			s.ask(i)
		}
	}
	w.reached[fenced] = w.reached[fenced] || notBefore.After(time.Now())
}

// ask reads the ends of a topic a little later. w.mu is held.
func (s *simSink) ask(topic int) {
	s.toRead[topic] = true
	d := max(0, time.Until(s.notBefore)) + time.Duration(s.p.draw(readTail)%3_000_000)&^1 + 1005
	time.AfterFunc(d, func() { s.readTopic(topic) })
}

func (s *simSink) EndsProgress() int64 { return 0 }

func (s *simSink) EndsRead(topic string) bool {
	w := s.k.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if s.q == nil {
		w.fail("%s asks for the ends of %q", s.p, topic)
		return true
	}
	if i := slices.Index(simTopics[:], topic); i >= 0 && !s.toRead[i] {
		s.ask(i)
	}
	return s.wasRead == s.toRead
}

// readTopic reads the ends of a topic's partitions.
func (s *simSink) readTopic(topic int) {
	w := s.k.w
	w.mu.Lock()
	if s.closed || s.failed || s.p.isDead {
		w.mu.Unlock()
		return
	}
	count := 1
	if topic < simLanes/2 {
		count = s.k.now.counts[topic]
	}
	s.judgeReading(topic)
	for n := range count {
		s.readEnd(simPartition{topic, n})
	}
	w.pg.progress()
	s.wasRead[topic], s.readAt[topic] = true, time.Now()
	w.see(s.p, "ends", uint64(topic), uint64(count))
	quiet := s.p.thaw != nil
	w.mu.Unlock()
	if !quiet {
		s.cb.Wake()
	}
}

// own is the record as the reader of a partition's end finds it.
func (l *logged) own(at simPartition, offset int64) *checkpoint.OwnRecord {
	own := &checkpoint.OwnRecord{Topic: simTopics[at.topic], Partition: int32(at.n), Offset: offset, Producer: l.pid, Epoch: l.epoch, Position: l.pos, ID: []byte(l.id), KeyTopic: simTopics[at.topic]}
	if at.topic == len(simTopics)-1 {
		own.KeyTopic = l.routed
	}
	if l.e.poison != noKey && !l.loose {
		own.Key = []byte(l.e.key)
	}
	return own
}

// readEnd reads a log backwards to the first record at or before the settled position, and the rest of its batch.
func (s *simSink) readEnd(at simPartition) {
	w, foreign, found, more := s.k.w, false, false, int(s.p.draw(readTail)%4)
	log := s.k.logs[at]
	firstOwn := len(log)
	for i := len(log) - 1; i >= 0 && more >= 0; i-- {
		l := &log[i]
		if found {
			more--
		}
		if firstOwn-i > s.q.LookBack {
			l.hidden = s.st.n
			w.reached[lookedBack] = w.reached[lookedBack] || l.e != nil
			continue
		}
		if l.gone {
			continue
		}
		if slices.Contains(s.q.Producers, l.pid) {
			firstOwn = i
			if checkpoint.Holds(s.q.Lineage, l.pos) {
				s.q.Note(l.own(at, int64(i)))
			}
		}
		switch {
		case !slices.Contains(s.q.Producers, l.pid):
			foreign = true
		case !checkpoint.Holds(s.q.Lineage, l.pos):
		case s.reaches(*l):
			found = true
		case l.pos.Compare(s.q.Acked) <= 0:
		default:
			w.reached[foreignTail] = w.reached[foreignTail] || foreign
			if e := l.e; e != nil && e.order >= 0 && !e.acked { // the process knows now that it is in Kafka
				e.acked, e.ackedAt = true, time.Now()
				e.tx.left--
				w.reached[firstDeduplicated] = true
			}
		}
	}
}

// reaches reports whether a record ends the search in its partition.
func (s *simSink) reaches(l logged) bool {
	return slices.Contains(s.q.Producers, l.pid) && checkpoint.Holds(s.q.Lineage, l.pos) && l.pos.Compare(s.q.Settled) <= 0
}

// repeats returns why this record should not have been sent, or "" (I12). follows means that an earlier event in
// doubt was sent of its key. w.mu is held.
func (s *simSink) repeats(f *flight, follows bool) string {
	w := s.k.w
	if !w.deduplicates() || !s.known {
		return ""
	}
	for at, log := range s.k.logs {
		for i, l := range log {
			if l.e != f.e {
				continue
			}
			switch {
			case l.gone, l.retried: // its letter counts
			case follows:
				w.reached[resentInOrder] = true
			case l.hidden == s.st.n:
			case l.at.Before(w.adopted): // an adoption skips nothing
			case l.late && l.at.After(s.since):
				w.reached[lateRepeat] = true
			case s.q == nil:
				return "again, which is in Kafka, and no end was read"
			case s.isOvertaken(&l, log[i:]):
				w.reached[resentInOrder] = true
			case !slices.Contains(s.q.Producers, l.pid) && 0 < l.pid && l.session < s.number && s.pid <= 100:
				return "again, which is in Kafka, of a producer that nobody noted"
			case s.wasRead[at.topic] && slices.ContainsFunc(log[i:], func(b logged) bool { return b.late && s.reaches(b) }):
				// A later record that was stored late has ended the search.
				w.reached[lateRepeat] = true
			case s.wasRead[at.topic] && l.at.Before(s.readAt[at.topic]):
				return fmt.Sprintf("again, although it was in partition %v when its end was read", at)
			case s.wasRead[at.topic]:
				return fmt.Sprintf("again, which was stored in partition %v after its end was read, and had left just before", at)
			case at.topic == f.partitionOf().topic:
				return "again, without a look at the ends of its topic"
			default: // in a topic that it is no longer sent to, and that was used too late for a position record
				w.reached[movedRepeat] = true
			}
		}
	}
	return ""
}
