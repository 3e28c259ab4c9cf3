package relay

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// small shortens a run: no delays, and few rows.
func (w *world) small() { w.pg.async, w.pg.trickle, w.kafka.lookUp = false, false, w.IntN(4) == 0 }

// overlap is a short script with overlapping transactions, a COPY, adjacent commits, keepalives, a cut, a crash and a
// clean end.
func (w *world) overlap() {
	w.small()
	w.start()
	steps := []func(){w.work, w.acknowledge, w.work, w.keepalive, w.acknowledge, w.foreign, w.cut, w.work, w.acknowledge, w.save, w.crash, w.quitOne, w.work, w.acknowledge}
	for _, do := range steps {
		do()
		w.rest(w.upTo(1500 * time.Millisecond))
		if w.halt() {
			return
		}
	}
	w.heal()
	if !w.halt() {
		w.farewell()
	}
}

// everyStep runs each seed once without a fault, and then once for each step of that run, with the fault of harm at
// the step.
func everyStep(t *testing.T, done, faults string, seeds int, steps func(*world) int, harm func(o *simOptions, step int)) {
	t.Helper()
	first, seeds := simSeeds(t, seeds)
	var all []simOptions
	for i := range seeds {
		o := simOptions{seed: first + uint64(i), script: (*world).overlap, met: simMetrics()}
		w := simulate(t, o)
		if w.broken != "" {
			tellStory(t, o, 1, w.broken)
			return
		}
		for n := 1; n <= steps(w); n++ {
			spoilt := o
			harm(&spoilt, n)
			all = append(all, spoilt)
		}
	}
	simRuns(t, done, faults, first, func(i int) (simOptions, bool) {
		if i >= len(all) {
			return simOptions{}, false
		}
		return all[i], true
	})
}

// TestSimKilledInEveryCall: the process dies in each call across the boundary in turn, before the call has an effect.
// Another process follows.
func TestSimKilledInEveryCall(t *testing.T) {
	everyStep(t, "the process dies in each call across the boundary in turn", "F02", 40,
		func(w *world) int { return w.calls }, func(o *simOptions, n int) { o.dieAt = n })
}

// TestSimCutAfterEveryMessage: the stream ends after each message in turn.
func TestSimCutAfterEveryMessage(t *testing.T) {
	everyStep(t, "the stream is cut behind each message in turn", "F12", 40,
		func(w *world) int { return w.messages }, func(o *simOptions, n int) { o.cutAfter = n })
}

// TestSimAdjacentCommits: 1000 transactions, each with the end LSN of the previous one as its commit LSN. The process
// is killed between every two of them, with the first one acked and not confirmed, or confirmed.
func TestSimAdjacentCommits(t *testing.T) {
	pairs := 1000
	if testing.Short() {
		pairs = 100
	}
	first := rand.Uint64()
	if seed, ok := givenSeed(t); ok {
		first = seed
	}
	simRuns(t, "the process killed between every two of 1000 adjacent commits", "F84", first, func(i int) (simOptions, bool) {
		return simOptions{seed: first + uint64(i), script: func(w *world) { w.adjacent(pairs, i == 1) }}, i < 2
	})
}

// adjacent commits all transactions at once, or each after the previous process was killed.
func (w *world) adjacent(pairs int, early bool) {
	w.small()
	w.cfg.MaxEvents = 10
	var open []*writer
	w.edit(func() {
		for range pairs {
			wr := &writer{}
			w.pg.write(wr, false, healthy).alone = false
			open = append(open, wr)
		}
		for early && len(open) > 0 {
			w.pg.commit(open[0])
			open = open[1:]
		}
	})
	for i := range pairs {
		w.edit(func() {
			if len(open) > 0 {
				w.pg.commit(open[0])
				open = open[1:]
			}
		})
		p := w.start()
		w.sleep(10 * time.Millisecond)
		// Everything up to this one is acked; before the next, the process dies.
		acked := func() (bool, *simSink) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.pg.order[i].acked, p.sink
		}
		for tries := 0; ; tries++ {
			done, s := acked()
			if done {
				break
			}
			if tries > 1000 || w.halt() {
				w.edit(func() { w.fail("transaction %d is not acked", i) })
				return
			}
			if s == nil || !w.ackUpTo(s, i) {
				w.sleep(10 * time.Millisecond)
			}
		}
		if w.IntN(2) == 0 { // confirmed
			w.sleep(2500 * time.Millisecond)
		}
		w.edit(p.die)
		w.look()
		if w.halt() {
			return
		}
		w.mu.Lock()
		w.pg.heldUntil = time.Time{}
		w.mu.Unlock()
	}
	w.start()
	w.heal()
	if !w.halt() {
		w.farewell()
	}
}

