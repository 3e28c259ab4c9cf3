package checkpoint

import (
	"fmt"
	"sort"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"
)

// TxID identifies a transaction when the server sends it again. Another history may reuse the commit LSN, but hardly
// with the same xid and commit time.
type TxID struct {
	CommitLSN  pglogrepl.LSN
	XID        uint32
	CommitTime time.Time
}

// IsZero reports whether t names no transaction.
func (t TxID) IsZero() bool { return t.CommitLSN == 0 }

// Progress is the part of a session's stream that is known to be in Kafka.
type Progress struct {
	// Done is the last transaction of the longest prefix whose events are all acknowledged; zero if there is none.
	Done TxID
	// Partial is the transaction after Done if its first Events events are acknowledged; zero if there is none.
	Partial TxID
	Events  uint32
	// Next is the number of the first event after the prefix.
	Next uint64
}

// Last returns the last event of the prefix that Kafka has acknowledged, and its transaction; zero if there is none.
func (p Progress) Last(l Lineage) (Position, TxID) {
	last, ordinal := p.last()
	if last.IsZero() {
		return Position{}, last
	}
	return Position{SystemID: l.System(), Timeline: l.TimelineOf(last.CommitLSN), CommitLSN: last.CommitLSN, Ordinal: ordinal}, last
}

// last returns the transaction of the last event of the prefix, and the event's ordinal.
func (p Progress) last() (tx TxID, ordinal uint32) {
	if p.Partial.IsZero() {
		return p.Done, LastOrdinal
	}
	return p.Partial, p.Events - 1
}

// Tracker knows which events of one session Kafka has acknowledged (docs: ARCHITECTURE.md, "The confirm rule").
// Transactions enter in the order of their Begin. A transaction is done when it is closed and all of its events are
// acknowledged. Events are numbered from 0 over the whole session. A sink acknowledges a number, never an LSN, so
// that it cannot mix two kinds of LSN up.
//
// The stream's goroutine calls Begin, Add, Commit and Keepalive, the sink's goroutines call Ack. Any goroutine may
// call the other methods.
type Tracker struct {
	mu sync.Mutex
	// acked is the end LSN of the longest done prefix, or a keepalive position after it.
	acked pglogrepl.LSN
	// txs holds the transactions that are not done, oldest first; at most the last one is open.
	txs queue
	// events[head..next) are in flight, or acknowledged or skipped after one in flight. A ring, indexed by number & mask.
	events     []event
	head, next uint64
	bytes      int64 // of events[head..next)
	done       TxID
	ackedEver  bool
	moved      chan struct{}
}

type event struct {
	size       int32
	state      eventState
	commitTime int64  // of its transaction, in microseconds since 1970
	id         uint64 // hash of its id, as an EventSet keeps it
}

type eventState uint8

const (
	inFlight eventState = iota
	acked               // by Kafka
	skipped             // it needs no acknowledgement
)

type tx struct {
	id     TxID
	first  uint64 // number of its first event
	end    uint64 // one past its last event, meaningful once closed
	endLSN pglogrepl.LSN
	closed bool
	known  bool // it is in Kafka already: the server has sent it again
}

// NewTracker returns a tracker that starts at the slot's confirmed_flush_lsn, so that Acked is never zero: a status
// update with a zero flush position would confirm everything that was received.
func NewTracker(start pglogrepl.LSN) *Tracker {
	if start == 0 {
		panic("checkpoint: a tracker cannot start at 0/0")
	}
	return &Tracker{acked: start, events: make([]event, 1024), moved: make(chan struct{}, 1)}
}

// Begin opens a transaction. known means that it is in Kafka already: the server has sent it again.
func (t *Tracker) Begin(id TxID, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open() {
		panic("checkpoint: Begin inside a transaction")
	}
	t.txs.push(tx{id: id, first: t.next, known: known})
}

// Add enters the next event of the open transaction, of size bytes, and returns its number. id is the hash of the
// event's id.
func (t *Tracker) Add(size int, id uint64) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.add(event{size: int32(min(size, 1<<31-1)), id: id})
}

func (t *Tracker) add(e event) uint64 {
	if !t.open() {
		panic("checkpoint: Add outside a transaction")
	}
	if t.next-t.head == uint64(len(t.events)) {
		t.grow()
	}
	n := t.next
	e.commitTime = t.txs.last().id.CommitTime.UnixMicro()
	*t.at(n) = e
	t.next++
	t.bytes += int64(e.size)
	return n
}

// Skip enters the next event of the open transaction without waiting for an acknowledgement: the event is in Kafka
// already, or is not to be sent. It has an ordinal like any other event.
func (t *Tracker) Skip() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.add(event{state: skipped}) == t.head {
		t.advance()
	}
}

// Commit closes the open transaction. end is its end LSN.
func (t *Tracker) Commit(end pglogrepl.LSN) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.open() {
		panic("checkpoint: Commit outside a transaction")
	}
	last := t.txs.last()
	last.end, last.endLSN, last.closed = t.next, end, true
	// A transaction without events adds its end to the previous one. Otherwise transactions of other tables (PostgreSQL 14
	// sends them all, empty) would accumulate without bound while an event waits for Kafka.
	if last.first == last.end && t.txs.len() > 1 {
		t.txs.drop()
		t.txs.last().endLSN = max(t.txs.last().endLSN, end)
	}
	t.advance()
}

// Keepalive notes a position of the server before which everything published has been received. The position counts as
// acknowledged with the transactions before it. Inside a transaction it is ignored.
func (t *Tracker) Keepalive(lsn pglogrepl.LSN) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.txs.len() == 0:
		t.acked = max(t.acked, lsn)
	case t.txs.last().closed:
		t.txs.last().endLSN = max(t.txs.last().endLSN, lsn)
	}
}

