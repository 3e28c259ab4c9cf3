package relay

import (
	"cmp"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/router"
)

// The header outboxcdc-position in all runs. A consumer stores the last position of each lane, as docs/consumers.md
// says. Checks:
//
//   - no two events have the same header, except after a restore of a copy without a new timeline
//   - an event that comes for the first time is new to the consumer, and its epoch is not lower than that of the
//     events before it
//   - a repeated event is not new

// simDatabase is the OID of the database.
const simDatabase = 16384

// simHeader is the header of a record.
type simHeader struct {
	pos checkpoint.Position
	checkpoint.Origin
}

// simHeaders has the headers of all records, and a consumer's marks. Guarded by world.mu.
type simHeaders struct {
	owner map[simHeader]*event
	marks [simLanes]simHeader
}

// isNew reports whether a consumer takes a record for new after the last one that it has handled.
func (h simHeader) isNew(last simHeader) bool {
	epoch := h.Epoch
	if epoch == 0 { // not known
		epoch = last.Epoch
	}
	return cmp.Or(cmp.Compare(epoch, last.Epoch), cmp.Compare(h.pos.Timeline, last.pos.Timeline), cmp.Compare(h.pos.CommitLSN, last.pos.CommitLSN),
		cmp.Compare(h.pos.Ordinal, last.pos.Ordinal)) > 0
}

// headerOf reads the header of a record that is sent. w.mu is held.
func (w *world) headerOf(e *event, rec *router.Record) (h simHeader) {
	for _, x := range rec.Headers {
		if x.Name != router.HeaderPosition {
			continue
		}
		var err error
		if h.pos, h.Origin, err = checkpoint.ParseHeader(string(x.Value)); err != nil {
			w.fail("event %d: %v", e.id, err)
		}
	}
	switch by := w.headers.owner[h]; {
	case h.Database != simDatabase || h.Slot != "slot":
		w.fail("event %d is of slot %q of database %d", e.id, h.Slot, h.Database)
	case !w.deduplicates() && h.Epoch != 0:
		w.fail("event %d has epoch %d, and there is no position record", e.id, h.Epoch)
	case by != nil && by != e && !w.back:
		w.fail("events %d and %d have the header %s", by.id, e.id, checkpoint.FormatHeader(h.pos, h.Origin))
	}
	w.headers.owner[h] = e
	return h
}

// consume is the consumer's decision about a record that is stored. w.mu is held.
func (f *flight) consume() {
	w, e := f.by.k.w, f.e
	mark := &w.headers.marks[e.lane]
	isNew := f.header.isNew(*mark)
	was := checkpoint.FormatHeader(mark.pos, mark.Origin)
	switch {
	case w.back:
	case e.stored > 0 && isNew && e.before: // as documented: an adoption skips nothing, and begins a new epoch
		e.before = false
	case e.stored > 0 && isNew:
		w.fail("event %d is repeated, and a consumer takes it for new: %s after %s", e.id, checkpoint.FormatHeader(f.header.pos, f.header.Origin), was)
	case e.stored == 0 && (!isNew || f.header.Epoch < mark.Epoch):
		w.fail("event %d is new, and a consumer drops it: %s after %s", e.id, checkpoint.FormatHeader(f.header.pos, f.header.Origin), was)
	}
	if isNew {
		w.reached[restoredLower] = w.reached[restoredLower] || f.header.pos.Timeline < mark.pos.Timeline
		*mark = f.header
	}
}

// TestSimRestored restores the server from older copies, onto timelines with lower or equal numbers, between
// failovers. The slot is created again and adopted.
func TestSimRestored(t *testing.T) {
	first, n := atLeastSeeds(t, 1000)
	res := simRuns(t, "random histories with failovers, restores onto lower timelines and adoptions, read by a consumer that compares positions", "", first, func(i int) (simOptions, bool) {
		seed := first + uint64(i)
		return simOptions{seed: seed, failovers: true, dedup: true, dead: seed%4 < 2, twice: seed%20 == 0, script: (*world).restoreAll}, i < n
	})
	if !t.Failed() {
		res.mustReach(t, markNames[restoredLower:firstOwner], 500)
	}
}

func (w *world) restoreAll() {
	w.start()
	ops := w.ops()
	often := []op{
		{"write", w.work},
		{"write", w.work},
		{"deliver", func() { w.deliver() }},
		{"deliver", func() { w.deliver() }},
		{"failover", w.failover},
		{"failover", w.failover},
		{"copy the slot", w.copySlot},
	}
	for range 1 + w.IntN(4) {
		for range 5 + w.IntN(20) {
			if w.IntN(3) > 0 {
				w.do(pick(w, often))
			} else {
				w.do(pick(w, ops))
			}
			w.rest(w.upTo(2 * time.Second))
			if w.halt() {
				return
			}
		}
		for range 2 * w.IntN(3) { // the timelines that are lost
			w.edit(func() {
				for len(w.sick) > 0 {
					w.endCondition()
				}
			})
			w.failover()
			w.rest(5 * time.Second)
			w.work()
			w.deliver()
		}
		w.edit(w.restoreOlder)
		w.look()
		if w.halt() {
			return
		}
		w.start()
		w.rest(3 * time.Second)
		w.work()
		w.deliver()
	}
	w.heal()
}

// restoreOlder kills all processes, restores the server from an older copy, which begins another timeline, creates
// the slot at its end, and adopts it. w.mu is held.
func (w *world) restoreOlder() {
	pg := w.pg
	for len(w.sick) > 0 {
		w.endCondition()
	}
	for _, p := range w.alive() {
		p.die()
	}
	clear(w.excused)
	pg.heldUntil, pg.breaks, pg.still = time.Time{}, 0, 0
	w.takeOlder()
	pg.place(pg.end)
	pg.copies = [simStandbys]pglogrepl.LSN{pg.end, pg.end}
	pg.restream()
	k := w.kafka
	k.saved = append(k.saved, checkpoint.Merge(k.saved).Adoption("slot", pg.id.SystemID, pg.id.Timeline, 18, pg.confirmed, "", "s", time.Now()))
}

// takeOlder restores the server from an older copy, which begins another timeline: its number can be lower than the
// one before. w.mu is held.
func (w *world) takeOlder() {
	pg := w.pg
	pg.crash()
	keep := w.IntN(pg.flushed/4 + 1)
	at := pg.flushedEnd
	if keep < pg.flushed {
		at = pg.wal[keep].commit
	}
	w.see(nil, "a copy is restored", uint64(at), uint64(keep))
	pg.takeBack(keep, at)
	w.kafka.orphans = nil
	pg.xid += 100
	pg.id.Timeline = pg.id.TimelineOf(at - 1)
	pg.fork(at)
	pg.highest, pg.confirmed = min(pg.highest, at), min(pg.confirmed, at)
	pg.saved = pg.confirmed
}
