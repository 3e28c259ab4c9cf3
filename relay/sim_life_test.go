package relay

import (
	"errors"
	"fmt"
	"slices"
	"testing/synctest"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/replication"
)

// kill ends a process at whatever it is doing.
func (w *world) kill() {
	if alive := w.alive(); len(alive) > 0 {
		p := pick(w, alive)
		state := p.relay.Status().State
		w.edit(func() {
			w.markKill(p, state)
			w.see(p, "is killed", 0, 0)
			p.die()
		})
	}
}

func (w *world) markKill(p *process, state State) {
	switch state {
	case Reconnecting:
		w.reached[killedInRetry] = true
	case Parked:
		w.reached[killedParked] = true
	case Draining:
		w.reached[killedDraining] = true
	}
	if st := p.stream; st != nil {
		w.reached[killedInsideTx] = w.reached[killedInsideTx] || st.inTx
		i := w.pg.firstAfter(st.received)
		w.reached[killedBetweenAdjacent] = w.reached[killedBetweenAdjacent] || i < len(w.pg.wal) && w.pg.wal[i].commit == st.received
	}
}

// quitOne is SIGTERM to one process, with Kafka answering or not.
func (w *world) quitOne() {
	if alive := w.alive(); len(alive) > 0 {
		p := pick(w, alive)
		if p.thaw == nil {
			w.quit(p, w.IntN(3))
		}
	}
}

// quit is SIGTERM. Of the acknowledgements that the drain waits for, mercy 0 gives none, 1 some, and 2 all.
func (w *world) quit(p *process, mercy int) {
	w.mu.Lock()
	p.told = true
	w.see(p, "is told to stop", 0, 0)
	w.mu.Unlock()
	p.cancel()
	synctest.Wait()
	for range 4000 {
		w.mu.Lock()
		s := p.sink
		over := p.isDead || w.broken != ""
		w.mu.Unlock()
		if over || p.ended() {
			break
		}
		if s != nil && mercy > 0 {
			for lane := range simLanes {
				for w.ack(s, lane) && mercy > 1 {
				}
			}
		}
		w.sleep(w.upTo(200 * time.Millisecond))
	}
	w.look()
	if !p.gone && !w.halt() {
		state := p.relay.Status().State
		w.edit(func() { w.fail("%s was told to stop and has not, state %s", p, state) })
	}
}

// second starts a process beside the first, which waits for the slot.
func (w *world) second() {
	if len(w.alive()) == 1 && !w.ill() {
		w.start()
	}
}

// freeze stops a process as SIGSTOP does; a second one is there to take over.
func (w *world) freeze() {
	alive := w.alive()
	if len(alive) == 0 || w.ill() || slices.ContainsFunc(alive, func(p *process) bool { return p.thaw != nil }) {
		return
	}
	p := pick(w, alive)
	w.edit(func() {
		w.see(p, "is frozen", 0, 0)
		p.thaw, p.wasFrozen = make(chan struct{}), true
		w.reached[frozen] = w.reached[frozen] || p.stream != nil && w.pg.holder == p.stream
		w.disturb()
	})
	w.second()
}

// thawOne lets the frozen one go on. It does not know that its slot is another's.
func (w *world) thawOne() {
	w.edit(func() {
		for _, p := range w.alive() {
			if p.thaw == nil {
				continue
			}
			w.see(p, "goes on", 0, 0)
			if st := p.stream; st != nil {
				st.lastStatus = time.Now()
				w.reached[thawedLate] = w.reached[thawedLate] || st.err != nil
			}
			close(p.thaw)
			p.thaw = nil
			w.disturb()
		}
	})
}

// fatal is something that no retry mends. It happens once in a run, with one process there.
func (w *world) fatal() {
	alive := w.alive()
	if len(alive) != 1 || alive[0].thaw != nil || w.ill() {
		return
	}
	p := alive[0]
	kind := w.IntN(10)
	if kind == 6 && !p.history || (kind == 3 || kind == 5) && p.opened == 0 { // only who has seen the one can tell the other
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
			if kind == 3 { // and back again, between two looks
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
			pg.commit(w.someRows(poisonKind(1 + w.IntN(3))))
		}
	})
}