// Ack notes that Kafka has acknowledged these events, and appends the commit time of each event's transaction to
// commits. It panics if an event was never added or is acknowledged already: to go on could confirm too much.
func (t *Tracker) Ack(events []uint64, commits []time.Time) []time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range events {
		if n >= t.next || n < t.head || t.at(n).state != inFlight {
			panic(fmt.Sprintf("checkpoint: Ack(%d) called twice or never added (in flight %d..%d)", n, t.head, t.next))
		}
		e := t.at(n)
		e.state = acked
		commits = append(commits, time.UnixMicro(e.commitTime))
		t.ackedEver = true
	}
	t.advance()
	select {
	case t.moved <- struct{}{}:
	default:
	}
	return commits
}

// advance moves head past acknowledged events and removes transactions that are done.
func (t *Tracker) advance() {
	for t.head < t.next && t.at(t.head).state != inFlight {
		t.bytes -= int64(t.at(t.head).size)
		t.head++
	}
	for t.txs.len() > 0 {
		first := t.txs.first()
		if !first.closed || first.end > t.head {
			return
		}
		t.acked = max(t.acked, first.endLSN)
		t.done = first.id
		t.txs.pop()
	}
}

// Acked returns the position before which everything is acknowledged. It never decreases and is never zero.
func (t *Tracker) Acked() pglogrepl.LSN {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.acked
}

// InFlight returns the number of events from the first unacknowledged one to the newest, and their bytes. Events that
// are acknowledged after an unacknowledged one count: the window bounds the number of events that a crash would
// repeat.
func (t *Tracker) InFlight() (events int, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return int(t.next - t.head), t.bytes
}

// Transactions returns the number of transactions that are not done.
func (t *Tracker) Transactions() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.txs.len()
}

// Oldest returns the oldest transaction that is not done and not known; ok is false when there is none.
func (t *Tracker) Oldest() (id TxID, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.txs.len() == 0 || t.txs.first().known {
		return TxID{}, false // a known transaction is done when it is closed, so it is the last one
	}
	return t.txs.first().id, true
}

// Progress returns the events that the next session may skip.
func (t *Tracker) Progress() Progress {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := Progress{Done: t.done, Next: t.head}
	if t.txs.len() > 0 && t.head > t.txs.first().first {
		p.Partial, p.Events = t.txs.first().id, uint32(t.head-t.txs.first().first)
	}
	return p
}

// EachAckedAfterGap calls f for each event that Kafka has acknowledged after an event that it has not, with the
// commit LSN of the event's transaction, its ordinal, and the hash of its id.
func (t *Tracker) EachAckedAfterGap(f func(commit pglogrepl.LSN, ordinal uint32, id uint64)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.txs.items[t.txs.start:] {
		x := &t.txs.items[t.txs.start+i]
		end := x.end
		if !x.closed {
			end = t.next
		}
		for n := max(x.first, t.head); n < end; n++ {
			if e := t.at(n); e.state == acked {
				f(x.id.CommitLSN, uint32(n-x.first), e.id)
			}
		}
	}
}

// Positions returns the positions of events that are in flight.
func (t *Tracker) Positions(l Lineage, events []uint64) []Position {
	t.mu.Lock()
	defer t.mu.Unlock()
	txs := t.txs.items[t.txs.start:]
	out := make([]Position, 0, len(events))
	for _, n := range events {
		i := sort.Search(len(txs), func(i int) bool { return txs[i].first > n }) - 1
		if i < 0 || n < t.head || n >= t.next {
			panic(fmt.Sprintf("checkpoint: Positions(%d) is not in flight (%d..%d)", n, t.head, t.next))
		}
		commit := txs[i].id.CommitLSN
		out = append(out, Position{SystemID: l.System(), Timeline: l.TimelineOf(commit), CommitLSN: commit, Ordinal: uint32(n - txs[i].first)})
	}
	return out
}

// AckedAny reports whether Kafka has acknowledged any event of the session.
func (t *Tracker) AckedAny() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ackedEver
}

// Moved returns a channel that receives after an acknowledgement. Several acknowledgements may share one signal.
func (t *Tracker) Moved() <-chan struct{} { return t.moved }

func (t *Tracker) open() bool { return t.txs.len() > 0 && !t.txs.last().closed }

func (t *Tracker) at(n uint64) *event { return &t.events[n&uint64(len(t.events)-1)] }

// grow doubles the ring, which is bounded by the window.
func (t *Tracker) grow() {
	old := t.events
	t.events = make([]event, 2*len(old))
	for n := t.head; n < t.next; n++ {
		*t.at(n) = old[n&uint64(len(old)-1)]
	}
}

// queue is a first-in, first-out queue of transactions that reuses its memory.
type queue struct {
	items []tx
	start int
}

func (q *queue) len() int   { return len(q.items) - q.start }
func (q *queue) first() *tx { return &q.items[q.start] }
func (q *queue) last() *tx  { return &q.items[len(q.items)-1] }
func (q *queue) push(x tx)  { q.items = append(q.items, x) }

// drop removes the newest transaction.
func (q *queue) drop() { q.items = q.items[:len(q.items)-1] }

func (q *queue) pop() {
	q.start++
	if q.start == len(q.items) {
		q.items, q.start = q.items[:0], 0
	} else if q.start > 1024 && q.start > len(q.items)/2 {
		q.items = q.items[:copy(q.items, q.items[q.start:])]
		q.start = 0
	}
}
