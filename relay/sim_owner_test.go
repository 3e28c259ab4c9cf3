package relay

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/replication"
)

// Runs in which the owner of the outbox hides rows for a moment, and undoes that at once, whether or not a daemon
// runs: a partition is UNLOGGED, detached or dropped, or the publication is altered. A supervisor starts the daemon
// again and again, and the table may be dropped meanwhile, so that the catalogs do not show any more what has
// happened. The additional promise: a row that no stream could have is never confirmed. The daemon stops, and so does
// each daemon after it, until an operator has decided (simPG.took, judgeEnd). As documented, nothing shows a change
// whose traces have vanished before a catalog check has found it.

// simLooks is what the catalogs show of the acts of the owner.
type simLooks struct {
	acts   int // how many there were
	traced int // the number of the last one that the catalogs show; 0: none
}

// simLook is what a process has seen of the catalogs.
type simLook struct {
	acts     int
	found    bool // an act that the look before had not seen
	mustTell bool // the process could have stored that
}

const ownersAct = "the owner has hidden rows"

func (l simLook) String() string { return fmt.Sprintf("%d %t", l.acts, l.found) }

func parseSimLook(text string) (l simLook) {
	_, _ = fmt.Sscan(text, &l.acts, &l.found)
	return l
}

// changedSince reports whether the catalogs show an act that the look has not seen, or the look has found one.
func (pg *simPG) changedSince(l simLook) bool { return l.found || pg.looks.traced > l.acts }

// lookAgain compares the catalogs with the last look of the process. w.mu is held.
func (p *process) lookAgain() error {
	pg := p.w.pg
	if pg.changedSince(p.look) {
		return &replication.Error{Kind: replication.PublicationChanged, Op: "look", Err: errors.New(ownersAct)}
	}
	p.look.acts = pg.looks.acts
	return nil
}

// TestSimOwner is TestSimDeduplicated with acts of the owner.
func TestSimOwner(t *testing.T) {
	first, n := atLeastSeeds(t, 2000)
	res := simRuns(t, "random runs in which the owner of the outbox hides rows for a moment, fresh seeds", "F111", first, func(i int) (simOptions, bool) {
		seed := first + uint64(i)
		return simOptions{seed: seed, dedup: true, owner: true, dead: seed%2 == 1, twice: seed%20 == 0}, i < n
	})
	if !t.Failed() {
		res.mustReach(t, markNames[firstOwner:firstHeld], 1000)
	}
}

// ownerActs hides a transaction. The next start can notice it, because there is a position record.
func (w *world) ownerActs() {
	alive := w.alive()
	if w.ill() || len(alive) > 1 || slices.ContainsFunc(alive, func(p *process) bool { return p.thaw != nil }) {
		return
	}
	w.edit(func() {
		pg := w.pg
		if pg.down || checkpoint.Merge(w.kafka.saved) == nil {
			return
		}
		w.excused[Lost] = ownersAct
		pg.filter = true
		pg.commit(w.someRows(healthy))
		pg.filter = false
		pg.looks.acts++
		pg.looks.traced = pg.looks.acts
		w.see(nil, ownersAct, uint64(pg.looks.acts), 0)
		w.reached[firstOwner] = w.reached[firstOwner] || len(alive) == 0
		w.disturb()
		if pg.async {
			pg.flush()
		}
		if st := pg.holder; st != nil {
			st.keepalive(st.decoded(), false)
			st.poke()
		}
	})
	if w.IntN(3) == 0 {
		w.quitOne()
	}
}

// mustTell reports whether the process can store now what it has found. w.mu is held.
func (st *simStream) mustTell() bool {
	s := st.p.sink
	return s != nil && !s.failed && !s.stuck && !s.closing && !s.k.unusable && s.leased() && st.pg.slow == 0
}

// undecided starts the daemon again although the operator has not decided, and may drop the table first. It reports
// false if the operator decides now.
func (w *world) undecided() bool {
	if w.excused[Lost] != ownersAct || w.IntN(3) == 0 {
		return false
	}
	w.edit(func() {
		if saved := checkpoint.Merge(w.kafka.saved); saved != nil && parseSimLook(saved.Published).found && w.IntN(2) == 0 {
			w.pg.looks.traced = 0
			w.see(nil, "the traces have vanished", 0, 0)
			w.reached[ownerDropped] = true
		}
		w.reached[ownerUndecided] = true
	})
	return true
}

// adopt is the operator's decision: the daemon continues with what the catalogs show now. w.mu is held.
func (w *world) adopt() {
	pg, k := w.pg, w.kafka
	k.saved = append(k.saved, checkpoint.Merge(k.saved).Adoption("slot", pg.id.SystemID, pg.id.Timeline, 18, pg.confirmed, simLook{acts: pg.looks.acts}.String(), "s", time.Now()))
	w.adopted, k.orphans = time.Now(), nil
	for _, e := range pg.events {
		e.before = e.stored > 0
	}
}

// judgeLook checks that a process that has found an act has left that to the next one. w.mu is held.
func (w *world) judgeLook(p *process) {
	if !p.look.mustTell || !strings.Contains(p.err.Error(), ownersAct) {
		return
	}
	w.reached[ownerFound] = true
	if saved := checkpoint.Merge(w.kafka.saved); !parseSimLook(saved.Published).found {
		w.fail("%s has found what the owner did, and the position record does not have it", p)
	}
}
