package relay

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/test/walsendertest"
)

// simPG is the server: a WAL into which several writers write at a time, a slot that is saved now and then, and the
// catalogs as far as the guard looks at them. Everything in it is guarded by world.mu.
type simPG struct {
	w          *world
	id         replication.Identity // WALEnd apart
	wal        []*simTx             // in the order of their commits
	order      []*event             // what is to be delivered, in that order
	lanes      [simLanes]int        // events to be delivered, by lane
	flushed    int                  // so many of wal are on disk and may be sent
	end        pglogrepl.LSN        // of the WAL
	flushedEnd pglogrepl.LSN
	done       int // so many of wal, from the first, are wholly acked
	writers    []*writer
	xid        uint32
	skew       time.Duration // of the server's clock
	events     []*event      // all that were ever written
	tables     []*walsendertest.Table
	table      int // that rows are written into now
	other      *walsendertest.Table

	confirmed pglogrepl.LSN // the slot's
	saved     pglogrepl.LSN // what a crash takes it back to
	told      pglogrepl.LSN // the highest it ever was
	streams   int           // that there were
	moved     time.Time     // when it last rose
	holder    *simStream    // who streams from it
	heldUntil time.Time     // by a connection of which nobody knows yet that it is dead
	held      bool          // by somebody else
	idle      time.Duration

	async     bool // commits are flushed later
	trickle   bool // the walsender sends only when the script says so
	down      bool
	hang      chan struct{} // new connections are taken and not answered until it is closed
	filter    bool          // the publication hides what is committed
	altered   int           // counts its alterations
	pending   bool          // one is under way
	openErr   error         // of each Open, for good
	lookErr   error         // of each Check, for good
	flaky     bool          // Checks fail for now
	slow      time.Duration // how long a Check may take
	slowUntil time.Time     // a Check that began when it was slow may last so long
	breaks    int           // the next stream is cut after so many messages; 0: it is not
	still     int           // so many streams are lost before the first word
}

// simTx is a committed transaction.
type simTx struct {
	commit, end pglogrepl.LSN
	xid         uint32
	time        time.Time
	rows        []row
	hidden      bool      // by an altered publication: it is never sent
	left        int       // events that are not acked
	readAt      time.Time // when its commit was last read by a relay
	readIn      *simStream
}

type row struct {
	lsn   pglogrepl.LSN
	table *walsendertest.Table
	msg   []byte
	ev    *event // nil: a row of another table, or an update
	takes bool   // an update: it takes an ordinal and is not delivered
}

// event is an outbox row and what became of it.
type event struct {
	id      int
	tx      *simTx // nil until it is committed
	ordinal int
	order   int // index in simPG.order; -1: it is not to be delivered
	lane    int
	seq     int // in its lane, from 1
	key     string
	value   string
	poison  poisonKind
	alone   bool // large: it wants Kafka for itself
	skipped bool // by an operator's decision, or by the policy of its cause
	message bool // a logical message, no row

	digest   [2]uint64 // of its record, once sent; and of its dead letter
	stored   int
	storedBy *simSink
	acked    bool
	ackedIn  *simSink
	ackedAt  time.Time
}

type poisonKind int

const (
	healthy  poisonKind = iota
	noKey               // the router sees it
	tooLarge            // Check sees it
	rejected            // only the broker sees it
	hopeless            // and the dead-letter topic does not take it either
)

// writer is a transaction that is not committed.
type writer struct {
	rows []row
}

const (
	simLanes = 6 // three topics of two partitions each
	deadLane = simLanes
	allLanes = simLanes + 1
)

// simPrefix is that of the messages that are events.
const simPrefix = "outboxcdc"

func newSimPG(w *world) *simPG {
	cat := walsendertest.NewCatalog()
	base := *cat.Outbox()
	wider, leaf, other := base, base, base
	wider.Columns = append([]string{"note"}, base.Columns...)
	slices.Reverse(wider.Columns)
	leaf.OID, leaf.Name = base.OID+1, "outbox_2026"
	other.OID, other.Name = base.OID+2, "other"
	start := pglogrepl.LSN(0x1000)
	if w.IntN(3) == 0 {
		start = 0xFFFF_F800 + pglogrepl.LSN(w.IntN(0x800))&^7
	}
	pg := &simPG{
		w: w, id: replication.Identity{SystemID: 7, Timeline: 1}, xid: 700, other: &other,
		tables: []*walsendertest.Table{&base, &wider, &leaf}, end: start, flushedEnd: start, confirmed: start, saved: start, told: start,
		async: w.IntN(6) == 0, trickle: w.IntN(2) == 0,
	}
	if w.IntN(4) == 0 {
		pg.idle = 20 * time.Minute
	}
	return pg
}

