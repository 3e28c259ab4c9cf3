package relay

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pglogrepl"
)

// calm checks that acked events are confirmed soon if nothing prevents it. Otherwise a crash repeats more events than
// those in flight or just acked (I3). w.mu is held.
func (w *world) calm() {
	pg, st := w.pg, w.pg.holder
	if st == nil || st.p.thaw != nil || len(w.sick) > 0 || w.ill() || st.mute || st.deaf || len(st.queue) > 0 || st.next < pg.flushed {
		return
	}
	if s := st.p.sink; w.deduplicates() && (s == nil || s.stuck || s.failed) { // the position record waits for Kafka too
		return
	}
	var cleared time.Time
	if s := st.p.sink; w.deduplicates() {
		suspects := false
		if cleared, suspects = s.suspects(st); suspects {
			return
		}
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
	for _, t := range []time.Time{cleared, st.lastSent, st.began, w.trouble, tx.readAt, pg.moved} {
		since = maxTime(since, t)
	}
	// Nothing is confirmed before the server has sent again what an earlier session of the process has delivered, or has
	// found in Kafka (ARCHITECTURE.md, "The confirm rule", 9). A full window may keep the stream from getting there, and
	// so may the reading of the ends of partitions.
	for n, later := range pg.wal[i:] {
		for _, r := range later.rows {
			known := r.takes // an earlier session may have skipped it
			if r.ev != nil && i+n < pg.done {
				known = st.p.delivered(r.ev) || w.deduplicates() && r.ev.acked
			}
			if !known {
				continue
			}
			if later.readIn != st {
				return
			}
			since = maxTime(since, later.readAt)
		}
	}
	for _, r := range tx.rows {
		if e := r.ev; e != nil {
			if s := st.p.sink; s != nil && slices.ContainsFunc(s.lanes[:], func(lane []*flight) bool {
				return slices.ContainsFunc(lane, func(f *flight) bool { return f.e == e })
			}) { // sent again
				return
			}
			if e.ackedIn != st.p.sink && !st.p.knowsEvent(e) {
				return
			}
			since = maxTime(since, e.ackedAt)
			if w.deduplicates() { // only then the relay knows it
				for _, at := range st.p.sink.readAt {
					since = maxTime(since, at)
				}
			}
		}
	}
	if d := time.Since(since); d > 5*time.Second {
		w.fail("%s: the transaction at %s is acked, and not confirmed for %s", st.p, tx.commit, d)
	}
}

// judgeEnd checks the result of Run (I9). w.mu is held.
func (w *world) judgeEnd(p *process) {
	var stopped *Stopped
	class := Retry
	if errors.As(p.err, &stopped) {
		class = stopped.Class
	}
	w.see(p, "ends", uint64(class), 0)
	w.tell("%s: Run returned %v", p, p.err)
	switch {
	case p.err == nil && !p.terminated:
		w.fail("%s ended by itself", p)
	case p.err == nil && p.undrained > 0:
		w.fail("%s ended well with %d records in flight", p, p.undrained)
	case p.err == nil:
		w.reached[cleanEnd] = true
		confirmed := w.pg.highest
		if w.pg.down { // the slot cannot be read: a position that was sent without an error counts
			confirmed = p.sentToAny
		}
		if p.done != 0 && p.done >= confirmed {
			w.fail("%s ended well with the transaction at %s acked, but the slot confirmed only up to %s", p, p.done, confirmed)
		}
	case class == Fault && p.terminated:
		if errors.As(p.err, new(*errDrain)) {
			w.reached[drainIncomplete] = true
		} else {
			w.reached[unconfirmedEnd] = true
		}
	case w.excused[class] == "" || class == Retry:
		w.fail("%s ended with class %d, which nothing excuses: %v", p, class, p.err)
	default:
		w.reached[fatalLost] = w.reached[fatalLost] || class == Lost
		w.reached[fatalPoison] = w.reached[fatalPoison] || class == Poison
		w.reached[fatalPermission] = w.reached[fatalPermission] || class == PermissionDenied
		w.reached[fatalWrong] = w.reached[fatalWrong] || class == Wrong
		if p.stream != nil {
			w.fail("%s has ended with its stream open", p)
		}
		w.judgeLook(p)
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

// know notes that an event is in Kafka.
func (p *process) know(e *event) {
	for len(p.known) <= e.id {
		p.known = append(p.known, false)
	}
	p.known[e.id] = true
}

func (p *process) knowsEvent(e *event) bool { return e.skipped || p.delivered(e) }

// delivered reports whether the process has an acknowledgement of the event, in this session or an earlier one.
func (p *process) delivered(e *event) bool { return e.id < len(p.known) && p.known[e.id] }

// heal ends all faults. Then everything must be delivered and confirmed in time (I1, I6).
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
		for _, p := range w.alive() {
			if st := p.stream; st != nil {
				left = max(left, time.Until(st.tells))
			}
		}
		if w.ill() { // an idle session notices it at the next catalog check
			left += maxCheckInterval
		}
	})
	w.thawOne()
	for i := range w.kafka.missing {
		w.kafka.missing[i] = false
	}
	// The relay may take its longest pause between two attempts, and the time to notice a fault without an error.
	bound := w.cfg.BackoffMax + healSlack + mute + stuck + left
	if w.deduplicates() {
		bound += w.cfg.Deduplication.FenceWait
	}
	begun, most, restarts, refusals := time.Now(), bound, len(w.procs), w.refusals
	for !w.halt() && !w.healed() {
		w.edit(func() { w.pg.pump(-1); w.handleAll() })
		if !w.deliver() {
			w.rest(w.upTo(700*time.Millisecond) + 100*time.Millisecond)
		}
		if n := len(w.procs); n > restarts { // a process that ended, and the start of the next one
			bound += time.Duration(n-restarts) * (w.cfg.BackoffMax + healSlack + 20*time.Second)
			restarts = n
		}
		if w.refusals > refusals { // a refused batch: another session, record by record
			bound += time.Duration(w.refusals-refusals) * (w.cfg.BackoffMax + healSlack)
			refusals = w.refusals
		}
		if took := time.Since(begun); took > bound {
			states := w.states()
			w.edit(func() {
				w.fail("%s after everything was healed, of at most %s: %s;%s", took, bound, w.behind(), states)
			})
		}
	}
	if bound == most {
		w.slowest = time.Since(begun) - mute - stuck - left
	}
}

