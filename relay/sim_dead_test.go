package relay

import (
	"fmt"
	"maps"
	"strconv"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/router"
)

// Runs in which poison does not stop the relay: a twelfth of the rows is poison of every kind that there is, in any place
// of any transaction, and each must reach the dead-letter topic before its transaction is confirmed, whatever else happens.
// Checked besides what is always checked:
//
//   - a dead letter is one of a poison event, with its cause, its topic, and the same bytes each time
//   - poison goes nowhere else, and a row that only Kafka can refuse is a dead letter only after it has, in that process
//   - a dead letter that cannot be delivered either stops the relay, and goes on behind it once it is decided

// deadTopic is where dead letters go. It has one partition, deadLane.
const deadTopic = "dead"

// TestSimDeadLetters is TestSim with dead letters.
func TestSimDeadLetters(t *testing.T) {
	first, n := simSeeds(t, 6000)
	if _, ok := givenSeed(t); !ok {
		if d, more := simBudget(t); d == 0 {
			n = max(n, more)
		}
	}
	res := simRuns(t, "random runs in which poison goes to the dead-letter topic, fresh seeds", "", first, func(i int) (simOptions, bool) {
		return simOptions{seed: first + uint64(i), dead: true, twice: i%20 == 0}, i < n
	})
	if !t.Failed() {
		res.mustReach(t, markNames[firstDead:firstPast], 5000)
	}
}

// somePoison is what the next row of ordinary work is. Where poison stops the relay there is none among it.
func (w *world) somePoison() poisonKind {
	if !w.dead || w.IntN(12) > 0 {
		return healthy
	}
	return poisonKind(1 + w.IntN(3))
}

// lanes is how many a run uses.
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
	return f.e.lane
}

// refused reports whether Kafka refuses the record for what it is.
func (f *flight) refused() bool {
	return f.e.poison == rejected && !f.dead || f.e.poison == hopeless && f.dead
}

// tooLargeEvenDead: some of what the dead-letter topic does not take is seen before it is sent, the rest is refused.
func (e *event) tooLargeEvenDead() bool { return e.poison == hopeless && e.id%2 == 0 }

// misplaced is why a record may not be sent where it is going, or "".
func (w *world) misplaced(p *process, e *event, rec *router.Record) string {
	if rec.Topic == deadTopic {
		switch {
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

// wrongHeaders says what a dead letter does not tell of the event, or "".
func (e *event) wrongHeaders(rec *router.Record, at *placement) string {
	want := map[string]string{HeaderError: string(causeOf[e.poison]), HeaderTopic: at.topicName(e), "id": strconv.Itoa(e.id)}
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

// storeDead appends a dead letter, which has no place in the order, or what was one for an earlier process, which has.
func (f *flight) storeDead() {
	e, w := f.e, f.by.k.w
	w.see(f.by.p, "stored dead", uint64(e.id), uint64(e.stored))
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

// deadLettered marks where a dead letter stands; s has not counted it yet.
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

// refusedAlone: the one record in flight is refused for what it is. w.mu is held.
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

// skip makes an event one that is to be left out. w.mu is held.
func (e *event) skip() {
	e.skipped, e.acked, e.ackedAt = true, true, time.Now()
	e.tx.left--
}

// decide is the operator's answer to a dead letter that cannot be delivered: the event is left out from now on. w.mu is held.
func (w *world) decide() {
	decisions := maps.Clone(w.cfg.Poison.Decisions) // a process that is gone may still hold the old ones
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
