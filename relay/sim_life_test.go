package relay

import (
	"errors"
	"slices"
	"testing/synctest"
	"time"
)

// kill kills a process at any time.
func (w *world) kill() {
	if alive := w.alive(); len(alive) > 0 {
		w.end(pick(w, alive))
	}
}

func (w *world) end(p *process) {
	state := p.relay.Status().State
	w.edit(func() {
		w.markKill(p, state)
		w.see(p, "is killed", 0, 0)
		p.die()
	})
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

// quitOne sends SIGTERM to one process, with Kafka answering or not.
func (w *world) quitOne() {
	if alive := w.alive(); len(alive) > 0 {
		p := pick(w, alive)
		if p.thaw == nil {
			w.quit(p, w.IntN(3))
		}
	}
}

// quit sends SIGTERM. With mercy 0 Kafka gives none of the acknowledgements that the drain waits for, with 1 some,
// with 2 all.
func (w *world) quit(p *process, mercy int) {
	w.mu.Lock()
	p.terminated = true
	w.see(p, "is told to stop", 0, 0)
	first := p.sink
	answers := mercy > 1 && first != nil && !first.stuck && !first.failed && !w.ill()
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
			for lane := range w.lanes() {
				for w.ack(s, lane, 1+w.IntN(3)) > 0 && mercy > 1 {
				}
			}
		}
		w.sleep(w.upTo(200 * time.Millisecond))
		if mercy < 2 && w.IntN(40) == 0 {
			w.end(p)
			w.look()
			return
		}
	}
	w.look()
	if p.gone && !p.isDead && answers && !first.failed && (first.st == nil || first.st.err == nil) && errors.As(p.err, new(*errInFlight)) {
		w.edit(func() { w.fail("%s was told to stop while Kafka answered, and ended with %v", p, p.err) })
	}
	if !p.gone && !w.halt() {
		state := p.relay.Status().State
		w.edit(func() { w.fail("%s was told to stop and has not, state %s", p, state) })
	}
}

// second starts another process, which waits for the slot.
func (w *world) second() {
	if len(w.alive()) == 1 && !w.ill() {
		w.start()
	}
}

// freeze stops a process like SIGSTOP. A second process can take over.
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

// thawOne resumes the frozen process, which does not know that another process has the slot.
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
			if p.sink != nil {
				p.sink.depart()
			}
			w.disturb()
		}
	})
}

// sleep lets time pass in pieces, with checks after each.
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
		w.leases()
	}
}

// rest is sleep, and then handles processes that have ended.
func (w *world) rest(d time.Duration) {
	w.sleep(d)
	w.look()
	for !w.halt() && len(w.alive()) == 0 {
		if len(w.excused) > 0 && !w.undecided() {
			w.operator()
			if w.halt() {
				return
			}
		}
		if w.IntN(2) == 0 {
			w.sleep(w.upTo(20 * time.Second))
		}
		if w.owner && w.IntN(3) == 0 {
			w.ownerActs()
		}
		w.start()
		w.look()
	}
}

// server ends connections without a message for its timeout.
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
	st.giveUp(errGone)
	st.poke()
}

// look handles processes that have ended.
func (w *world) look() {
	for _, p := range w.procs {
		switch {
		case p.gone:
		case p.isDead:
			w.reap(p)
		case p.ended():
			w.mu.Lock()
			p.gone = true
			w.judgeEnd(p)
			w.mu.Unlock()
		}
	}
}

// reap lets the goroutines of a dead process end, without any effect.
func (w *world) reap(p *process) {
	w.mu.Lock()
	p.gone = true
	w.mu.Unlock()
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

// cleanUp ends every goroutine.
func (w *world) cleanUp() {
	w.endAudits()
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
