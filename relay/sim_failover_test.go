package relay

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
)

// Runs in which standbys are promoted while the daemons live, any number of times. Each of two standbys has a copy of
// the slot, which is renewed now and then, so a standby that is promoted later may have a newer copy than the one
// before it. A standby may lack the newest transactions, which may be in Kafka already. All invariants hold for what
// the new primary has: nothing of it is lost, repeated without need, or confirmed early. No failover ends a daemon.

// simStandbys is the number of standbys.
const simStandbys = 2

// TestSimFailover is TestSim with failovers, half of the runs with deduplicated delivery, half with dead letters.
func TestSimFailover(t *testing.T) {
	first, n := atLeastSeeds(t, 3000)
	res := simRuns(t, "random runs in which standbys with and without the newest transactions are promoted while the daemons live", "F36 F37", first, func(i int) (simOptions, bool) {
		seed := first + uint64(i)
		return simOptions{seed: seed, failovers: true, dedup: seed%2 == 0, dead: seed%4 < 2, twice: seed%20 == 0}, i < n
	})
	if !t.Failed() {
		res.mustReach(t, markNames[failedOver:restoredLower], 3000)
	}
}

// copySlot renews a standby's copy of the slot. A copy does not go back.
func (w *world) copySlot() {
	w.edit(func() {
		if i := w.IntN(simStandbys); !w.pg.down {
			w.pg.copies[i] = max(w.pg.copies[i], w.pg.confirmed)
		}
	})
}

// failover promotes a standby, every other time without the newest transactions, which are in Kafka often.
func (w *world) failover() {
	lossy := w.IntN(2) == 0
	if lossy && w.IntN(3) > 0 {
		for range 1 + w.IntN(3) {
			w.work()
			w.deliver()
		}
		w.rest(w.upTo(3 * time.Second))
		if w.halt() {
			return
		}
	}
	w.edit(func() {
		pg := w.pg
		if pg.down || pg.hang != nil || pg.held || w.ill() {
			return
		}
		keep := pg.flushed
		if lossy {
			keep -= min(keep, 1+w.IntN(4))
		}
		if keep < pg.flushed && pg.wal[keep].commit <= pg.timelineBegin() {
			keep = pg.flushed // a standby that is not on the primary's timeline is not promoted
		}
		w.promote(keep, pg.copies[w.IntN(simStandbys)])
	})
}

// promote promotes a standby that has the first transactions of the WAL and a copy of the slot. w.mu is held.
func (w *world) promote(keep int, slot pglogrepl.LSN) {
	pg := w.pg
	at, lossy := pg.flushedEnd, keep < pg.flushed
	if lossy {
		at = pg.wal[keep].commit
	}
	w.see(nil, "a standby is promoted", uint64(at), uint64(slot))
	w.reached[failedOver] = true
	for _, tx := range pg.wal[keep:] {
		w.reached[deliveredIsLost] = w.reached[deliveredIsLost] || slices.ContainsFunc(tx.rows, func(r row) bool { return r.ev != nil && r.ev.acked })
	}
	w.reached[newerCopy] = w.reached[newerCopy] || slot > pg.confirmed
	w.reached[olderCopy] = w.reached[olderCopy] || slot < pg.confirmed
	pg.crash()
	pg.takeBack(keep, at)
	pg.confirmed = min(slot, at)
	pg.saved, pg.heldUntil, pg.highest = pg.confirmed, time.Time{}, min(pg.highest, at)
	for i := range pg.copies {
		pg.copies[i] = min(pg.copies[i], at)
	}
	for _, p := range w.procs {
		p.lastSent, p.sentToAny = min(p.lastSent, at), min(p.sentToAny, at)
		if p.done >= at {
			p.done = 0
		}
		p.outdated = p.outdated || lossy
	}
	pg.fork(at)
}

// takeBack takes the server back to the first transactions of its WAL, which ends at an LSN then. w.mu is held.
func (pg *simPG) takeBack(keep int, at pglogrepl.LSN) {
	pg.unwrite(keep)
	pg.flushed, pg.end, pg.flushedEnd = keep, at, at
	for i := range simLanes { // records of the lost history are not checked any more
		pg.w.kafka.high[i] = min(pg.w.kafka.high[i], pg.lanes[i])
	}
}

// timelineBegin returns where the server's timeline begins, 0 for the first one.
func (pg *simPG) timelineBegin() pglogrepl.LSN {
	lsn, _ := pg.id.EndOf(pg.id.Timeline - 1)
	return lsn
}

// fork begins a new timeline. w.mu is held.
func (pg *simPG) fork(at pglogrepl.LSN) {
	var history string
	for timeline := int32(1); timeline < pg.id.Timeline; timeline++ {
		end, _ := pg.id.EndOf(timeline)
		history += fmt.Sprintf("%d\t%s\tno recovery target specified\n", timeline, end)
	}
	history += fmt.Sprintf("%d\t%s\tno recovery target specified\n", pg.id.Timeline, at)
	var err error
	if pg.id, err = pg.id.WithHistory([]byte(history)); err != nil {
		pg.w.fail("%v", err)
	}
	pg.id.Timeline++
	pg.advance(false, 13) // a checkpoint
	pg.flush()
}
