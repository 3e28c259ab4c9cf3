package relay

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// Runs in which poison holds its key: one row in twelve is poison, and commands retry and drop letters at any time, one
// at a time, and are killed. Additional checks:
//
//   - an event of a key comes to its topic for the first time after every older event of the key, unless that was
//     dropped, whether the daemon sends it or a command
//   - a healthy event becomes a letter only behind another letter of its key
//   - in the end every event is in its topic, unless it was dropped, and every letter is handled

// simHold is what Kafka has of dead letters.
type simHold struct {
	letters []simLetter
	handled map[int64]bool // what commands have recorded, by offset
	dlq     *simDLQ
}

// simLetter is a record of the dead-letter topic.
type simLetter struct {
	e    *event
	held *checkpoint.Letter // nil: it holds no key
	late bool               // see logged
}

// simDLQ is a command that has the group.
type simDLQ struct {
	checkpoint.Release
	next, end int64
	drops     bool
	selects   func(*event) bool
	handled   map[int64]bool // not recorded yet
	records   bool           // before the next letter
}

// TestSimHoldKey is TestSimDeadLetters with held keys, every other run with deduplicated delivery.
func TestSimHoldKey(t *testing.T) {
	first, n := atLeastSeeds(t, 3000)
	res := simRuns(t, "random runs in which poison holds its key, fresh seeds", "F127", first, func(i int) (simOptions, bool) {
		seed := first + uint64(i)
		return simOptions{seed: seed, dead: true, hold: true, dedup: seed%2 == 1, twice: seed%20 == 0}, i < n
	})
	if !t.Failed() {
		res.mustReach(t, markNames[firstHeld:marks], 3000)
	}
}

// lettersOf reads the letters for a process.
func (w *world) lettersOf(p *process) func(context.Context) (Letters, error) {
	return func(ctx context.Context) (Letters, error) {
		if err := p.lookAtLetters(ctx); err != nil {
			return nil, err
		}
		defer w.mu.Unlock()
		return &simFollower{p: p, next: -1}, w.kafka.openErr
	}
}

