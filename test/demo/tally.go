package main

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/outboxcdc/outboxcdc/test/check"
)

// cause is what a repeat is attributed to: the last fault before it was read.
type cause int

const (
	noFault cause = iota
	relayKilled
	ledgerKilled
	brokerFrozen
	brokerDown
	postgresStopped
	relayEnded // from outside, with -keep
	causes
)

func (c cause) String() string {
	return [causes]string{
		"without any fault", "after the relay's kill -9", "after the ledger's kill -9", "after the broker's freeze",
		"after the broker was down", "after Postgres' immediate stop", "after you ended the relay",
	}[c]
}

// mayRepeat reports whether repeats are excused. With -keep a person may freeze the broker and kill the relay, so that
// a request arrives after the next relay has read the ends of the partitions. The faults of the story cause no repeats,
// unless the sink repeats what was not acknowledged.
func (t *tally) mayRepeat(c cause) bool { return c == relayEnded || t.target.repeats && c != noFault }

// tally compares what the shop committed with what the reader found, live for the display and at the end for the
// verdict. It is all that shop and reader share, and it knows nothing of the relay.
type tally struct {
	target  target
	mu      sync.Mutex
	checker *check.Checker
	// A record may be read before its writer reports the commit, so each side waits for the other here.
	waiting map[string]time.Time // committed, not read yet: when it was committed
	early   map[string]time.Time // read, not known to be committed: when it was read
	newest  time.Time            // commit time of the youngest event that was read
	latest  []time.Duration      // commit → read, of the events since the last look
	records int

	transactions, rolledBack, inDoubt int

	cause   cause
	faults  [causes]bool
	repeats [causes]int
}

func newTally(to target) *tally {
	return &tally{target: to, checker: check.New(), waiting: map[string]time.Time{}, early: map[string]time.Time{}}
}

// addCommitted adds the rows of one transaction, committed at the given time. inDoubt: the shop had no answer to its
// COMMIT and looked for its order afterwards, so the commit time is unknown.
func (t *tally) addCommitted(rows []check.Row, at time.Time, inDoubt bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.transactions++
	if inDoubt {
		t.inDoubt++
	}
	for _, r := range rows {
		t.checker.Expect(r)
		read, ok := t.early[r.ID]
		delete(t.early, r.ID)
		switch {
		case !ok:
			t.waiting[r.ID] = at
		case !inDoubt:
			t.match(at, read)
		}
	}
}

// addRolledBack counts a transaction that was rolled back: its rows must never be read.
func (t *tally) addRolledBack() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rolledBack++
}

// addRead adds a record, read at the given time.
func (t *tally) addRead(r check.Record, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.records++
	before := t.checker.Counts()
	t.checker.Add(r)
	after := t.checker.Counts()
	t.repeats[t.cause] += after.Repeats - before.Repeats
	if after.Delivered == before.Delivered {
		return // a repeat, or a record without an id: the checker has it
	}
	id := idOf(r)
	committed, ok := t.waiting[id]
	if !ok {
		t.early[id] = at
		return
	}
	delete(t.waiting, id)
	t.match(committed, at)
}

func (t *tally) match(committed, read time.Time) {
	t.latest = append(t.latest, max(0, read.Sub(committed)))
	if committed.After(t.newest) {
		t.newest = committed
	}
}

func idOf(r check.Record) string {
	for _, h := range r.Headers {
		if h.Name == "id" {
			return string(h.Value)
		}
	}
	return ""
}

// setFault attributes repeats from now on to c.
func (t *tally) setFault(c cause) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cause = c
	t.faults[c] = true
}

// repeatsAfter returns the repeats attributed to c.
func (t *tally) repeatsAfter(c cause) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.repeats[c]
}

// hasRecovered reports whether an event committed since then was read, and none committed before is outstanding.
func (t *tally) hasRecovered(since time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.newest.Before(since) {
		return false
	}
	for _, at := range t.waiting {
		if at.Before(since) {
			return false
		}
	}
	return true
}

// isSettled reports whether everything committed was read.
func (t *tally) isSettled() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.waiting) == 0
}

func (t *tally) recordsRead() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.records
}

// look has the numbers of one live line.
type look struct {
	committed, delivered, repeats int
	timed                         int // events in the two percentiles; 0: none arrived
	p50, p99                      time.Duration
}

