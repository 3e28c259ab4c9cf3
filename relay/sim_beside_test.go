package relay

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// TestSimBesideAtLeastOnce runs the same histories of crashes with both delivery modes: the same transactions, kills
// after the same numbers of stored records, the same deleted records. Deduplicated delivery never repeats more, never
// leaves an older state last where the other does not, and never takes longer than the other and fence_wait for each
// start.
func TestSimBesideAtLeastOnce(t *testing.T) {
	first, n := atLeastSeeds(t, 1000)
	met, fewer, inOrder := simMetrics(), 0, 0
	for i := range n {
		seed := first + uint64(i)
		var results [2]besideResult
		for mode, dedup := range []bool{false, true} {
			w := simulate(t, simOptions{seed: seed, dedup: dedup, met: met, script: func(w *world) { results[mode] = w.beside(seed) }})
			if w.broken != "" {
				tellStory(t, simOptions{seed: seed, dedup: dedup, met: met, script: func(w *world) { w.beside(seed) }}, i, w.broken)
				return
			}
		}
		once, dedup := results[0], results[1]
		if dedup.records > once.records || dedup.stale > once.stale || dedup.took > once.took+dedup.waits {
			t.Errorf("seed %d: %+v deduplicated, %+v at least once", seed, dedup, once)
			for _, dedup := range []bool{false, true} {
				w := simulate(t, simOptions{seed: seed, dedup: dedup, met: met, story: true, script: func(w *world) { w.beside(seed) }})
				t.Logf("deduplicated: %v\n%s", dedup, w.story.String())
			}
			return
		}
		if dedup.records < once.records {
			fewer++
		}
		if dedup.records > dedup.events {
			inOrder++
		}
	}
	t.Logf("%d histories: deduplicated delivery repeats less in %d, and repeats something in %d", n, fewer, inOrder)
	if n >= 100 && (fewer == 0 || inOrder == 0) {
		t.Error("the histories prove little")
	}
}

// besideResult is what a reader sees at the end.
type besideResult struct {
	events, records, stale int
	took, waits            time.Duration
}

// beside runs a history. Its choices do not depend on the delivery mode.
func (w *world) beside(seed uint64) (res besideResult) {
	w.small()
	w.pg.trickle, w.pg.async, w.kafka.lookUp = false, false, false
	w.cfg.MaxEvents, w.cfg.ShutdownTimeout = 100, 10*time.Second // all events of a history fit, acknowledged or not: awaitSent
	w.cfg.Deduplication.LookBack = min(w.cfg.Deduplication.LookBack, 10_000)
	w.kafka.keepLogs = true
	plan := rand.New(rand.NewPCG(seed, 77))
	var high [simLanes]int // what Kafka has to have stored in each lane, if the process could send it: the same in both modes
	p := w.start()
	w.sleep(3 * time.Second)
	for range 2 + plan.IntN(4) {
		if plan.IntN(2) == 0 { // confirmed, so that the slot does not stay at the beginning
			w.awaitSent(p)
			for w.deliver() {
				w.sleep(time.Second)
			}
			w.sleep(4 * time.Second)
			w.edit(func() { high = w.pg.lanes })
		}
		for range 1 + plan.IntN(4) {
			rows := 1 + plan.IntN(3)
			w.edit(func() {
				wr := &writer{}
				for range rows {
					e := w.pg.write(wr, false, healthy)
					e.lane, e.alone = plan.IntN(simLanes), false
					e.key = string([]byte{'k', byte('0' + e.lane%2), 'a' + byte(plan.IntN(2))})
					wr.rows[len(wr.rows)-1].msg = w.pg.encode(wr.rows[len(wr.rows)-1].table, e)
				}
				w.pg.commit(wr)
			})
		}
		began := time.Now()
		w.awaitSent(p)
		res.took += time.Since(began)
		w.edit(func() { // Kafka has stored each lane up to the same event, and has acknowledged nothing
			for lane := range simLanes {
				high[lane] += plan.IntN(w.pg.lanes[lane] - high[lane] + 1)
				if p.sink == nil {
					continue
				}
				sent := p.sink.lanes[lane][:p.sink.left[lane]]
				if p.sink.leased() { // the modes differ in what shares a request: all of it has left, whatever was in the first one
					sent = p.sink.lanes[lane]
				}
				for _, f := range sent {
					if f.at.IsZero() {
						f.at = time.Now()
					}
					if f.e.seq <= high[lane] {
						f.store()
					}
				}
			}
			w.pg.heldUntil = time.Time{}
			p.die()
			w.pg.heldUntil = time.Time{}
		})
		w.look()
		w.edit(func() {
			w.kafka.orphans = nil
			for lane := range simLanes {
				cut, keep := plan.IntN(6), plan.IntN(100)
				log := w.kafka.logs[simPartition{lane / 2, lane % 2}]
				switch cut {
				case 0:
					for i := range log[:len(log)*keep/100] {
						log[i].gone = true
					}
				case 1:
					last := map[string]int{}
					for i := range log {
						if before, ok := last[log[i].e.key]; ok {
							log[before].gone = true
						}
						last[log[i].e.key] = i
					}
				}
			}
		})
		p = w.start()
		res.waits += w.cfg.Deduplication.FenceWait + 3*time.Second
		w.sleep(time.Second)
		if w.halt() {
			return res
		}
	}
	began := time.Now()
	w.heal()
	res.took += time.Since(began)
	w.mu.Lock()
	defer w.mu.Unlock()
	res.events = len(w.pg.order)
	for _, log := range w.kafka.logs {
		newest := map[simKey]checkpoint.Position{}
		last := map[simKey]checkpoint.Position{}
		for _, l := range log {
			res.records++
			key := simKey{l.e.lane, l.e.key}
			if l.pos.Compare(newest[key]) > 0 {
				newest[key] = l.pos
			}
			last[key] = l.pos
		}
		for key := range last {
			if last[key] != newest[key] {
				res.stale++
			}
		}
	}
	return res
}

// awaitSent waits until the process has sent or skipped all events.
func (w *world) awaitSent(p *process) {
	for range 400 {
		w.mu.Lock()
		s := p.sink
		done := p.ended() || s != nil && s.cursor >= 0 && s.st.next == w.pg.flushed && len(s.st.queue) == 0 && !s.st.inTx
		w.mu.Unlock()
		if done {
			return
		}
		w.sleep(50 * time.Millisecond)
	}
	w.edit(func() { w.fail("%s has not sent everything: %s", p, fmt.Sprint(w.behind())) })
}
