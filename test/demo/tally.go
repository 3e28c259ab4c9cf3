package main

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/outboxcdc/outboxcdc/test/check"
)

// cause is what a repeat is put down to: the last fault before it was read.
type cause int

const (
	noFault cause = iota
	relayKilled
	brokerFrozen
	postgresStopped
	relayEnded // by somebody at the keyboard, with -keep
	causes
)

func (c cause) String() string {
	return [causes]string{
		"without any fault", "after the relay's kill -9", "after the broker's freeze",
		"after Postgres' immediate stop", "after you ended the relay",
	}[c]
}

// mayRepeat says whether repeats can be excused: somebody at the keyboard may freeze the broker and kill the relay, so that a
// request arrives after the next one has looked what is there. The faults of the story repeat nothing.
func (c cause) mayRepeat() bool { return c == relayEnded }

// tally holds what the shop committed against what the reader found, live for the display and at the end for the
// verdict. The shop and the reader share nothing else, and it knows nothing of the relay.
type tally struct {
	mu      sync.Mutex
	checker *check.Checker
	// A record may be read before the writer that committed it gets to say so, so each side waits for the other here.
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

func newTally() *tally {
	return &tally{checker: check.New(), waiting: map[string]time.Time{}, early: map[string]time.Time{}}
}

// committed adds the rows of one transaction, committed at the given time. It is in doubt if the shop had no answer to
// its COMMIT and looked for its order afterwards; when it was committed is not known then.
func (t *tally) committed(rows []check.Row, at time.Time, inDoubt bool) {
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

// abandoned counts a transaction that was rolled back: its rows must never be read.
func (t *tally) abandoned() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rolledBack++
}

// read adds a record, read at the given time.
func (t *tally) read(r check.Record, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.records++
	before := t.checker.Counts()
	t.checker.Add(r)
	after := t.checker.Counts()
	t.repeats[t.cause] += after.Repeats - before.Repeats
	if after.Delivered == before.Delivered {
		return // a repeat, or a record without an id: the checker remembers it
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

// fault puts repeats from here on down to c.
func (t *tally) fault(c cause) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cause = c
	t.faults[c] = true
}

// repeatsAfter returns the repeats put down to c.
func (t *tally) repeatsAfter(c cause) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.repeats[c]
}

// recovered says that something committed since then was read, and nothing committed before is still waited for.
func (t *tally) recovered(since time.Time) bool {
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

// settled says that everything committed was read.
func (t *tally) settled() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.waiting) == 0
}

func (t *tally) recordsRead() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.records
}

// look is the numbers of one live line.
type look struct {
	committed, delivered, repeats int
	timed                         int // events behind the two percentiles; 0: nothing arrived
	p50, p99                      time.Duration
}

// look returns the totals, and the percentiles since the last look.
func (t *tally) look() look {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.checker.Counts()
	l := look{
		committed: n.Expected,
		delivered: n.Delivered - len(t.early), // each side once, in whatever order they came to be known
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

// ending is what the verdict needs and the tally cannot know.
type ending struct {
	relay   error // how the relay took SIGTERM; nil: it drained and left with 0
	inKafka int   // records in the topics, counted by another reader once nobody writes any more
}

// verdict is what came out, point by point.
type verdict []finding

// finding is one point of it.
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

// exitStatus is what the demo ends with.
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
			// Nothing committed would prove nothing.
			name: "committed", ok: r.Rows > 0,
			text: fmt.Sprintf("%s events in %s transactions%s; %s more were rolled back", count(r.Rows), count(t.transactions), t.doubt(), count(t.rolledBack)),
		},
		{
			name: "delivered", ok: r.Rows > 0 && len(r.Missing) == 0,
			text: fmt.Sprintf("%s of %s events", count(r.Rows-len(r.Missing)), count(r.Rows)),
		},
		finds("missing", "none", "%s were committed and are not in Kafka", r.Missing),
		finds("phantom", "none: nothing in Kafka that was not committed", "%s are in Kafka and were not committed", r.Phantom),
		finds("order", "as committed, for every key", "%s are not in their place", append(r.OutOfOrder, r.Misplaced...)),
		finds("content", "as written, byte for byte", "%s differ from what was written", append(r.WrongContent, r.BadRepeats...)),
	}
	for c := range causes {
		if t.faults[c] || t.repeats[c] > 0 || c == noFault {
			v = append(v, t.repeated(c))
		}
	}
	last := finding{name: "clean stop", ok: e.relay == nil, text: "the relay delivered what it had read and left with exit status 0"}
	if e.relay != nil {
		last.text = "told to stop, the relay left with " + e.relay.Error()
	}
	v = append(v, last)
	if len(r.Invalid) > 0 || e.inKafka != t.records {
		// Then the demo has watched badly, and nothing above counts.
		v = append(v, finding{
			name: "reader", offenders: r.Invalid,
			text: fmt.Sprintf("read %s of the %s records that Kafka holds; %d things do not fit", count(t.records), count(e.inKafka), len(r.Invalid)),
		})
	}
	return v
}

// doubt tells of transactions whose COMMIT was cut off when Postgres went.
func (t *tally) doubt() string {
	if t.inDoubt == 0 {
		return ""
	}
	return fmt.Sprintf(" (%s cut off in COMMIT)", count(t.inDoubt))
}

func (t *tally) repeated(c cause) finding {
	n := t.repeats[c]
	f := finding{name: "repeats", ok: n == 0 || c.mayRepeat(), text: fmt.Sprintf("%s %s", count(n), c)}
	switch {
	case !f.ok:
		f.text += ", where there should be none"
	case n > 0:
		f.text += ": identical copies, with the same id"
	}
	return f
}

// finds is a point that is fine when there are no offenders.
func finds(name, fine, wrong string, offenders []string) finding {
	f := finding{name: name, ok: len(offenders) == 0, text: fine, offenders: offenders}
	if !f.ok {
		f.text = fmt.Sprintf(wrong, count(len(offenders)))
	}
	return f
}
