package relay

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/router"
)

// Runs in which poison does not stop the relay: one row in twelve is poison, of any kind and in any place of a
// transaction. Each must be in the dead-letter topic before its transaction is confirmed. Additional checks:
//
//   - a dead letter is that of a poison event, with its cause, its topic, and the same bytes each time
//   - poison goes to no other topic, and a row that only Kafka refuses becomes a dead letter only after Kafka has
//     refused it in that process
//   - a dead letter that cannot be delivered stops the relay, which continues after it once an operator has decided

// deadTopic is the dead-letter topic. It has one partition, deadLane.
const deadTopic = "dead"

// TestSimDeadLetters is TestSim with dead letters.
func TestSimDeadLetters(t *testing.T) {
	first, n := atLeastSeeds(t, 6000)
	res := simRuns(t, "random runs in which poison goes to the dead-letter topic, fresh seeds", "", first, func(i int) (simOptions, bool) {
		return simOptions{seed: first + uint64(i), dead: true, twice: i%20 == 0}, i < n
	})
	if !t.Failed() {
		res.mustReach(t, markNames[firstDead:firstDeduplicated], 5000)
	}
}

// somePoison returns the kind of the next row. If poison stops the relay, ordinary rows are no poison.
func (w *world) somePoison() poisonKind {
	if !w.dead || w.IntN(12) > 0 {
		return healthy
	}
	return poisonKind(1 + w.IntN(3))
}

// lanes returns the number of lanes that a run uses.
func (w *world) lanes() int {
	if w.dead {
		return allLanes
	}
	return simLanes
}

func (f *flight) lane() int {
	if f.dead {
		return deadLane
	}
	return f.by.p.placement.queue(f.e.lane)
}

// refused reports whether Kafka refuses the content of the record.
func (f *flight) refused() bool {
	return f.e.poison == rejected && !f.dead || f.e.poison == hopeless && f.dead
}

// tooLargeEvenDead reports whether Check notices that the dead letter is too large; otherwise Kafka refuses it.
func (e *event) tooLargeEvenDead() bool { return e.poison == hopeless && e.id%2 == 0 }

// misplaced returns why the record may not be sent to its topic, or "".
func (w *world) misplaced(p *process, e *event, rec *router.Record) string {
	if rec.Topic == deadTopic {
		switch {
		case w.holding && p.sink.holds(e):
		case !w.dead || e.poison == healthy:
			return "to the dead-letter topic, and nothing is wrong with it"
		case e.tooLargeEvenDead():
			return "to the dead-letter topic, for which it is too large"
		case e.poison == tooLarge && p.placement.fixed:
			return "to the dead-letter topic, for which it was too large before, and is not"
		case e.poison == rejected && !p.refused[e]:
			return "to the dead-letter topic, and Kafka has not refused it"
		}
		return ""
	}
	switch e.poison {
	case noKey:
		return "without a key"
	case tooLarge, hopeless:
		if e.poison == hopeless || !p.placement.fixed {
			return "that is too large"
		}
		w.reached[fixedPoison] = true
	}
	return ""
}

var causeOf = map[poisonKind]router.Cause{noKey: router.NullKey, tooLarge: router.TooLarge, hopeless: router.TooLarge, rejected: router.Rejected}

// wrongHeaders returns what is wrong with the headers of a dead letter, or "".
func (e *event) wrongHeaders(rec *router.Record, at *placement) string {
	cause := causeOf[e.poison]
	if slices.ContainsFunc(rec.Headers, func(h router.Header) bool { return h.Name == HeaderError && string(h.Value) == string(CauseHeld) }) {
		cause = CauseHeld
	}
	want := map[string]string{HeaderError: string(cause), HeaderTopic: at.topicName(e.lane), "id": strconv.Itoa(e.id)}
	for _, h := range rec.Headers {
		if v, ok := want[h.Name]; ok && v == string(h.Value) {
			delete(want, h.Name)
		}
	}
	if len(want) > 0 {
		return fmt.Sprintf("the dead letter lacks %v among %v", want, rec.Headers)
	}
	return ""
}

// storeDead stores a dead letter, which has no place in the order, or an event that was a dead letter for an earlier
// process, which has.
func (f *flight) storeDead() {
	e, w := f.e, f.by.k.w
	w.see(f.by.p, "stored dead", uint64(e.id), uint64(e.stored))
	switch {
	case w.holding && f.dead:
		w.storeLetter(f)
	case w.holding:
		w.arrive(e)
	}
	switch {
	case e.storedBy == f.by:
		w.fail("the dead letter of event %d is stored twice by one session", e.id)
	case e.storedBy != nil && e.storedBy.p != f.by.p:
		w.reached[deadRepeated] = true
	case e.stored == 0 && !f.dead:
		w.reached[fixedFirst] = true
		for _, later := range w.pg.order[e.order+1:] {
			if later.lane == e.lane && later.seq > 0 && later.stored > 0 {
				w.fail("event %d, which was to be a dead letter, is stored in its topic after event %d", e.id, later.id)
			}
		}
	}
	e.stored++
	e.storedBy = f.by
}

// deadLettered marks the circumstances of a dead letter. s has not counted it yet.
func (w *world) deadLettered(s *simSink, e *event) {
	w.reached[firstDead] = true
	w.reached[deadAfterRefusal] = w.reached[deadAfterRefusal] || e.poison == rejected
	w.reached[deadInHugeTx] = w.reached[deadInHugeTx] || len(e.tx.rows) > w.cfg.MaxEvents
	w.reached[deadBegins] = w.reached[deadBegins] || s.last == 0
	if n := e.order; n > 0 {
		before := w.pg.order[n-1]
		w.reached[deadInARow] = w.reached[deadInARow] || before.tx == e.tx && before.digest[1] != 0
	}
}

// refusedAlone notes that the only record in flight was refused. w.mu is held.
func (w *world) refusedAlone(s *simSink) {
	w.reached[refusedPoison] = true
	if !w.dead {
		w.excused[Poison] = "refused alone"
		return
	}
	for _, lane := range s.lanes {
		for _, f := range lane {
			s.p.refused[f.e] = true
			w.reached[deadRefused] = w.reached[deadRefused] || f.dead
		}
	}
}

// skip marks an event that is skipped from now on. w.mu is held.
func (e *event) skip() {
	e.skipped, e.acked, e.ackedAt = true, true, time.Now()
	e.tx.left--
}

// decide is the operator's decision on a dead letter that cannot be delivered: the event is skipped from now on. w.mu
// is held.
func (w *world) decide() {
	decisions := maps.Clone(w.cfg.Poison.Decisions) // an earlier process may still use the old map
	for _, e := range w.pg.order {
		if e.poison != hopeless || e.skipped {
			continue
		}
		decisions[strconv.Itoa(e.id)] = SkipPoison
		e.skip()
		w.reached[deadDecided] = true
	}
	w.cfg.Poison.Decisions = decisions
	w.pg.progress()
}
