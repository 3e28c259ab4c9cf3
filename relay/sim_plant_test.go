package relay

import (
	"slices"

	"github.com/outboxcdc/outboxcdc/replication"
)

// Faults that an audit has to find.

// loseRecord makes Kafka lose the records of an event.
func (w *world) loseRecord() {
	w.edit(func() {
		k := w.kafka
		all := slices.DeleteFunc(slices.Clone(w.pg.events), func(e *event) bool { return k.copies[e] == 0 })
		if len(all) > 0 {
			k.lose(pick(w, all))
		}
	})
}

// lose removes the records of an event. w.mu is held.
func (k *simRecords) lose(e *event) {
	for _, log := range k.records {
		for _, r := range log {
			r.lost = r.lost || r.e == e
		}
	}
	k.copies[e], e.lost = 0, true
}

// plant ends all processes and plants a fault. w.mu is held.
func (w *world) plant() {
	pg := w.pg
	for _, p := range w.alive() {
		p.die()
	}
	kind := w.IntN(6)
	w.tell("plant %d", kind)
	if kind < 4 {
		for range 1 + w.IntN(3) {
			pg.commit(w.someRows(healthy))
		}
		pg.flush()
	}
	switch kind {
	case 0:
		pg.confirmed = pg.end // advanced, or recreated
	case 1:
		pg.openErr = &replication.Error{Kind: replication.SlotMissing, Op: "look", Err: errGone}
	case 2:
		pg.openErr = &replication.Error{Kind: replication.SlotLost, Op: "look", Err: errGone}
	case 3: // they wait
	case 4:
		for e, n := range w.kafka.copies {
			if n > 0 && e.id%5 == 0 {
				w.kafka.lose(e)
			}
		}
	default:
		w.failOver()
	}
}

// failOver promotes a standby that lacks the newest transactions, or restores such a copy, which has no new timeline. w.mu is held.
func (w *world) failOver() {
	pg := w.pg
	if len(pg.wal) == 0 {
		return
	}
	pg.crash()
	from := len(pg.wal) - 1 - w.IntN(min(5, len(pg.wal)))
	at := pg.wal[from].commit
	pg.takeBack(from, at)
	pg.confirmed = min(pg.confirmed, at)
	if w.IntN(3) > 0 {
		pg.fork(at)
	} else {
		w.back = true
	}
	for range w.IntN(4) {
		pg.commit(w.someRows(healthy))
	}
	pg.flush()
}
