package relay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/router"
)

// Runs of deduplicated delivery: the broker keeps a log of each lane, a tail can be read, and the position topic is there.
// Checked besides what is always checked:
//
//   - an event that is left out is in its lane's log (simSink.Send: nobody may leave out what no one has acked or read there)
//   - an event is not sent if the tail of its lane, as it was read, had it, or would have had it had it been read (I12),
//     unless something landed late: behind the reading, or behind what a later session had stored
//   - a position record speaks of nothing that is not acked, and the slot is told nothing that the newest one does not allow
//   - nothing is stored of a process that was frozen for longer than its slot is kept for it

// simFence is longer than what a dead process's requests take to land, or shorter: then repeats are excused.
const simFence = 5*time.Second + 1_000_003

// logged is one record of a lane.
type logged struct {
	e   *event // nil: another slot's, or no event at all
	pid int64
	pos checkpoint.Position
	at  time.Time
}

// simPast is a sink's part of it.
type simPast struct {
	pid        int64
	lineage    checkpoint.Lineage
	producers  map[int64]bool
	lookBack   int
	notBefore  time.Time
	tails      [allLanes]*checkpoint.Tail
	tailAsked  [allLanes]bool
	readAt     [allLanes]time.Time
	until      time.Time // the lease
	unanswered bool
	since      time.Time     // when it was asked what was there before
	expects    pglogrepl.LSN // commit LSN of the transaction that the record before ends with
	known      bool          // there was a record, and tails may be read
}

var errLease = errors.New("the slot may be another's by now")

// TestSimDeduplicated is TestSim with deduplicated delivery, every other run with dead letters.
func TestSimDeduplicated(t *testing.T) {
	first, n := simSeeds(t, 4000)
	if _, ok := givenSeed(t); !ok {
		if d, more := simBudget(t); d == 0 {
			n = max(n, more)
		}
	}
	res := simRuns(t, "random runs of deduplicated delivery, fresh seeds", "", first, func(i int) (simOptions, bool) {
		seed := first + uint64(i)
		return simOptions{seed: seed, dedup: true, dead: seed%2 == 1, twice: seed%20 == 0}, i < n
	})
	if !t.Failed() {
		res.mustReach(t, markNames[firstPast:], 3000)
	}
}

func (w *world) deduplicates() bool { return w.cfg.Deduplication.Slot != "" }

// append adds a record to its lane's log. w.mu is held.
func (k *simKafka) append(f *flight) {
	id := f.by.st.id
	k.logs[f.lane()] = append(k.logs[f.lane()], logged{f.e, f.by.pid, checkpoint.Position{
		SystemID: id.SystemID, Timeline: id.Timeline, CommitLSN: f.e.tx.commit, Ordinal: uint32(f.e.ordinal),
	}, time.Now()})
}

// strangers write into our lanes: another slot of the same server, whose positions look like ours, and somebody else.
func (w *world) strangers() {
	w.edit(func() {
		lane := w.IntN(w.lanes())
		for range 1 + w.IntN(4) {
			pos := checkpoint.Position{SystemID: w.pg.id.SystemID, Timeline: w.pg.id.Timeline, CommitLSN: w.pg.end + 0x1000, Ordinal: 3}
			if w.IntN(3) == 0 {
				pos = checkpoint.Position{}
			}
			w.kafka.logs[lane] = append(w.kafka.logs[lane], logged{pid: -1, pos: pos})
		}
	})
}

func (s *simSink) ProducerID() int64 { return s.pid }

func (s *simSink) Pins() map[string]int32 {
	return map[string]int32{"t": 2, "u": 2, "v": 2, deadTopic: 1}
}

func (s *simSink) Unanswered() bool {
	s.k.w.mu.Lock()
	defer s.k.w.mu.Unlock()
	return s.unanswered
}

func (s *simSink) Extend(until time.Time) {
	s.k.w.mu.Lock()
	defer s.k.w.mu.Unlock()
	if !s.expired() { // nor does the real one
		s.until = until
	}
}

// expired: nothing of this sink is taken any more.
func (s *simSink) expired() bool { return !s.until.IsZero() && time.Now().After(s.until) }

func (s *simSink) LoadPosition(ctx context.Context) (*checkpoint.Saved, error) {
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
	saved := checkpoint.Latest(s.k.saved)
	s.known, s.since = saved != nil, time.Now()
	if !s.known {
		return nil, nil
	}
	s.expects = saved.AckedTx.CommitLSN
	saved.Partitions = maps.Clone(saved.Partitions)
	w.reached[recalledDirty] = w.reached[recalledDirty] || !saved.Clean
	w.reached[recalledClean] = w.reached[recalledClean] || saved.Clean
	return saved, nil
}

