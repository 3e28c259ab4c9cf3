package relay

import (
	"slices"

	"github.com/outboxcdc/outboxcdc/replication"
)

// fatal causes an error that no retry fixes. It happens at most once in a run, while there is one process.
func (w *world) fatal() {
	alive := w.alive()
	if len(alive) != 1 || alive[0].thaw != nil || w.ill() {
		return
	}
	p := alive[0]
	kind := w.IntN(10)
	if kind == 6 && !p.history || kind == 3 && p.opened == 0 || kind == 5 && !p.begun { // only a process that knows the first state notices the change
		kind = w.IntN(3)
	}
	w.edit(func() {
		pg := w.pg
		gone := func(kind replication.Kind) error { return &replication.Error{Kind: kind, Op: "look", Err: errGone} }
		w.tell("kind %d", kind)
		w.see(nil, "fatal", uint64(kind), 0)
		switch kind {
		case 0:
			w.excused[Lost] = "slot dropped"
			pg.openErr = gone(replication.SlotMissing)
			pg.cut(-1)
		case 1:
			w.excused[Lost] = "slot lost"
			pg.openErr, pg.lookErr = gone(replication.SlotLost), gone(replication.SlotLost)
		case 2, 3:
			w.excused[Lost] = "publication altered"
			pg.filter = true
			pg.altered++
			pg.commit(w.someRows(healthy))
			if kind == 3 { // and back again, between two catalog checks
				pg.filter = false
			}
			if st := pg.holder; st != nil {
				st.keepalive(st.decoded(), false)
				st.poke()
			}
		case 4:
			w.excused[Lost] = "publication dropped"
			pg.filter, pg.openErr = true, gone(replication.PublicationMissing)
			pg.commit(w.someRows(healthy))
			if st := pg.holder; st != nil {
				st.say(sentItem{notice: gone(replication.PublicationMissing)})
				st.keepalive(st.decoded(), false)
				st.poke()
			}
		case 5:
			w.excused[Lost] = "another cluster"
			pg.id.SystemID = 8
			pg.cut(-1)
		case 6:
			w.excused[Lost] = "restored from a backup"
			w.restore(p)
		case 7:
			w.excused[Wrong] = "a synchronous standby"
			pg.lookErr = gone(replication.SynchronousStandby)
		default:
			w.excused[Poison] = "poison"
			last := poisonKind(1 + w.IntN(3))
			if w.dead {
				last = hopeless
			}
			pg.commit(w.someRows(last))
		}
	})
}

// someRows begins a transaction of a few rows, the last of the given kind.
func (w *world) someRows(last poisonKind) *writer {
	wr := &writer{}
	for range w.IntN(3) {
		w.pg.write(wr, false, healthy)
	}
	w.pg.write(wr, false, last)
	return wr
}

// restore takes the server back to before a transaction that the process knows to be in Kafka. Another history
// follows, which may have a transaction at the same LSN, or reach beyond it. No server is on a timeline before the
// timeline begins.
func (w *world) restore(p *process) {
	pg := w.pg
	pg.crash()
	oldest, newest := -1, -1
	for i, tx := range pg.wal {
		if tx.commit > pg.timelineBegin() && slices.ContainsFunc(tx.rows, func(r row) bool { return r.ev != nil && !r.ev.skipped && p.prefix[r.ev] }) {
			newest = i
			if oldest < 0 {
				oldest = i
			}
		}
	}
	if newest < 0 { // the crash has removed it, or it is of an earlier timeline
		w.over = true
		return
	}
	from := newest
	if w.IntN(2) == 0 {
		from = oldest + w.IntN(newest-oldest+1)
	}
	at, known := pg.wal[from].commit, pg.wal[newest].commit
	pg.takeBack(from, at)
	w.back = true
	pg.confirmed = min(pg.confirmed, at)
	pg.saved = pg.confirmed
	pg.xid += 100
	wr := w.someRows(healthy)
	if w.IntN(2) == 0 {
		pg.end = at // the rows were written earlier
	}
	if w.IntN(4) > 0 {
		pg.commit(wr)
	}
	for pg.end <= known && w.IntN(4) > 0 {
		pg.commit(w.someRows(healthy))
	}
	if w.IntN(2) == 0 {
		pg.advance(false, 100)
	}
	pg.flush()
}

// operator fixes the cause for which a process ended. Some causes end the run.
func (w *world) operator() {
	if w.excused[Lost] == ownersAct {
		w.sleep(simFence) // an adoption forgets whose records may still arrive
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.excused[Lost] == "restored from a backup" {
		w.over = true
		return
	}
	pg := w.pg
	w.tell("the operator fixes %v", w.excused)
	if w.excused[Lost] == ownersAct {
		w.adopt()
	}
	clear(w.excused)
	pg.openErr, pg.lookErr, pg.filter, pg.id.SystemID = nil, nil, false, 7
	w.kafka.unusable = false
	pg.forget()
	if w.dead {
		w.decide()
		return
	}
	for _, e := range pg.events {
		if e.poison == noKey && e.tx != nil {
			for i, r := range e.tx.rows {
				if r.ev == e {
					e.poison = healthy
					e.tx.rows[i].msg = pg.encode(r.table, e)
				}
			}
		}
		e.poison = healthy
	}
}

// ill reports whether there is a fault that must end a process. (A process need not notice a permission that was
// denied once.)
func (w *world) ill() bool {
	_, right := w.excused[PermissionDenied]
	return len(w.excused) > 1 || len(w.excused) == 1 && !right
}