// look returns the totals, and the percentiles since the last look.
func (t *tally) look() look {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.checker.Counts()
	l := look{
		committed: n.Expected,
		delivered: n.Delivered - len(t.early), // each event once, whether read or committed first
		repeats:   n.Repeats,
		timed:     len(t.latest),
	}
	if l.timed > 0 {
		slices.Sort(t.latest)
		l.p50, l.p99 = t.latest[(l.timed-1)/2], t.latest[(l.timed-1)*99/100]
	}
	t.latest = t.latest[:0]
	return l
}

// ending is the part of the verdict that the tally cannot know.
type ending struct {
	relay  error // how the relay took SIGTERM; nil: it drained and left with 0
	stored int   // records, counted by the broker or another reader after all writing has ended

	ledger          bool   // whether there was one
	ordered, booked totals // of the shop's orders, and of the ledger's entries
}

// verdict is the result, point by point.
type verdict []finding

// finding is one point of the verdict.
type finding struct {
	name, text string
	ok         bool
	offenders  []string
}

func (v verdict) ok() bool {
	for _, f := range v {
		if !f.ok {
			return false
		}
	}
	return true
}

// exitStatus returns the demo's exit status.
func (v verdict) exitStatus() int {
	if v.ok() {
		return exitKept
	}
	return exitBroken
}

// verdict judges everything that was committed and read.
func (t *tally) verdict(e ending) verdict {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.checker.Report()
	v := verdict{
		{
			// Without commits the demo would prove nothing.
			name: "committed", ok: r.Rows > 0,
			text: fmt.Sprintf("%s events in %s transactions%s; %s more were rolled back", count(r.Rows), count(t.transactions), t.doubt(), count(t.rolledBack)),
		},
		{
			name: "delivered", ok: r.Rows > 0 && len(r.Missing) == 0,
			text: fmt.Sprintf("%s of %s events", count(r.Rows-len(r.Missing)), count(r.Rows)),
		},
		newFinding("missing", "none", "%s were committed and are not in "+t.target.place, r.Missing),
		newFinding("phantom", "none: nothing in "+t.target.place+" that was not committed", "%s are in "+t.target.place+" and were not committed", r.Phantom),
		newFinding("order", "as committed, for every key", "%s are not in their place", append(r.OutOfOrder, r.Misplaced...)),
		newFinding("content", "as written, byte for byte", "%s differ from what was written", append(r.WrongContent, r.BadRepeats...)),
	}
	for c := range causes {
		if t.faults[c] || t.repeats[c] > 0 || c == noFault {
			v = append(v, t.repeatsFinding(c))
		}
	}
	if e.ledger {
		v = append(v, bookedFinding(e.ordered, e.booked))
	}
	last := finding{name: "clean stop", ok: e.relay == nil, text: "the relay delivered what it had read and left with exit status 0"}
	if e.relay != nil {
		last.text = "after SIGTERM the relay exited with " + e.relay.Error()
	}
	v = append(v, last)
	if len(r.Invalid) > 0 || e.stored != t.records {
		// Then the demo has observed badly, and no finding above counts.
		v = append(v, finding{
			name: "reader", offenders: r.Invalid,
			text: fmt.Sprintf("read %s of the %s records in %s; %d contradictions", count(t.records), count(e.stored), t.target.place, len(r.Invalid)),
		})
	}
	return v
}

// doubt describes the transactions whose COMMIT was cut off when Postgres stopped.
func (t *tally) doubt() string {
	if t.inDoubt == 0 {
		return ""
	}
	return fmt.Sprintf(" (%s cut off in COMMIT)", count(t.inDoubt))
}

func (t *tally) repeatsFinding(c cause) finding {
	n := t.repeats[c]
	f := finding{name: "repeats", ok: n == 0 || t.mayRepeat(c), text: fmt.Sprintf("%s %s", count(n), c)}
	switch {
	case !f.ok:
		f.text += ", where there should be none"
	case n > 0:
		f.text += ": identical copies, with the same id"
	}
	return f
}

// bookedFinding compares the effects of the events with what the shop has committed: an amount that is booked twice, or
// not at all, changes the sum.
func bookedFinding(ordered, booked totals) finding {
	if ordered == booked {
		return finding{name: "ledger", ok: ordered.number > 0, text: "each order is booked once: " + booked.String()}
	}
	return finding{name: "ledger", text: fmt.Sprintf("%s were ordered, %s were booked", ordered, booked)}
}

// newFinding returns a finding that is ok when there are no offenders.
func newFinding(name, fine, wrong string, offenders []string) finding {
	f := finding{name: name, ok: len(offenders) == 0, text: fine, offenders: offenders}
	if !f.ok {
		f.text = fmt.Sprintf(wrong, count(len(offenders)))
	}
	return f
}
