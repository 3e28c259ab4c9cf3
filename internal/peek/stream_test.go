package peek

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"go.uber.org/goleak"

	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/test/walsendertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stream is a fake Stream with a queue of messages. It checks the status updates.
type stream struct {
	t     *testing.T
	table walsendertest.Table
	wake  chan struct{}

	// set before Run
	id       replication.Identity
	missing  []string
	checkErr error
	mute     bool  // the server sends nothing any more
	err      error // of Receive, once the queue is empty

	checks atomic.Int32

	mu        sync.Mutex
	tx        walsendertest.Tx // the last
	end       pglogrepl.LSN    // of the WAL
	announced bool             // the table
	queue     []replication.Message
	sent      pglogrepl.LSN // position of the server
	received  pglogrepl.LSN // position of the reader: ends of transactions, and keepalives
	lent      []byte        // what Receive returned last
	deadline  time.Time
	interrupt bool
	statuses  []status
}

// status is a standby status update.
type status struct {
	pos   pglogrepl.LSN
	reply bool
	at    time.Time
}

const (
	firstLSN      = 0x1000
	messagePrefix = "events"
)

func newStream(t *testing.T) *stream {
	cat := walsendertest.NewCatalog()
	return &stream{
		t: t, table: *cat.Outbox(), wake: make(chan struct{}, 1),
		id: replication.Identity{SystemID: 7, Timeline: 1}, end: firstLSN, sent: firstLSN, received: firstLSN,
	}
}

// open sets the end of the WAL that the reader sees at the start: also after a transaction that is still being sent,
// because a server sends it only after its commit.
func (st *stream) open() { st.id.WALEnd = max(st.end, st.tx.End) }

// commit sends a transaction; begin, more and finish send its parts.
func (st *stream) commit(specs ...string) walsendertest.Tx {
	st.begin(specs...)
	return st.finish()
}

func (st *stream) begin(specs ...string) walsendertest.Tx {
	st.tx = walsendertest.Tx{Commit: st.end, End: st.end + 0x30, XID: st.tx.XID + 1, Time: time.Now()}
	st.data(st.tx.Commit, walsendertest.Begin(st.tx.Commit, st.tx.Time, st.tx.XID))
	st.more(specs...)
	return st.tx
}

func (st *stream) more(specs ...string) {
	for _, spec := range specs {
		st.raw(st.row(spec))
	}
}

// raw sends a message inside the transaction.
func (st *stream) raw(msg []byte) {
	if !st.announced {
		st.announced = true
		st.data(0, walsendertest.Relation(&st.table))
	}
	st.data(st.tx.Commit, msg)
}

func (st *stream) finish() walsendertest.Tx {
	st.end = st.tx.End
	st.data(st.end, walsendertest.Commit(st.tx.Commit, st.end, st.tx.Time))
	return st.tx
}

// row is the pgoutput message of the event with this id. A prefix makes it something else: ! an event without key,
// which is poison, ^ an update, * a logical message, *! a logical message whose body is not an object.
func (st *stream) row(spec string) []byte {
	if id, ok := strings.CutPrefix(spec, "*"); ok {
		id, bad := strings.CutPrefix(id, "!")
		body := `{"id":"` + id + `","aggregate_type":"t","aggregate_id":"k","event_type":"e","payload":"p"}`
		if bad {
			body = "[" + body + "]"
		}
		return walsendertest.Message(true, messagePrefix, body)
	}
	spec, update := strings.CutPrefix(spec, "^")
	id, bad := strings.CutPrefix(spec, "!")
	values := map[string]any{"id": id, "aggregate_type": "t", "aggregate_id": "k", "event_type": "e", "payload": "p", "headers": "{}"}
	if bad {
		values["aggregate_id"] = nil
	}
	var row []any
	for _, c := range st.table.Columns {
		row = append(row, values[c])
	}
	if update {
		return walsendertest.Update(&st.table, row...)
	}
	return walsendertest.Insert(&st.table, row...)
}

