package checkpoint

import (
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"
)

// TxID names a transaction so that it can be recognised when the server sends it again. Commit LSN alone would do on
// one history; xid and commit time tell another history that happens to reuse the LSN.
type TxID struct {
	CommitLSN  pglogrepl.LSN
	XID        uint32
	CommitTime time.Time
}

// IsZero reports whether t names no transaction.
func (t TxID) IsZero() bool { return t.CommitLSN == 0 }

// Progress is what of a session is known to be in Kafka, for the session after it.
type Progress struct {
	// Done is the last transaction of the longest prefix in which every event is acknowledged; zero if there is none.
	Done TxID
	// Partial is the transaction after Done whose first Events events are acknowledged as well; zero if there is none.
	Partial TxID
	Events  uint32
}

// Last is the newest event of the prefix that Kafka has acknowledged, and its transaction; zero if there is none.
func (p Progress) Last(l Lineage) (Position, TxID) {
	last, ordinal := p.Done, uint32(LastOrdinal)
	if !p.Partial.IsZero() {
		last, ordinal = p.Partial, p.Events-1
	}
	if last.IsZero() {
		return Position{}, last
	}
	return Position{SystemID: l.System(), Timeline: l.TimelineOf(last.CommitLSN), CommitLSN: last.CommitLSN, Ordinal: ordinal}, last
}

// Tracker is the confirm rule (docs: ARCHITECTURE.md, "The confirm rule") for one session. Transactions enter in the
// order of their Begin and are done when they are closed and every event of them is acknowledged. Events are numbered
// from 0 over the whole session; a sink hands such a number back as its acknowledgement and never an LSN, so that it
// cannot mix two up.
//
// The stream's goroutine calls Begin, Add, Commit and Keepalive, the sink's goroutines call Ack. All other methods may
// be called by anybody.
type Tracker struct {
	mu sync.Mutex
	// acked is the end LSN of the longest done prefix, or a keepalive position behind it.
	acked pglogrepl.LSN
	// txs holds the transactions that are not done, oldest first; at most the last one is open.
	txs queue
	// events[head..next) are in flight, or acknowledged or skipped behind one that is; a ring indexed by number & mask.
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
	commitTime int64  // of its transaction, microseconds since 1970: for the latency of one event
	id         uint64 // hash of its id, as a Found keeps it
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
	known  bool // it is in Kafka already, and the server sends it again
}

// NewTracker starts at the slot's confirmed_flush_lsn, so that the answer is never zero: a status update with a zero
// flush position would confirm what was merely received.
func NewTracker(start pglogrepl.LSN) *Tracker {
	if start == 0 {
		panic("checkpoint: a tracker cannot start at 0/0")
	}
	return &Tracker{acked: start, events: make([]event, 1024), moved: make(chan struct{}, 1)}
}

// Begin opens a transaction; known is one that is in Kafka already, and that the server sends again.
func (t *Tracker) Begin(id TxID, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open() {
		panic("checkpoint: Begin inside a transaction")
	}
	t.txs.push(tx{id: id, first: t.next, known: known})
}

// Add enters the next event of the open transaction, size bytes large, and returns its number. id is the hash of its id.
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

// Skip enters the next event of the open transaction as one that needs no acknowledgement, because it is in Kafka
// already or is not to be sent. It keeps its ordinal.
func (t *Tracker) Skip() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.add(event{state: skipped}) == t.head {
		t.advance()
	}
}

// Commit closes the open transaction; end is where the next one may start.
func (t *Tracker) Commit(end pglogrepl.LSN) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.open() {
		panic("checkpoint: Commit outside a transaction")
	}
	last := t.txs.last()
	last.end, last.endLSN, last.closed = t.next, end, true
	// One without events adds its end to the one before: otherwise foreign transactions (PostgreSQL 14 sends them all,
	// empty) would pile up without bound while an event waits for Kafka.
	if last.first == last.end && t.txs.len() > 1 {
		t.txs.drop()
		t.txs.last().endLSN = max(t.txs.last().endLSN, end)
	}
	t.advance()
}

// Keepalive notes a position of the server: everything published before it has been received. Inside a
// transaction it says nothing yet and is ignored; otherwise it is worth what the transactions before it are.
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

// Ack notes that Kafka has acknowledged event n and returns the commit time of its transaction. It panics if n was
// never added or is acknowledged already: the sink has broken its promise, and a guess could confirm too much.
func (t *Tracker) Ack(n uint64) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n >= t.next || n < t.head || t.at(n).state != inFlight {
		panic(fmt.Sprintf("checkpoint: Ack(%d) called twice or never added (in flight %d..%d)", n, t.head, t.next))
	}
	e := t.at(n)
	commitTime := time.UnixMicro(e.commitTime)
	e.state = acked
	t.ackedEver = true
	if n == t.head {
		t.advance()
	}
	select {
	case t.moved <- struct{}{}:
	default:
	}
	return commitTime
}

// advance moves head over acknowledged events and drops transactions that are done.
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

// Acked is how far everything is acknowledged. It never falls and is never zero.
func (t *Tracker) Acked() pglogrepl.LSN {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.acked
}

// InFlight is the number of events from the first that is not acknowledged to the newest, and their bytes. Events
// acknowledged behind one that is not are counted: a crash would repeat them, and that is what the window bounds.
func (t *Tracker) InFlight() (events int, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return int(t.next - t.head), t.bytes
}

// Transactions is the number of transactions that are not done.
func (t *Tracker) Transactions() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.txs.len()
}

// Oldest is the oldest transaction that is not done and not known; ok is false when there is none.
func (t *Tracker) Oldest() (id TxID, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.txs.len() == 0 || t.txs.first().known {
		return TxID{}, false // known ones are done when they are closed, so only a last one can be here
	}
	return t.txs.first().id, true
}

// Progress is what the next session may skip.
func (t *Tracker) Progress() Progress {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := Progress{Done: t.done}
	if t.txs.len() > 0 && t.head > t.txs.first().first {
		p.Partial, p.Events = t.txs.first().id, uint32(t.head-t.txs.first().first)
	}
	return p
}

// Behind calls f for each event that Kafka has acknowledged behind one that it has not: the commit LSN of its transaction, its
// ordinal there and the hash of its id.
func (t *Tracker) Behind(f func(commit pglogrepl.LSN, ordinal uint32, id uint64)) {
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

// AckedAny reports whether this tracker has seen an acknowledgement.
func (t *Tracker) AckedAny() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ackedEver
}

// Moved receives after an acknowledgement; several may share one signal.
func (t *Tracker) Moved() <-chan struct{} { return t.moved }

func (t *Tracker) open() bool { return t.txs.len() > 0 && !t.txs.last().closed }

func (t *Tracker) at(n uint64) *event { return &t.events[n&uint64(len(t.events)-1)] }

// grow doubles the ring. It happens while the window fills for the first time; the window bounds it.
func (t *Tracker) grow() {
	old := t.events
	t.events = make([]event, 2*len(old))
	for n := t.head; n < t.next; n++ {
		*t.at(n) = old[n&uint64(len(old)-1)]
	}
}

// queue is a first-in first-out of transactions that reuses its memory.
type queue struct {
	items []tx
	start int
}

func (q *queue) len() int   { return len(q.items) - q.start }
func (q *queue) first() *tx { return &q.items[q.start] }
func (q *queue) last() *tx  { return &q.items[len(q.items)-1] }
func (q *queue) push(x tx)  { q.items = append(q.items, x) }

// drop removes the newest.
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