// write adds a row to a transaction; rows of one COPY share an LSN.
func (pg *simPG) write(wr *writer, copied bool, poison poisonKind) *event {
	w := pg.w
	lane := w.IntN(simLanes)
	e := &event{id: len(pg.events), order: -1, lane: lane, key: string([]byte{'k', byte('0' + lane%2), byte('a' + w.IntN(3))}), poison: poison}
	e.value = fmt.Sprintf("payload of %d", e.id)
	if e.message = e.id%7 == 3; e.message { // no draw: the seeds that failed once stay what they were
		e.value = fmt.Sprintf(`"payload of %d"`, e.id)
		w.reached[byMessage] = true
	}
	e.alone = w.IntN(60) == 0
	pg.events = append(pg.events, e)
	r := row{lsn: pg.advance(copied && len(wr.rows) > 0, 1+w.IntN(8)), table: pg.tables[pg.table], ev: e}
	if copied && len(wr.rows) > 0 {
		r.lsn = wr.rows[len(wr.rows)-1].lsn
		w.reached[sameLSN] = true
	}
	r.msg = pg.encode(r.table, e)
	wr.rows = append(wr.rows, r)
	return e
}

// update is one of a row of the outbox: poison in everything, were it delivered.
func (pg *simPG) update() row {
	t := pg.tables[pg.table]
	return row{lsn: pg.advance(false, 1), table: t, msg: walsendertest.Update(t, make([]any, len(t.Columns))...), takes: true}
}

// advance returns the LSN of the next WAL record, of n units.
func (pg *simPG) advance(none bool, n int) pglogrepl.LSN {
	at := pg.end
	if !none {
		pg.end += pglogrepl.LSN(8 * n)
	}
	return at
}

var simTopics = [...]string{"t", "u", "v", deadTopic}

func (e *event) topic() string { return simTopics[e.lane/2] }

func (pg *simPG) encode(t *walsendertest.Table, e *event) []byte {
	if e.message {
		key := fmt.Sprintf("%q", e.key)
		if e.poison == noKey {
			key = "null"
		}
		return walsendertest.Message(true, simPrefix, fmt.Sprintf(`{"id":"%d","aggregate_type":"%s","aggregate_id":%s,"event_type":"e","payload":%s}`,
			e.id, e.topic(), key, e.value))
	}
	values := make([]any, len(t.Columns))
	for i, c := range t.Columns {
		switch c {
		case "id":
			values[i] = fmt.Sprint(e.id)
		case "aggregate_type":
			values[i] = e.topic()
		case "aggregate_id":
			if e.poison != noKey {
				values[i] = e.key
			}
		case "event_type":
			values[i] = "e"
		case "payload":
			values[i] = e.value
		case "headers":
			values[i] = "{}"
		}
	}
	return walsendertest.Insert(t, values...)
}

// commit ends a transaction; the walsender sends it when it is flushed.
func (pg *simPG) commit(wr *writer) *simTx {
	w := pg.w
	pg.writers = slices.DeleteFunc(pg.writers, func(x *writer) bool { return x == wr })
	pg.xid++
	tx := &simTx{commit: pg.end, xid: pg.xid, rows: wr.rows, hidden: pg.filter, time: time.Now().Add(pg.skew).Truncate(time.Microsecond)}
	pg.advance(false, 5+w.IntN(4))
	tx.end = pg.end
	if n := len(pg.wal); n > 0 {
		last := pg.wal[n-1]
		w.reached[adjacentCommits] = w.reached[adjacentCommits] || last.end == tx.commit
		w.reached[clockBack] = w.reached[clockBack] || tx.time.Before(last.time.Add(-time.Minute))
		w.reached[olderRows] = w.reached[olderRows] || len(tx.rows) > 0 && tx.rows[0].lsn < last.commit
	}
	w.reached[hugeTx] = w.reached[hugeTx] || len(tx.rows) > w.cfg.MaxEvents
	w.reached[hiddenRows] = w.reached[hiddenRows] || tx.hidden && len(tx.rows) > 0
	ordinal := 0
	for _, r := range tx.rows {
		if r.takes {
			ordinal++
			w.reached[updated] = true
		}
		if r.ev == nil {
			continue
		}
		r.ev.tx, r.ev.ordinal = tx, ordinal
		ordinal++
		tx.left++
		if w.cfg.Poison.Causes[causeOf[r.ev.poison]] == SkipPoison {
			r.ev.skip()
		}
		if !tx.hidden {
			pg.expect(r.ev)
		}
	}
	pg.wal = append(pg.wal, tx)
	w.see(nil, "commit", uint64(tx.commit), uint64(len(tx.rows)))
	if !pg.async {
		pg.flush()
	}
	return tx
}