// someRows is a transaction of a few rows, the last of which is what is said.
func (w *world) someRows(last poisonKind) *writer {
	wr := &writer{}
	for range w.IntN(3) {
		w.pg.write(wr, false, healthy)
	}
	w.pg.write(wr, false, last)
	return wr
}

// restore takes the server back to before a transaction that the process knows to be in Kafka, and lets another history
// follow, which may reach beyond what is known, or be at the same LSN.
func (w *world) restore(p *process) {
	pg := w.pg
	pg.crash()
	oldest, newest := -1, -1
	for i, tx := range pg.wal {
		if slices.ContainsFunc(tx.rows, func(r row) bool { return r.ev != nil && p.knowsEvent(r.ev) }) {
			newest = i
			if oldest < 0 {
				oldest = i
			}
		}
	}
	if newest < 0 { // the crash took it
		w.over = true
		return
	}
	from := newest
	if w.IntN(2) == 0 {
		from = oldest + w.IntN(newest-oldest+1)
	}
	at, known := pg.wal[from].commit, pg.wal[newest].commit
	pg.unwrite(from)
	pg.flushed, pg.end, pg.flushedEnd = from, at, at
	pg.confirmed = min(pg.confirmed, at)
	pg.saved = pg.confirmed
	pg.xid += 100
	for i := range simLanes { // what Kafka has of the history that is gone is nobody's business any more
		w.kafka.high[i] = min(w.kafka.high[i], pg.lanes[i])
	}
	wr := w.someRows(healthy)
	if w.IntN(2) == 0 {
		pg.end = at // the rows are older
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

// operator mends what ended a process, so that the next can go on; some things end the run.
func (w *world) operator() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.excused[Lost] == "restored from a backup" {
		w.over = true
		return
	}
	pg := w.pg
	w.tell("the operator mends %v", w.excused)
	clear(w.excused)
	pg.openErr, pg.lookErr, pg.filter, pg.id.SystemID = nil, nil, false, 7
	pg.forget()
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

// ill reports whether something is wrong that a process must end of. (A right that is refused once need not be seen.)
func (w *world) ill() bool {
	_, right := w.excused[Right]
	return len(w.excused) > 1 || len(w.excused) == 1 && !right
}

// sleep lets time pass, in pieces, and looks after each.
func (w *world) sleep(d time.Duration) {
	for d > 0 {
		piece := min(d, 2*time.Second)
		time.Sleep(piece)
		synctest.Wait()
		d -= piece
		w.mu.Lock()
		w.server()
		w.calm()
		w.mu.Unlock()
		synctest.Wait()
	}
}

// rest is sleep, and then sees to processes that have ended.
func (w *world) rest(d time.Duration) {
	w.sleep(d)
	w.look()
	for !w.halt() && len(w.alive()) == 0 {
		if len(w.excused) > 0 {
			w.operator()
			if w.halt() {
				return
			}
		}
		if w.IntN(2) == 0 {
			w.sleep(w.upTo(20 * time.Second))
		}
		w.start()
		w.look()
	}
}

// server ends connections of which it has heard nothing for its time-out.
func (w *world) server() {
	st := w.pg.holder
	if st == nil || time.Since(st.lastStatus) <= w.cfg.WalSenderTimeout && !st.deaf || time.Since(st.lastStatus) <= 3*time.Second {
		return
	}
	if st.p.thaw == nil && !st.deaf {
		w.fail("%s: no status update for %s", st.p, time.Since(st.lastStatus))
	}
	if st.p.thaw != nil && time.Since(st.lastStatus) <= w.cfg.WalSenderTimeout {
		return
	}
	w.see(st.p, "server gives it up", 0, 0)
	st.end(errGone)
	st.poke()
}

// calm checks that what is acked and read is confirmed soon, when nothing hinders: else a crash repeats more than what
// was in flight or just acked (I3). w.mu is held.
func (w *world) calm() {
	pg, st := w.pg, w.pg.holder
	if st == nil || st.p.thaw != nil || len(w.sick) > 0 || w.ill() || st.mute || st.deaf || len(st.queue) > 0 || st.next < pg.flushed {
		return
	}
	i := pg.firstAfter(pg.confirmed)
	if i >= pg.done || i >= len(pg.wal) {
		return
	}
	tx := pg.wal[i]
	if tx.readIn != st {
		return
	}
	var since time.Time
	for _, t := range []time.Time{st.lastSent, st.began, w.trouble, tx.readAt} {
		since = maxTime(since, t)
	}
	for _, r := range tx.rows {
		if e := r.ev; e != nil {
			if e.ackedIn != st.p.sink && !st.p.knowsEvent(e) {
				return
			}
			since = maxTime(since, e.ackedAt)
		}
	}
	if d := time.Since(since); d > 5*time.Second {
		w.fail("%s: the transaction at %s is acked, and not confirmed for %s", st.p, tx.commit, d)
	}
}

// look sees what has become of the processes.
func (w *world) look() {
	for _, p := range w.procs {
		switch {
		case p.gone:
		case p.isDead:
			w.reap(p)
		case p.ended():
			p.gone = true
			w.mu.Lock()
			w.judgeEnd(p)
			w.mu.Unlock()
		}
	}
}

// reap lets the goroutines of a dead process end; nothing that they do has an effect.
func (w *world) reap(p *process) {
	p.gone = true
	if p.failed != nil {
		p.failed(errDead)
	}
	p.cancel()
	synctest.Wait()
	if !p.ended() {
		select {
		case <-p.over:
		case <-time.After(10 * time.Minute):
			w.edit(func() { w.fail("%s is dead and does not end", p) })
		}
	}
}

// judgeEnd checks what Run has returned (I9). w.mu is held.
func (w *world) judgeEnd(p *process) {
	var stopped *Stopped
	class := Retry
	if errors.As(p.err, &stopped) {
		class = stopped.Class
	}
	w.see(p, "ends", uint64(class), 0)
	w.tell("%s: Run returned %v", p, p.err)
	switch {
	case p.err == nil && !p.told:
		w.fail("%s ended by itself", p)
	case p.err == nil:
		w.reached[cleanEnd] = true
		told := w.pg.told
		if w.pg.down { // the slot cannot be asked: what was sent without an error counts
			told = p.said
		}
		if p.done != 0 && p.done >= told {
			w.fail("%s ended well with the transaction at %s acked, and the slot was told %s", p, p.done, told)
		}
	case class == Fault && p.told:
		if errors.As(p.err, new(*errDrain)) {
			w.reached[drainIncomplete] = true
		} else {
			w.reached[notTold] = true
		}
	case w.excused[class] == "" || class == Retry:
		w.fail("%s ended with class %d, which nothing excuses: %v", p, class, p.err)
	default:
		w.reached[fatalLost] = w.reached[fatalLost] || class == Lost
		w.reached[fatalPoison] = w.reached[fatalPoison] || class == Poison
		w.reached[fatalRight] = w.reached[fatalRight] || class == Right
		w.reached[fatalWrong] = w.reached[fatalWrong] || class == Wrong
		if p.stream != nil {
			w.fail("%s has ended with its stream open", p)
		}
	}
}

// knows reports whether the process knows that all events of a transaction are in Kafka.
func (p *process) knows(tx *simTx) bool {
	for _, r := range tx.rows {
		if r.ev == nil {
			continue
		}
		if !p.knowsEvent(r.ev) {
			return false
		}
	}
	return true
}

func (p *process) knowsEvent(e *event) bool { return e.id < len(p.known) && p.known[e.id] }

// heal ends all that ails; then everything must be delivered and confirmed in time (I1, I6).
func (w *world) heal() {
	w.tell("heal")
	var mute, stuck, left time.Duration
	w.edit(func() {
		for len(w.sick) > 0 {
			w.endCondition()
		}
		pg := w.pg
		pg.breaks, pg.still, pg.async, pg.trickle = 0, 0, false, false
		for len(pg.writers) > 0 {
			pg.commit(pg.writers[0])
		}
		pg.flush()
		if st := pg.holder; st != nil && (st.mute || st.deaf) {
			mute = w.cfg.WalSenderTimeout + w.cfg.WalSenderTimeout/3
		}
		for _, s := range w.kafka.sinks {
			if s.stuck {
				stuck = w.cfg.ParkAfter
			}
		}
		left = max(0, time.Until(pg.heldUntil), time.Until(pg.slowUntil))
	})
	w.thawOne()
	for i := range w.kafka.missing {
		w.kafka.missing[i] = false
	}
	// What the relay may spend: its longest pause between two tries, and the time until it has noticed what is not told.
	bound := w.cfg.BackoffMax + healSlack + mute + stuck + left
	begun, restarts := time.Now(), len(w.procs)
	for !w.halt() && !w.healed() {
		w.edit(func() { w.pg.pump(-1) })
		if !w.deliver() {
			w.rest(w.upTo(700*time.Millisecond) + 100*time.Millisecond)
		}
		if n := len(w.procs); n > restarts { // a process that ended, the next one's start, and what that finds
			bound += time.Duration(n-restarts) * (w.cfg.BackoffMax + healSlack + 20*time.Second)
			restarts = n
		}
		if took := time.Since(begun); took > bound {
			states := w.states()
			w.edit(func() {
				w.fail("%s after everything was healed, of at most %s: %s;%s", took, bound, w.behind(), states)
			})
		}
	}
	w.slowest = time.Since(begun) - mute - stuck - left
}

// healSlack is what opening both sides, a look at the catalogs and the status update need beside the pause.
const healSlack = 8 * time.Second

// deliver acknowledges everything in flight.
func (w *world) deliver() bool {
	w.mu.Lock()
	sinks := slices.Clone(w.kafka.sinks)
	w.mu.Unlock()
	some := false
	for _, s := range sinks {
		for lane := range simLanes {
			for w.ack(s, lane) {
				some = true
			}
		}
	}
	return some
}

func (w *world) healed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	pg := w.pg
	pg.progress()
	return pg.done == len(pg.wal) && pg.confirmed == pg.flushedEnd && w.kafka.high == pg.lanes && !w.ill()
}

func (w *world) behind() string {
	pg := w.pg
	at := pglogrepl.LSN(0)
	if pg.done < len(pg.wal) {
		at = pg.wal[pg.done].commit
	}
	return fmt.Sprintf("%d of %d transactions acked (next at %s), the slot at %s of %s, stored %v of %v, excused %v",
		pg.done, len(pg.wal), at, pg.confirmed, pg.flushedEnd, w.kafka.high, pg.lanes, w.excused)
}

// states is what the processes say of themselves; w.mu is not held.
func (w *world) states() (out string) {
	for _, p := range w.alive() {
		out += fmt.Sprintf(" %s %s: %s;", p, p.relay.Status().State, p.relay.Status().Reason)
	}
	return out
}

// farewell stops what runs: with nothing wrong, that is a clean end, and whoever comes next has nothing to repeat.
func (w *world) farewell() {
	w.thawOne()
	for _, p := range w.alive() {
		w.mu.Lock()
		well := p.sink == nil || !p.sink.stuck && p.stream != nil && p.stream == w.pg.holder && !p.stream.deaf && !p.stream.slams
		w.mu.Unlock()
		w.quit(p, 2)
		if w.halt() {
			return
		}
		w.edit(func() {
			if p.gone && !p.isDead && p.err != nil && well {
				w.fail("nothing is wrong, and %s ended with %v", p, p.err)
			}
		})
	}
	if w.IntN(4) > 0 || w.halt() {
		return
	}
	p := w.start()
	w.sleep(3 * time.Second)
	w.edit(func() {
		if p.sink != nil && p.sink.sent {
			w.fail("%s repeats what was confirmed by a clean end", p)
		}
	})
}

// cleanUp ends every goroutine.
func (w *world) cleanUp() {
	w.mu.Lock()
	for _, s := range w.sick {
		s.end()
	}
	w.sick = nil
	for _, p := range w.procs {
		if !p.gone {
			p.die()
		}
	}
	w.mu.Unlock()
	for _, p := range w.procs {
		if !p.gone {
			w.reap(p)
		}
	}
}
