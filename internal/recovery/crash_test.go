package recovery

import (
	"fmt"
	"slices"
	"testing"
)

// losses are the states in which recover is run. All have ten rows. Kafka has the first four, and the daemon has
// confirmed them.
var losses = map[string]func(*world){
	"the slot is missing": func(w *world) { w.daemon = nil },
	"the slot is lost":    func(w *world) { w.daemon = lostSlot() },
	"the slot was moved":  func(w *world) { w.daemon.ConfirmedFlush = w.rows[8].commit },
	"nothing is missing":  func(*world) {},
	"a recovery has not finished": func(w *world) {
		w.daemon, w.recovery = nil, slotAt(w.rows[8].commit)
	},
	"a recovery has not finished, and its slot is lost": func(w *world) { w.daemon, w.recovery = nil, lostSlot() },
	"a recovery beside a slot that was moved": func(w *world) {
		w.daemon.ConfirmedFlush, w.recovery = w.rows[8].commit, slotAt(w.rows[8].commit)
	},
	"a recovery has restored the slot": func(w *world) {
		w.daemon, w.recovery = slotAt(w.rows[8].commit), slotAt(w.rows[8].commit)
		w.record(w.rows[8].commit)
		w.saved[len(w.saved)-1].Adopted, w.saved[len(w.saved)-1].Generation = true, 2
		w.deliver(4, 8)
	},
}

// lose makes the state before a run.
func lose(t *testing.T, deduplicated bool, how func(*world)) *world {
	w := newWorld(t)
	w.commit(10)
	w.deliver(0, 4)
	w.daemon = slotAt(w.rows[4].commit)
	if deduplicated {
		w.record(w.rows[4].commit)
	}
	how(w)
	if !deduplicated {
		w.saved = nil
	}
	return w
}

// TestCrashes fails each call of a run in turn: before it takes effect and after it has, with the process dead from
// then on and with only that call failing. Rows are committed all the while. After it no daemon starts for which
// something is missing that was not missing for it before, and a second run finishes: nothing is missing, nothing was
// sent twice, and the daemon starts.
func TestCrashes(t *testing.T) {
	for name, how := range losses {
		for _, deduplicated := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/%t", name, deduplicated), func(t *testing.T) { crashAll(t, deduplicated, false, how) })
		}
	}
	for _, deduplicated := range []bool{true, false} {
		t.Run(fmt.Sprintf("backfill/%t", deduplicated), func(t *testing.T) {
			crashAll(t, deduplicated, true, func(w *world) { w.daemon, w.saved, w.log = nil, nil, nil })
		})
	}
}

func crashAll(t *testing.T, deduplicated, backfill bool, how func(*world)) {
	n := 0
	for at := 1; ; at++ {
		for mode := range 4 {
			w := lose(t, deduplicated, how)
			startedBefore, missingBefore := w.starts(), w.missing()
			w.busy, w.crashAt, w.late, w.deadly = true, at, mode&1 > 0, mode&2 > 0
			r := w.recover(deduplicated)
			r.Backfill = backfill
			_, err := r.Deliver(t.Context())
			if len(w.calls) < at { // the run has ended before
				if n = at - 1; err != nil || len(w.missing()) > 0 || !w.starts() {
					t.Errorf("without a crash: %v, missing %v, daemon starts: %t", err, w.missing(), w.starts())
				}
				break
			}
			where := fmt.Sprintf("call %d (%s), late %t, dead %t", at, w.calls[at-1], w.late, w.deadly)
			isNew := func(id string) bool { return !startedBefore || !slices.Contains(missingBefore, id) }
			if w.starts() && slices.ContainsFunc(w.missing(), isNew) {
				t.Errorf("%s: a daemon starts, and %v are missing; before, %v", where, w.missing(), missingBefore)
			}
			w.crashAt, w.late = 0, false
			if backfill && w.starts() && len(w.missing()) == 0 {
				continue // it had finished
			}
			again := w.recover(deduplicated)
			again.Backfill = backfill
			if _, err := again.Deliver(t.Context()); err != nil {
				t.Errorf("%s: the second run ends with %v", where, err)
			}
			w.checkRecovered(where)
		}
		if n > 0 {
			break
		}
	}
	if n < 12 {
		t.Errorf("only %d calls", n)
	}
}

// checkRecovered checks that nothing is missing, that nothing is delivered twice, and that the daemon starts.
func (w *world) checkRecovered(where string) {
	w.t.Helper()
	if m := w.missing(); len(m) > 0 || !w.starts() || w.recovery != nil {
		w.t.Errorf("%s: missing %v, daemon starts: %t", where, m, w.starts())
	}
	if w.copied && !w.daemon.Failover {
		w.t.Errorf("%s: standbys do not copy the slot", where)
	}
	for _, e := range w.rows {
		n := w.copies(e.id)
		if w.daemon != nil && e.commit >= w.daemon.ConfirmedFlush {
			n++ // the slot has it
		}
		if n > 1 {
			w.t.Errorf("%s: event %s is delivered %d times", where, e.id, n)
		}
	}
	used := map[string]string{}
	for _, rec := range w.log {
		for _, h := range rec.Headers[1:] {
			if by := used[string(h.Value)]; h.Name == "outboxcdc-position" && by != "" {
				w.t.Errorf("%s: events %s and %s have the position %s", where, by, rec.Headers[0].Value, h.Value)
			}
			used[string(h.Value)] = string(rec.Headers[0].Value)
		}
	}
}