// expect makes an event one that is to be delivered.
func (pg *simPG) expect(e *event) {
	e.order = len(pg.order)
	if !pg.w.dead || e.poison == healthy { // a dead letter is outside the order
		pg.lanes[e.lane]++
		e.seq = pg.lanes[e.lane]
	}
	pg.order = append(pg.order, e)
}

// flush writes the WAL to disk, and lets the walsender send it.
func (pg *simPG) flush() {
	pg.flushed, pg.flushedEnd = len(pg.wal), pg.end
	if !pg.trickle {
		pg.pump(-1)
	}
}

// pump lets the walsender send up to n messages; -1: all it has.
func (pg *simPG) pump(n int) {
	st := pg.holder
	if st == nil {
		return
	}
	for n != 0 && st.push() {
		n--
	}
	st.poke()
}

// crash is an immediate stop: what was not flushed is gone, the slot is where it was last saved.
func (pg *simPG) crash() {
	w := pg.w
	w.see(nil, "crash", uint64(pg.saved), uint64(pg.flushedEnd))
	w.reached[slotFellBack] = w.reached[slotFellBack] || pg.saved < pg.confirmed
	w.reached[tailLost] = w.reached[tailLost] || pg.flushed < len(pg.wal)
	pg.unwrite(pg.flushed)
	pg.end = pg.flushedEnd
	pg.writers = nil
	pg.confirmed = pg.saved
	pg.cut(-1)
}

// unwrite takes transactions off the end of the WAL: n are left.
func (pg *simPG) unwrite(n int) {
	for _, tx := range slices.Backward(pg.wal[n:]) {
		for _, r := range slices.Backward(tx.rows) {
			e := r.ev
			if e == nil || e.order < 0 {
				continue
			}
			if e.seq > 0 {
				pg.lanes[e.lane]--
			}
			pg.order = pg.order[:e.order]
			e.order = -1
			if e.poison == hopeless || e.poison != healthy && !pg.w.dead {
				delete(pg.w.excused, Poison)
			}
		}
	}
	pg.wal, pg.done = pg.wal[:n], min(pg.done, n)
}

// cut ends the stream, with so many of the messages on their way still to be read; -1: all of them.
func (pg *simPG) cut(keep int) {
	if st := pg.holder; st != nil {
		if keep >= 0 && keep < len(st.queue) {
			st.queue = st.queue[:keep]
		}
		st.giveUp(errGone)
		st.poke()
	}
}

// forget makes what an altered publication has hidden the operator's affair, who finds it in the table. Nobody streams.
func (pg *simPG) forget() {
	kept := pg.wal[:0]
	for i, tx := range pg.wal {
		if !tx.hidden {
			kept = append(kept, tx)
		}
		if i+1 == pg.flushed {
			pg.flushed = len(kept)
		}
	}
	pg.wal, pg.done = kept, 0
	pg.progress()
}

// progress moves done.
func (pg *simPG) progress() {
	for pg.done < len(pg.wal) && pg.wal[pg.done].left == 0 && !(pg.wal[pg.done].hidden && len(pg.wal[pg.done].rows) > 0) {
		pg.done++
	}
}

// took is a status update that arrives: the one rule that matters is checked here (I5).
func (pg *simPG) took(p *process, pos pglogrepl.LSN) {
	pg.progress()
	if pg.done < len(pg.wal) && pos > pg.wal[pg.done].commit {
		tx := pg.wal[pg.done]
		pg.w.fail("%s confirms %s, behind the transaction at %s of which %d events are not acked (hidden: %v)", p, pos, tx.commit, tx.left, tx.hidden)
	}
	if pos > pg.flushedEnd {
		pg.w.fail("%s confirms %s, the server's WAL ends at %s", p, pos, pg.flushedEnd)
	}
	if pos > pg.confirmed {
		pg.confirmed, pg.moved = pos, time.Now()
	}
	pg.told = max(pg.told, pos)
}

// firstAfter is the index of the first transaction that a walsender sends which starts at pos.
func (pg *simPG) firstAfter(pos pglogrepl.LSN) int {
	i, _ := slices.BinarySearchFunc(pg.wal, pos, func(tx *simTx, pos pglogrepl.LSN) int { return cmp.Compare(tx.commit, pos) })
	return i
}

func (pg *simPG) slot() *replication.Slot {
	return &replication.Slot{
		Plugin: "pgoutput", Active: pg.busy(), WALStatus: "reserved", RestartLSN: pg.confirmed - 0x100,
		ConfirmedFlush: pg.confirmed, ServerLSN: pg.flushedEnd, Asked: time.Now(),
	}
}

// busy reports whether somebody has the slot.
func (pg *simPG) busy() bool { return pg.holder != nil || pg.held || time.Now().Before(pg.heldUntil) }