func (st *stream) data(at pglogrepl.LSN, msg []byte) {
	st.push(replication.Message{WALStart: at, Data: msg})
}

// keepalive sends the position of a server that has decoded WAL of other tables.
func (st *stream) keepalive(at pglogrepl.LSN) { st.push(replication.Message{ServerWALEnd: at}) }

func (st *stream) push(m replication.Message) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.enqueue(m)
}

func (st *stream) enqueue(m replication.Message) {
	if st.sent = max(st.sent, m.WALStart); st.mute {
		return
	}
	st.queue = append(st.queue, m)
	st.poke()
}

func (st *stream) poke() {
	select {
	case st.wake <- struct{}{}:
	default:
	}
}

// position is that of the last status update.
func (st *stream) position() pglogrepl.LSN {
	if us := st.updates(); len(us) > 0 {
		return us[len(us)-1].pos
	}
	return firstLSN
}

func (st *stream) updates() []status {
	st.mu.Lock()
	defer st.mu.Unlock()
	return slices.Clone(st.statuses)
}

// gaps are the times between status updates.
func gaps(us []status) []time.Duration {
	var out []time.Duration
	for i := 1; i < len(us); i++ {
		out = append(out, us[i].at.Sub(us[i-1].at))
	}
	return out
}

func (st *stream) Identity() replication.Identity { return st.id }
func (st *stream) Start() pglogrepl.LSN           { return firstLSN }
func (st *stream) Missing() []string              { return st.missing }

func (st *stream) Check(context.Context) (*replication.Slot, error) {
	st.checks.Add(1)
	return &replication.Slot{}, st.checkErr
}

func (st *stream) Types(context.Context, []uint32) (t replication.Types, err error) { return }

func (st *stream) Resolve(_ context.Context, rel *replication.Announced) (int, error) {
	if rel.OID != st.table.OID {
		return replication.NotOurs, nil
	}
	return 0, nil
}

func (st *stream) SetDeadline(t time.Time) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.interrupt {
		st.interrupt = false
		return false
	}
	st.deadline = t
	return true
}

func (st *stream) Interrupt() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.interrupt, st.deadline = true, time.Unix(1, 0)
	st.poke()
}

func (st *stream) Receive() (replication.Message, error) {
	for {
		m, ok, left, err := st.next()
		if ok || err != nil {
			return m, err
		}
		select {
		case <-st.wake:
		case <-time.After(left):
		}
	}
}

func (st *stream) next() (m replication.Message, ok bool, left time.Duration, err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for i := range st.lent { // a message is valid until the next call only
		st.lent[i] = 0xEE
	}
	st.lent = nil
	if left = time.Until(st.deadline); left <= 0 {
		return m, false, 0, replication.ErrDeadline
	}
	if len(st.queue) == 0 {
		return m, false, left, st.err
	}
	m, st.queue = st.queue[0], st.queue[1:]
	switch {
	case m.Data == nil:
		st.received = max(st.received, m.ServerWALEnd)
		return m, true, 0, nil
	case m.Data[0] == 'C':
		st.received = max(st.received, m.WALStart)
	}
	st.lent = m.Data
	return m, true, 0, nil
}

func (st *stream) Status(confirmed pglogrepl.LSN, reply bool, now time.Time) error {
	last := st.position()
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case st.err != nil && len(st.queue) == 0:
		return st.err
	case confirmed < last:
		st.t.Errorf("confirmed %s after %s", confirmed, last)
	case confirmed > st.received:
		st.t.Errorf("confirmed %s, but only %s was received", confirmed, st.received)
	}
	if !now.Equal(time.Now()) {
		st.t.Errorf("the clock of a status update is %s, it is %s", now, time.Now())
	}
	st.statuses = append(st.statuses, status{confirmed, reply, time.Now()})
	if reply {
		st.enqueue(replication.Message{ServerWALEnd: st.sent})
	}
	return nil
}
