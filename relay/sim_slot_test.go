package relay

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxcdc/outboxcdc/replication"
)

// recoverAll is the script of the runs of recover: a history, a fault of the slot, runs of recover until one says
// that nothing is missing, and the daemon again.
func (w *world) recoverAll() {
	w.positions, w.alike = map[string]string{}, true
	w.start()
	ops := w.ops()
	for range 2 + w.IntN(15) {
		w.do(pick(w, ops))
		w.rest(w.upTo(2 * time.Second))
		if w.halt() {
			return
		}
	}
	w.edit(w.harmSlot)
	w.edit(w.otherDatabase)
	w.look()
	unjudged, left := "", false // left: the operator has left rows that cannot be judged
	for tries := 0; ; tries++ {
		if tries > 20 {
			w.edit(func() { w.fail("recover does not get anywhere") })
		}
		if w.halt() {
			return
		}
		r := w.recoverOnce(tries < 4, unjudged)
		if r.ended() && r.err == nil && r.Left == 0 {
			left = r.Doubtful
			break
		}
		if r.Doubtful && unjudged == "" { // the operator decides
			w.edit(func() { unjudged = pick(w, []string{"send", "leave"}) })
		}
	}
	w.awaitAudits()
	w.edit(func() {
		w.pg.flush()
		w.pg.restream()
	})
	w.start()
	w.heal()
	if w.halt() {
		return
	}
	w.edit(func() {
		w.reached[firstRecovered] = w.reached[firstRecovered] || len(w.positions) > 0
	})
	w.sleep(time.Minute) // every commit is visible
	a := w.auditNow()
	w.edit(func() {
		w.reached[recoverLeft] = w.reached[recoverLeft] || left
		w.reached[recoverForked] = w.reached[recoverForked] || w.forked && len(w.positions) > 0
		w.reached[recoverLower] = w.reached[recoverLower] || w.lower && len(w.positions) > 0
		for e := range a.found["missing"] {
			if e.lost && w.deduplicates() { // its place in the log says that Kafka has it, and the slot may have it
				continue
			}
			w.fail("nothing was to be missing, and event %d is, committed at %s", e.id, e.tx.commit)
		}
	})
}

// recoverOnce runs recover once, and may kill it. unjudged is what the operator has decided about rows that cannot be
// judged.
func (w *world) recoverOnce(mayKill bool, unjudged string) *SimRecover {
	r := w.beginRecover(unjudged)
	killAt := 100 * time.Hour
	switch {
	case !mayKill:
	case w.IntN(3) == 0:
		killAt = w.upTo(15 * time.Second)
	case w.IntN(2) == 0: // while it sends
		killAt = simFence + w.upTo(2*time.Second)
	}
	for begun := time.Now(); !r.ended() && !w.halt(); {
		if time.Since(begun) > killAt {
			w.edit(r.kill)
			<-r.over
			synctest.Wait()
			break
		}
		if w.IntN(4) == 0 {
			w.work()
		}
		if mayKill && !r.beside && w.IntN(6) == 0 && w.isKeptAway() { // a supervisor starts the daemon
			r.beside = true
			w.edit(func() { w.excused[Lost] = "a recovery has not finished" })
			w.start()
		}
		w.edit(func() {
			if len(w.pg.writers) > 0 && w.IntN(2) == 0 {
				w.pg.commit(w.pg.writers[0])
			}
			if w.IntN(2) == 0 {
				w.pg.flush()
			}
			if mayKill && w.IntN(60) == 0 {
				w.pg.crash()
			}
		})
		time.Sleep(w.upTo(500 * time.Millisecond))
		synctest.Wait()
	}
	w.edit(func() {
		if !r.ended() { // the run of the simulator has failed
			r.kill()
		}
	})
	<-r.over
	w.look()
	w.edit(func() {
		for _, p := range w.alive() {
			p.die()
		}
		w.pg.heldUntil = time.Time{}
		clear(w.excused)
	})
	w.look()
	w.edit(func() {
		if r.beside && r.err != nil && strings.Contains(r.err.Error(), "is active for PID") {
			w.reached[recoverActive] = true
			return
		}
		if r.err != nil && r.Doubtful && unjudged == "" && strings.Contains(r.err.Error(), "--unjudged=send") { // it asks for a decision
			return
		}
		if r.err != nil && r.restarts == w.pg.restarts && !errors.Is(r.err, context.Canceled) {
			w.fail("%s ends with %v", r.p, r.err)
		}
	})
	return r
}