// healSlack is the time for opening both sides, a catalog check and the status update.
const healSlack = 8 * time.Second

// deliver acknowledges everything in flight.
func (w *world) deliver() bool {
	w.mu.Lock()
	sinks := slices.Clone(w.kafka.sinks)
	w.mu.Unlock()
	some := false
	for _, s := range sinks {
		for lane := range w.lanes() {
			for w.ack(s, lane, 1+w.IntN(3)) > 0 {
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
	if open, missing := w.unhandled(); w.holding && (open > 0 || missing != nil) {
		return false
	}
	return pg.done == len(pg.wal) && pg.confirmed == pg.flushedEnd && w.kafka.high == pg.lanes && !w.ill()
}

func (w *world) behind() string {
	pg := w.pg
	at := pglogrepl.LSN(0)
	if pg.done < len(pg.wal) {
		at = pg.wal[pg.done].commit
	}
	open, _ := w.unhandled()
	return fmt.Sprintf("%d letters open, %d of %d transactions acked (next at %s), the slot at %s of %s, stored %v of %v, excused %v",
		open, pg.done, len(pg.wal), at, pg.confirmed, pg.flushedEnd, w.kafka.high, pg.lanes, w.excused)
}

// states returns the states of the processes. w.mu is not held.
func (w *world) states() (out string) {
	for _, p := range w.alive() {
		out += fmt.Sprintf(" %s %s: %s;", p, p.relay.Status().State, p.relay.Status().Reason)
	}
	return out
}

// farewell stops the running process. Without a fault the end is clean, and the next process has nothing to repeat.
func (w *world) farewell() {
	w.thawOne()
	for _, p := range w.alive() {
		w.mu.Lock()
		well := p.sink == nil && !p.outdated || p.sink != nil && !p.sink.stuck && p.stream != nil && p.stream == w.pg.holder && !p.stream.deaf && !p.stream.slams
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