func (s *simSink) SavePosition(rec checkpoint.Saved, done func(error)) {
	w, p := s.k.w, s.p
	w.mu.Lock()
	d := time.Duration(p.draw(savePosition)%4_000_000)&^1 + 1003
	w.mu.Unlock()
	stored := false
	var try func()
	try = func() {
		w.mu.Lock()
		switch {
		case s.closed || p.isDead:
			w.mu.Unlock()
			return
		case s.failed || s.expired():
			if p.thaw == nil {
				w.mu.Unlock()
				done(errKafka)
				return
			}
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

// save is the position topic's end. w.mu is held.
func (k *simKafka) save(s *simSink, rec *checkpoint.Saved) {
	w := k.w
	w.see(s.p, "position", uint64(rec.Confirm), rec.Generation)
	for _, e := range w.pg.order {
		if e.acked || e.skipped || rec.Acked.IsZero() || w.excused[Lost] != "" { // of another history, perhaps: the session will find out
			continue
		}
		if pos := (checkpoint.Position{CommitLSN: e.tx.commit, Ordinal: uint32(e.ordinal)}); pos.Compare(rec.Acked) <= 0 {
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

// suspects reports whether the session still waits for the transaction that the record before its own ended with: until it comes
// by, nothing is confirmed. at is when it came.
func (s *simSink) suspects(st *simStream) (at time.Time, is bool) {
	for _, tx := range s.k.w.pg.wal {
		if tx.commit == s.expects && tx.commit >= st.start {
			return tx.readAt, tx.readIn != st
		}
	}
	return time.Time{}, false
}

// allowed is what the newest position record lets the slot be told.
func (k *simKafka) allowed() pglogrepl.LSN {
	if saved := checkpoint.Latest(k.saved); saved != nil {
		return saved.Confirm
	}
	return 0
}

func (s *simSink) ReadTails(l checkpoint.Lineage, producers []int64, lookBack int, notBefore time.Time) {
	w := s.k.w
	w.mu.Lock()
	defer w.mu.Unlock()
	s.lineage, s.lookBack, s.notBefore, s.producers = l, lookBack, notBefore, map[int64]bool{}
	for _, id := range producers {
		s.producers[id] = true
	}
	w.reached[fenced] = w.reached[fenced] || notBefore.After(time.Now())
}

func (s *simSink) Tail(rec *router.Record) *checkpoint.Tail {
	w := s.k.w
	w.mu.Lock()
	defer w.mu.Unlock()
	e := s.event(rec)
	if e == nil || s.lineage == nil {
		w.fail("%s asks for the tail of %s", s.p, rec.Topic)
		return &checkpoint.Tail{}
	}
	lane := e.lane
	if rec.Topic == deadTopic {
		lane = deadLane
	}
	if s.tails[lane] == nil && !s.tailAsked[lane] {
		s.tailAsked[lane] = true
		d := max(0, time.Until(s.notBefore)) + time.Duration(s.p.draw(readTail)%3_000_000)&^1 + 1005
		time.AfterFunc(d, func() { s.read(lane) })
	}
	return s.tails[lane]
}

// read looks at the end of a lane.
func (s *simSink) read(lane int) {
	w := s.k.w
	w.mu.Lock()
	if s.closed || s.failed || s.p.isDead {
		w.mu.Unlock()
		return
	}
	tail := &checkpoint.Tail{}
	log, found, foreign := s.k.logs[lane], 0, false
	batch := int(s.p.draw(readTail) % 4) // what else the same batch holds
	for i := len(log) - 1; i >= 0 && len(log)-i <= s.lookBack && found <= batch; i-- {
		if foreign = foreign || !s.producers[log[i].pid]; !s.producers[log[i].pid] {
			continue
		}
		if tail.See(s.lineage, log[i].pos, nil) {
			found++
		}
	}
	w.reached[foreignTail] = w.reached[foreignTail] || foreign && found > 0
	for _, l := range log { // by having read it the process knows that these are in Kafka
		if e := l.e; e != nil && e.order >= 0 && !e.acked && l.pos.Compare(tail.Last) <= 0 {
			e.acked, e.ackedAt = true, time.Now()
			e.tx.left--
			w.reached[firstPast] = true
		}
	}
	w.pg.progress()
	s.tails[lane], s.readAt[lane] = tail, time.Now()
	w.see(s.p, "tail", uint64(lane), uint64(tail.Last.CommitLSN))
	quiet := s.p.thaw != nil
	w.mu.Unlock()
	if !quiet {
		s.cb.Wake()
	}
}

// repeats is why this record should not have been sent, or "" (I12). w.mu is held.
func (s *simSink) repeats(f *flight) string {
	if !s.k.w.deduplicates() || !s.known {
		return ""
	}
	lane := f.lane()
	for _, l := range s.k.logs[lane] {
		if l.e != f.e {
			continue
		}
		if l.at.After(s.since) { // another process, which thinks that it has the slot
			s.k.w.reached[lateRepeat] = true
			continue
		}
		if !s.producers[l.pid] && 0 < l.pid && l.pid < s.pid && s.pid <= 100 {
			return "again, which is in its partition, of a producer that nobody noted"
		}
		switch {
		case s.tails[lane] == nil:
			return "again, without a look at the end of its partition"
		case l.pos.Compare(s.tails[lane].Last) > 0: // a late one of before it stood at the end
		case l.at.Before(s.readAt[lane]):
			return fmt.Sprintf("again, which stood in its partition when the end was read at %s", s.tails[lane].Last)
		}
		s.k.w.reached[lateRepeat] = true
	}
	return ""
}