// isKeptAway reports whether a daemon that starts now delivers nothing before a recovery has finished, or nothing is
// missing before the slot. With at_least_once, or without a position record, nothing tells a daemon that its slot was
// moved.
func (w *world) isKeptAway() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	pg := w.pg
	if pg.recovery == 0 && pg.recovered { // by a run that was killed just after that: the slot is in order
		return false
	}
	return pg.recovery != 0 || !pg.hasSlot() || w.deduplicates() && len(w.kafka.saved) > 0 || !pg.placed
}

// harmSlot kills all processes and takes the slot away, or moves it. w.mu is held.
func (w *world) harmSlot() {
	pg := w.pg
	for len(w.sick) > 0 {
		w.endCondition()
	}
	for _, p := range w.alive() {
		p.die()
	}
	clear(w.excused)
	pg.heldUntil, pg.breaks, pg.still = time.Time{}, 0, 0
	pg.flush()
	for _, lane := range w.kafka.orphans {
		n := w.IntN(len(lane) + 1)
		w.afterwards(func() {
			for _, f := range lane[:n] {
				f.store()
			}
		})
	}
	w.kafka.orphans = nil
	more := func() {
		for range w.IntN(6) {
			pg.commit(w.someRows(healthy))
		}
		pg.flush()
	}
	more()
	switch w.IntN(6) {
	case 0:
		w.goBack(true)
		w.forked = true
	case 1:
		for range w.IntN(3) { // timelines that are lost
			w.goBack(true)
		}
		was := pg.id.Timeline
		w.takeOlder()
		w.forked, w.lower = true, pg.id.Timeline < was
	}
	kind := w.IntN(5)
	w.tell("harm %d", kind)
	switch kind {
	case 0:
		pg.openErr = &replication.Error{Kind: replication.SlotMissing, Op: "look", Err: errGone}
	case 1:
		pg.openErr = &replication.Error{Kind: replication.SlotLost, Op: "look", Err: errGone}
	case 2: // recreated by another client
		pg.place(pg.end)
	case 3: // advanced
		if i := pg.firstAfter(pg.confirmed); i < len(pg.wal) {
			pg.place(pg.wal[i+w.IntN(len(pg.wal)-i)].end)
		}
	default: // nothing happened to it
		pg.saved, w.slotKept = pg.confirmed, true
	}
	more()
}

// restream leaves only what the slot has to be delivered. Nothing is in flight. w.mu is held.
func (pg *simPG) restream() {
	k := pg.w.kafka
	for _, e := range pg.order {
		e.order = -1
	}
	pg.wal = slices.DeleteFunc(pg.wal, func(tx *simTx) bool { return tx.hidden || tx.commit < pg.confirmed })
	pg.flushed, pg.done, pg.order = len(pg.wal), 0, nil
	pg.lanes, k.high = [simLanes]int{}, [simLanes]int{}
	for _, tx := range pg.wal {
		for _, row := range tx.rows {
			if e := row.ev; e != nil {
				pg.expect(e)
				if e.stored > 0 {
					k.high[e.lane] = e.seq
				}
			}
		}
	}
	pg.progress()
}

// TestSimRecover loses the slot after a random history, and recovers.
func TestSimRecover(t *testing.T) {
	first, n := atLeastSeeds(t, 3000)
	res := simRuns(t, "random histories in which the slot is lost, recover with kills, and the daemon after it, fresh seeds", "", first, func(i int) (simOptions, bool) {
		seed := first + uint64(i)
		return simOptions{seed: seed, audited: true, dedup: seed%2 == 1, twice: seed%20 == 0, script: (*world).recoverAll}, i < n
	})
	if !t.Failed() {
		res.mustReach(t, markNames[firstRecovered:failedOver], 3000)
	}
}