// ackUpTo acknowledges the events in flight up to the one with this index in order.
func (w *world) ackUpTo(s *simSink, last int) (some bool) {
	due := func(lane int) bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(s.lanes[lane]) > 0 && s.lanes[lane][0].e.order <= last
	}
	for lane := range w.lanes() {
		for due(lane) && w.ack(s, lane, 1) > 0 {
			some = true
			synctest.Wait() // the process sends on
		}
	}
	return some
}

// TestSimClocks: the server's clock jumps by +2 h, −1 h and at random, before every commit. Neither the order nor any
// timer of ours depends on it.
func TestSimClocks(t *testing.T) {
	first, n := simSeeds(t, 300)
	simRuns(t, "the server's clock jumps by +2 h, −1 h and at random before each commit", "F73", first, func(i int) (simOptions, bool) {
		return simOptions{seed: first + uint64(i), script: func(w *world) {
			w.small()
			w.start()
			for range 20 {
				w.jump()
				w.work()
				w.rest(w.upTo(time.Second))
				w.acknowledge()
				if w.IntN(4) == 0 {
					w.cut()
				}
				if w.halt() {
					return
				}
			}
			w.heal()
		}}, i < n
	})
}

// TestSimTakeover: the first process is frozen at each of its calls in turn. A second process takes the slot after
// wal_sender_timeout and delivers. Then the first process is resumed.
func TestSimTakeover(t *testing.T) {
	first, n := simSeeds(t, 600)
	simRuns(t, "a process is frozen, a second one takes over, the first goes on", "F06 F09", first, func(i int) (simOptions, bool) {
		return simOptions{seed: first + uint64(i), script: (*world).takeover}, i < n
	})
}

func (w *world) takeover() {
	w.small()
	a := w.start()
	do := func(ops ...func()) {
		for range 3 + w.IntN(5) {
			pick(w, ops)()
			w.rest(w.upTo(800 * time.Millisecond))
		}
	}
	do(w.work, w.acknowledge, w.storeOnly)
	w.edit(func() { a.thaw, a.wasFrozen = make(chan struct{}), true })
	w.work()
	b := w.start()
	if w.IntN(2) == 0 {
		w.rest(20 * time.Second) // longer than wal_sender_timeout and a read of the slot, shorter than park_after
		w.edit(func() {
			if b.stream == nil {
				w.fail("%s has not taken over: %s", b, "20 s after the first was frozen")
			}
		})
	}
	do(w.work, w.acknowledge, w.storeOnly)
	w.thawOne()
	do(w.work, w.acknowledge, w.landLate, w.kafkaFails, w.cut)
	if !w.halt() {
		w.heal()
	}
	if !w.halt() {
		w.farewell()
	}
	synctest.Wait()
}

// TestSimOtherHistory: the server is taken back to before delivered events, and continues with other transactions.
// The process ends, and confirms none of them.
func TestSimOtherHistory(t *testing.T) {
	first, n := simSeeds(t, 600)
	simRuns(t, "the server goes on with another history", "", first, func(i int) (simOptions, bool) {
		return simOptions{seed: first + uint64(i), script: (*world).otherHistory}, i < n
	})
}

func (w *world) otherHistory() {
	w.small()
	p := w.start()
	for range 4 + w.IntN(8) {
		w.work()
		w.rest(w.upTo(1500 * time.Millisecond))
		w.deliver()
	}
	if w.IntN(2) == 0 {
		w.rest(3 * time.Second)
		w.save()
	}
	w.cut() // a session adds to the history when it ends
	w.rest(time.Second)
	if w.halt() || !p.history {
		return
	}
	w.edit(func() {
		w.excused[Lost] = "restored from a backup"
		w.pg.trickle = true
		w.restore(p)
	})
	for range 12 {
		w.rest(w.upTo(1500 * time.Millisecond))
		if w.halt() {
			return
		}
		w.send()
	}
	w.heal()
	if w.broken == "" && !w.over {
		w.edit(func() { w.fail("%s goes on with another history", p) })
	}
}
