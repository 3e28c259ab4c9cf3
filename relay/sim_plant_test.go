package relay

import (
	"slices"
	"strconv"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
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
	w.otherDatabase()
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

// failOver promotes a standby that lacks the newest transactions, or restores such a copy, which has no new timeline.
// w.mu is held.
func (w *world) failOver() {
	w.goBack(w.IntN(3) > 0)
}

// goBack is failOver, with a new timeline or without. w.mu is held.
func (w *world) goBack(fork bool) {
	pg := w.pg
	if len(pg.wal) == 0 {
		return
	}
	pg.crash()
	from := len(pg.wal) - 1 - w.IntN(min(5, len(pg.wal)))
	at := pg.wal[from].commit
	pg.takeBack(from, at)
	pg.confirmed = min(pg.confirmed, at)
	if fork {
		pg.fork(at)
	} else {
		w.back = true
	}
	for range w.IntN(4) {
		pg.commit(w.someRows(healthy))
	}
	pg.flush()
}

// otherDatabase has another database of another server write records with the ids of some events, into the logs that
// audits read. One of key and value may be that of the event as well. They say nothing about the rows. w.mu is held.
func (w *world) otherDatabase() {
	if w.IntN(2) == 0 {
		return
	}
	position := checkpoint.FormatHeader(checkpoint.Position{SystemID: 8, Timeline: 1, CommitLSN: w.pg.end}, checkpoint.Origin{Database: 5, Slot: "theirs"})
	for _, e := range w.pg.events {
		if e.message || w.IntN(3) > 0 {
			continue
		}
		rec := &router.Record{Key: []byte("stranger"), Value: []byte("theirs"), Headers: []router.Header{
			{Name: router.HeaderID, Value: []byte(strconv.Itoa(e.id))}, {Name: router.HeaderPosition, Value: []byte(position)},
		}}
		both := w.alike && w.IntN(4) == 0 // a copy of the row, or another event with the same content
		switch draw := w.IntN(3); {
		case both:
			e.alike = true
			rec.Key, rec.Value = []byte(e.key), []byte(e.value)
		case draw == 0:
			rec.Key = []byte(e.key)
		case draw == 1:
			rec.Value = []byte(e.value)
		}
		w.kafka.putStranger(simPartition{e.lane / 2, 0}, w.copied(nil, rec))
	}
	w.reached[idsElsewhere] = true
}

// putStranger stores a record of no event. w.mu is held.
func (k *simRecords) putStranger(at simPartition, r *simRecord) {
	if k.records == nil {
		k.records, k.copies = map[simPartition][]*simRecord{}, map[*event]int{}
	}
	r.kept, r.Time, r.Offset = true, time.Now(), int64(len(k.records[at]))
	if r.e != nil && !r.e.stamp.IsZero() {
		r.Time = r.e.stamp
	}
	k.records[at] = append(k.records[at], r)
}
