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

// simPG is the server: a WAL with several concurrent writers, a slot whose position is saved now and then, and the
// parts of the catalogs that the guard checks. Guarded by world.mu.
type simPG struct {
	w          *world
	id         replication.Identity // except WALEnd
	wal        []*simTx             // in the order of their commits
	order      []*event             // events to be delivered, in order
	lanes      [simLanes]int        // events to be delivered, by lane
	flushed    int                  // number of transactions of wal that are on disk and may be sent
	end        pglogrepl.LSN        // of the WAL
	flushedEnd pglogrepl.LSN
	done       int // number of transactions of wal, from the first, that are completely acked
	writers    []*writer
	xid        uint32
	skew       time.Duration // of the server's clock
	events     []*event      // all events ever written
	tables     []*walsendertest.Table
	table      int // the table for new rows
	other      *walsendertest.Table

	confirmed pglogrepl.LSN              // the slot's
	saved     pglogrepl.LSN              // the slot's position after a crash
	copies    [simStandbys]pglogrepl.LSN // the positions of the standbys' copies
	highest   pglogrepl.LSN              // the highest position of the slot so far
	streams   int                        // number of streams so far
	moved     time.Time                  // when confirmed last increased
	holder    *simStream                 // the stream that has the slot
	heldUntil time.Time                  // by a dead connection that the server has not noticed yet
	held      bool                       // by another client
	recovery  pglogrepl.LSN              // the position of the recovery slot; 0: there is none
	recovered bool                       // a run of recover has dropped it
	idle      time.Duration

	async     bool // commits are flushed later
	trickle   bool // the walsender sends only when the script says so
	down      bool
	hang      chan struct{} // new connections are accepted and get no answer until it is closed
	filter    bool          // the publication hides what is committed
	altered   int           // counts its alterations
	pending   bool          // an alteration is not committed
	openErr   error         // of each Open from now on
	lookErr   error         // of each Check from now on
	flaky     bool          // Checks fail for now
	slow      time.Duration // the longest duration of a Check
	slowUntil time.Time     // when the last slow Check may end
	looks     simLooks
	breaks    int // number of messages after which the next stream is cut; 0: it is not
	still     int // number of streams that are lost before the first message

	simTable
}

// simTx is a committed transaction.
type simTx struct {
	commit, end pglogrepl.LSN
	xid         uint32
	time        time.Time
	rows        []row
	hidden      bool      // not sent because of an altered publication
	left        int       // events that are not acked
	readAt      time.Time // when a relay last read its Commit
	readIn      *simStream
	sight
}

type row struct {
	lsn   pglogrepl.LSN
	table *walsendertest.Table
	msg   []byte
	ev    *event // nil: a row of another table, or an update
	takes bool   // an update: it has an ordinal and is not delivered
}

// event is an event and its state.
type event struct {
	id        int
	tx        *simTx // nil until committed
	ordinal   int
	order     int // index in simPG.order; -1: not to be delivered
	lane      int
	seq       int // in its lane, from 1
	key       string
	value     string
	created   time.Time
	stamp     time.Time // the time of its records; zero: that at which they are stored
	alike     bool      // another database has a record with its id, key and value
	lost      bool      // Kafka has lost its records
	recovered bool      // sent by recover
	before    bool      // an adoption has begun a new epoch since it was stored
	poison    poisonKind
	alone     bool // large: it must be sent alone
	arrived   bool // in its topic
	dropped   bool // by a command
	skipped   bool // by an operator's decision, or by the policy of its cause
	message   bool // a logical message

	digest   [2]uint64 // of its record and of its dead letter, once sent
	stored   int
	storedBy *simSink
	acked    bool
	ackedIn  *simSink
	ackedAt  time.Time
}

type poisonKind int

const (
	healthy  poisonKind = iota
	noKey               // noticed by the router
	tooLarge            // noticed by Check
	rejected            // noticed only by the broker
	hopeless            // the dead-letter topic refuses it as well
)

// writer is an open transaction.
type writer struct {
	rows []row
}

const (
	simLanes = 6 // three topics of two partitions each
	deadLane = simLanes
	allLanes = simLanes + 1
)

// simPrefix is the prefix of the messages that are events.
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
		w: w, id: replication.Identity{SystemID: 7, Database: simDatabase, Timeline: 1}, xid: 700, other: &other,
		tables: []*walsendertest.Table{&base, &wider, &leaf}, end: start, flushedEnd: start, confirmed: start, saved: start, highest: start, copies: [simStandbys]pglogrepl.LSN{start, start},
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
	lane, keys := w.IntN(simLanes), 3
	if w.holding {
		keys = 1
	}
	e := &event{id: len(pg.events), order: -1, lane: lane, key: string([]byte{'k', byte('0' + lane%2), byte('a' + w.IntN(keys))}), poison: poison}
	e.value = fmt.Sprintf("payload of %d", e.id)
	e.created = time.Now().Add(pg.skew).Truncate(time.Microsecond)
	if w.stamped {
		e.stamp = e.created.Add(-time.Duration(e.id%5) * 24 * time.Hour)
	}
	if e.message = e.id%7 == 3 && !w.audited; e.message { // without a draw, so that known seeds keep their runs
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

// update adds an update of a row. It would be poison if it were delivered.
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

// commit commits a transaction. The walsender sends it when it is flushed.
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
	pg.hide(tx)
	pg.wal = append(pg.wal, tx)
	w.see(nil, "commit", uint64(tx.commit), uint64(len(tx.rows)))
	if !pg.async {
		pg.flush()
	}
	return tx
}

// expect marks an event as one to be delivered.
func (pg *simPG) expect(e *event) {
	e.order = len(pg.order)
	if !pg.w.holding && (!pg.w.dead || e.poison == healthy) { // a dead letter is outside the order; with held keys see arrive
		pg.lanes[e.lane]++
		e.seq = pg.lanes[e.lane]
	}
	pg.order = append(pg.order, e)
}

// flush writes the WAL to disk and lets the walsender send it.
func (pg *simPG) flush() {
	pg.show()
	pg.flushed, pg.flushedEnd = len(pg.wal), pg.end
	if !pg.trickle {
		pg.pump(-1)
	}
}

// pump lets the walsender send up to n messages; -1: all.
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

// crash is an immediate stop: WAL that was not flushed is lost, and the slot is at its saved position.
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
	pg.restarted()
}

// unwrite removes transactions from the end of the WAL. n remain.
func (pg *simPG) unwrite(n int) {
	for _, tx := range slices.Backward(pg.wal[n:]) {
		tx.gone = true
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

// cut ends the stream. The given number of messages on their way can still be read; -1: all.
func (pg *simPG) cut(keep int) {
	if st := pg.holder; st != nil {
		if keep >= 0 && keep < len(st.queue) {
			st.queue = st.queue[:keep]
		}
		st.giveUp(errGone)
		st.poke()
	}
}

// forget drops the events that an altered publication has hidden: the operator finds them in the table. No process
// streams.
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

// progress updates done.
func (pg *simPG) progress() {
	for pg.done < len(pg.wal) && pg.wal[pg.done].left == 0 && !(pg.wal[pg.done].hidden && len(pg.wal[pg.done].rows) > 0) {
		pg.done++
	}
}

// took is called when a status update arrives. It checks that the position may be confirmed (I5).
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
	pg.highest = max(pg.highest, pos)
}

// firstAfter returns the index of the first transaction that a walsender sends from pos.
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

// busy reports whether a client has the slot.
func (pg *simPG) busy() bool { return pg.holder != nil || pg.held || time.Now().Before(pg.heldUntil) }