// lookAtLetters takes a time that depends on nothing but the moment: a session may end at the instant at which it
// begins to read
// letters, before or after it has begun. Without an error w.mu is held.
func (p *process) lookAtLetters(ctx context.Context) error {
	n := uint64(p.w.now()) ^ p.w.seed
	n = (n ^ n>>30) * 0xbf58476d1ce4e5b9
	select {
	case <-time.After(time.Duration((n^n>>27)%2_000_000)&^1 + 1007 + 2*time.Duration(p.n)):
	case <-p.dead:
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return p.call("read the letters")
}

// simFollower reads first what is handled, and then the letters.
type simFollower struct {
	p    *process
	next int64
}

func (f *simFollower) Close() {}

func (f *simFollower) Read(ctx context.Context, read func(*checkpoint.Letter, bool)) (*checkpoint.LetterMarks, error) {
	p, w := f.p, f.p.w
	h := &w.hold
	if err := p.lookAtLetters(ctx); err != nil {
		return nil, err
	}
	handled := maps.Clone(h.handled)
	w.mu.Unlock()
	if err := p.lookAtLetters(ctx); err != nil {
		return nil, err
	}
	defer w.mu.Unlock()
	if w.kafka.openErr != nil {
		return nil, w.kafka.openErr
	}
	if f.next < 0 { // the group's offset
		for f.next = 0; handled[f.next]; f.next++ {
		}
	}
	for ; f.next < int64(len(h.letters)); f.next++ {
		if l := h.letters[f.next].held; l != nil {
			letter := *l
			letter.Place = checkpoint.LetterPlace{Offset: f.next}
			read(&letter, handled[f.next])
		}
	}
	w.see(p, "letters", uint64(f.next), uint64(len(handled)))
	return &checkpoint.LetterMarks{
		Handled: func(at checkpoint.LetterPlace) bool { return handled[at.Offset] }, First: func(int32) int64 { return 0 },
	}, nil
}

// storeLetter stores a letter. w.mu is held.
func (w *world) storeLetter(f *flight) {
	w.hold.letters = append(w.hold.letters, simLetter{f.e, f.letter, time.Since(f.at) >= w.cfg.Deduplication.FenceWait/2})
	if l := f.letter; l != nil && f.e.poison == healthy {
		w.reached[firstHeld] = true
		w.reached[heldByDead] = w.reached[heldByDead] || f.by.p.n > 1
	}
}

// arrive notes that an event is in its topic. w.mu is held.
func (w *world) arrive(e *event) {
	was := e.arrived
	if e.arrived = true; was || e.poison == noKey {
		return
	}
	for _, older := range w.pg.order[:max(0, e.order)] {
		if older.lane == e.lane && older.key == e.key && older.poison != noKey && !older.arrived && !older.dropped && !older.skipped {
			w.fail("event %d is in its topic before event %d of its key", e.id, older.id)
			return
		}
	}
}

// holds reports whether a letter of the key, perhaps of the event itself, was stored or is in flight, so that the event
// may be a letter. An event that is repeated may follow a later one, which is then repeated as well; whether it may be
// repeated is another question.
func (s *simSink) holds(e *event) bool {
	repeats := !s.k.w.deduplicates()
	for _, log := range s.k.logs {
		repeats = repeats || slices.ContainsFunc(log, func(l logged) bool { return l.e == e })
	}
	same := func(x *event) bool { return x.lane == e.lane && x.key == e.key && (x.order <= e.order || repeats) }
	return slices.ContainsFunc(s.k.w.hold.letters, func(l simLetter) bool { return same(l.e) }) ||
		slices.ContainsFunc(s.lanes[deadLane], func(f *flight) bool { return same(f.e) })
}

// letterOp is a step of a command, or its end.
func (w *world) letterOp() {
	w.edit(func() {
		if w.IntN(12) == 0 && w.hold.dlq != nil {
			w.tell("the command is killed")
			w.reached[heldDLQKilled] = w.reached[heldDLQKilled] || len(w.hold.dlq.handled) > 0
			w.hold.dlq = nil
			return
		}
		for range 1 + w.IntN(4) {
			w.stepDLQ(false)
		}
	})
}

// stepDLQ begins a command, or is one step of it. w.mu is held.
func (w *world) stepDLQ(all bool) {
	h := &w.hold
	c := h.dlq
	if c == nil {
		if open, _ := w.unhandled(); open == 0 {
			return
		}
		c = &simDLQ{end: int64(len(h.letters)), handled: map[int64]bool{}, drops: !all && w.IntN(8) == 0, selects: func(*event) bool { return true }}
		if c.Followers = checkpoint.Send; c.drops && w.IntN(2) == 0 {
			c.Followers = checkpoint.Drop
		}
		if some := pick(w, h.letters).e; !all && w.IntN(2) == 0 {
			c.selects = func(e *event) bool { return e.lane == some.lane && e.key == some.key }
		}
		w.tell("a command begins, drops %v", c.drops)
		h.dlq = c
		return
	}
	switch {
	case len(c.handled) > 0 && (c.next == c.end || c.records || w.IntN(3) == 0):
		c.records = false
		maps.Copy(h.handled, c.handled)
		w.tell("recorded as handled: %v", slices.Sorted(maps.Keys(c.handled)))
		clear(c.handled)
		return
	case c.next == c.end:
		h.dlq = nil
		return
	}
	n := c.next
	c.next++
	if !h.handled[n] {
		w.handleLetter(n, &h.letters[n], all)
	}
}

// handleLetter does with a letter what the command was asked to do, if the rule allows it.
func (w *world) handleLetter(n int64, l *simLetter, all bool) {
	c, fate := w.hold.dlq, checkpoint.Leave
	switch {
	case l.e.order < 0 || c.selects(l.e) && c.drops:
		fate = checkpoint.Drop
	case c.selects(l.e):
		fate = checkpoint.Send
	}
	if l.held != nil {
		fate = c.Decide(l.held, fate)
	}
	switch {
	case fate == checkpoint.Drop:
		w.tell("letter %d of event %d is dropped", n, l.e.id)
		l.e.dropped = true
		w.reached[heldDropped] = w.reached[heldDropped] || l.held != nil && l.e.poison != healthy
		c.handled[n] = true
	case fate == checkpoint.Send && (all || l.e.poison == healthy || w.IntN(2) == 0):
		w.tell("letter %d of event %d is retried", n, l.e.id)
		w.retry(l.e, l.late)
		c.handled[n] = true
	}
	if l.held != nil {
		c.Done(l.held, c.handled[n])
		c.records = c.handled[n]
	}
}

// retry stores the record of a retried letter. w.mu is held.
func (w *world) retry(e *event, late bool) {
	w.arrive(e)
	if e.poison == noKey {
		return
	}
	id, at := w.pg.id, w.kafka.now.of(e.lane)
	w.kafka.logs[at] = append(w.kafka.logs[at], logged{e: e, pid: -1, retried: true, late: late, pos: checkpoint.Position{
		SystemID: id.SystemID, Timeline: id.TimelineOf(e.tx.commit), CommitLSN: e.tx.commit, Ordinal: uint32(e.ordinal),
	}, id: strconv.Itoa(e.id), at: time.Now()})
	if p := w.pg.holder; p != nil && p.p.sink != nil && p.p.sink.n > 0 {
		w.reached[heldRetriedBeside] = true
	}
}

// handleAll lets commands retry every letter.
func (w *world) handleAll() {
	for range 3 * (len(w.hold.letters) + 1) {
		w.stepDLQ(true)
	}
}

// unhandled returns how many letters are open, and the first event that is in no topic. w.mu is held.
func (w *world) unhandled() (letters int, missing *event) {
	for n := range w.hold.letters {
		if !w.hold.handled[int64(n)] {
			letters++
		}
	}
	for _, e := range w.pg.order {
		if !e.arrived && !e.dropped && !e.skipped && e.poison != noKey {
			return letters, e
		}
	}
	return letters, nil
}
