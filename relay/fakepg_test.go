package relay

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/test/walsendertest"
)

// postgres is a fake Source: a WAL of transactions, a slot that a crash takes back, and the rules of a walsender. It
// checks each status update against the acknowledgements of the fake Kafka. bench.mu guards its fields and those of
// its streams.
type postgres struct {
	b *bench

	id        replication.Identity // except WALEnd
	table     walsendertest.Table
	wal       []*tx
	end       pglogrepl.LSN // of the WAL
	confirmed pglogrepl.LSN // the slot's
	saved     pglogrepl.LSN // the slot's position after a crash
	flushed   pglogrepl.LSN // the end of the WAL in IDENTIFY_SYSTEM, if it is not end
	missing   []string
	now       []replication.TableNow // the tables now; nil: the relay does not check them
	published string
	noted     string        // Alteration.Published, if published was altered
	compares  time.Duration // how long Altered takes
	found     error         // by the opening of a stream
	idle      time.Duration
	held      bool // the slot, by another instance
	down      bool
	works     bool // the walsender, whatever it sends
	streams   []*stream

	// scripts
	openErr   func(n int) error // of the n-th Open, from 1; it may wait
	checkErr  func(n int) error // of the n-th Check, from 1; it may wait
	resolve   func(oid uint32) (int, error)
	stillborn int  // number of streams that are lost before the first message
	breaks    int  // number of messages after which the next stream is lost; 0: it is not
	slams     bool // the next status update that moves arrives, but its sender gets an error

	// seen by the fake
	opens     []time.Time
	checks    []check
	slotReads int
	waits     int // calls of WaitFree
}

// check is one catalog check.
type check struct {
	at       time.Time
	received pglogrepl.LSN // the received position when it began
}

// tx is a transaction of the WAL.
type tx struct {
	walsendertest.Tx
	ids  []string
	open bool // it has no commit record yet
}

const firstLSN = 0x1000

func newPostgres(b *bench) *postgres {
	cat := walsendertest.NewCatalog()
	return &postgres{
		b: b, id: replication.Identity{SystemID: 7, Timeline: 1}, table: *cat.Outbox(),
		end: firstLSN, confirmed: firstLSN, saved: firstLSN,
	}
}

// row returns the pgoutput message of an event: "id", or "id@topic". After a ! the row has no key, which is poison. A
// ^ at the start makes it an update, a * a logical message, and *! a message whose body is no object.
func (pg *postgres) row(spec string) []byte {
	if id, ok := strings.CutPrefix(spec, "*"); ok {
		return pg.message(id)
	}
	spec, update := strings.CutPrefix(spec, "^")
	spec, bad := strings.CutPrefix(spec, "!")
	id, topic, ok := strings.Cut(spec, "@")
	if !ok {
		topic = "t"
	}
	values := map[string]any{
		"id": id, "aggregate_type": topic, "aggregate_id": pg.key(id), "event_type": "e", "payload": "payload of " + id, "headers": "{}",
	}
	if bad {
		values["aggregate_id"] = nil
	}
	row := make([]any, len(pg.table.Columns))
	for i, c := range pg.table.Columns {
		row[i] = values[c]
	}
	if update {
		return walsendertest.Update(&pg.table, row...)
	}
	return walsendertest.Insert(&pg.table, row...)
}

// key returns the key of an event.
func (pg *postgres) key(id string) string {
	if pg.b.kafka.oneKey {
		return "k"
	}
	return id
}

// message is a transactional logical message that is an event.
func (pg *postgres) message(spec string) []byte {
	id, bad := strings.CutPrefix(spec, "!")
	id, topic, ok := strings.Cut(id, "@")
	if !ok {
		topic = "t"
	}
	body := `{"id":"` + id + `","aggregate_type":"` + topic + `","aggregate_id":"` + pg.key(id) + `","event_type":"e","payload":"payload of ` + id + `"}`
	if bad {
		body = "[" + body + "]"
	}
	return walsendertest.Message(true, messagePrefix, body)
}

// messagePrefix is the prefix of the messages that are events.
const messagePrefix = "events"

func bare(spec string) string {
	id, _, _ := strings.Cut(strings.TrimLeft(spec, "*^!"), "@")
	return id
}

// commit appends a transaction. Its commit LSN is the end LSN of the previous one.
func (pg *postgres) commit(specs ...string) *tx {
	pg.begin(specs...)
	return pg.finish()
}

// begin sends the first rows of a transaction, more the following rows, finish its commit. (A walsender sends a
// transaction only after its commit, but may send it slowly.)
func (pg *postgres) begin(specs ...string) *tx {
	pg.b.mu.Lock()
	t := &tx{open: true, Tx: walsendertest.Tx{
		Commit: pg.end, End: pg.end + 0x30, XID: uint32(700 + len(pg.wal)), Time: time.Now().Truncate(time.Microsecond),
	}}
	pg.wal = append(pg.wal, t)
	if st := pg.live(); st != nil {
		st.data(t.Commit, walsendertest.Begin(t.Commit, t.Time, t.XID))
	}
	pg.b.mu.Unlock()
	pg.more(specs...)
	return t
}

func (pg *postgres) more(specs ...string) {
	for _, spec := range specs {
		pg.raw(bare(spec), pg.row(spec))
	}
}

// raw sends a message inside the open transaction. id is "" if the message is no event.
func (pg *postgres) raw(id string, msg []byte) {
	pg.b.mu.Lock()
	defer pg.b.mu.Unlock()
	t := pg.wal[len(pg.wal)-1]
	if id != "" {
		t.ids = append(t.ids, id)
	}
	t.Body = append(t.Body, msg)
	if st := pg.live(); st != nil {
		st.relation(&pg.table)
		st.data(t.Commit, msg)
	}
}

func (pg *postgres) finish() *tx {
	pg.b.mu.Lock()
	defer pg.b.mu.Unlock()
	t := pg.wal[len(pg.wal)-1]
	t.open = false
	pg.end = t.End
	if st := pg.live(); st != nil {
		st.data(t.End, walsendertest.Commit(t.Commit, t.End, t.Time))
	}
	return t
}

// foreign writes WAL that is not published. The walsender sends a keepalive.
func (pg *postgres) foreign() pglogrepl.LSN {
	pg.b.mu.Lock()
	defer pg.b.mu.Unlock()
	pg.end += 0x1000
	if st := pg.live(); st != nil {
		st.keepalive(pg.end, false)
	}
	return pg.end
}

// crash is an immediate stop, after which the server is up again at once.
func (pg *postgres) crash() {
	pg.b.mu.Lock()
	defer pg.b.mu.Unlock()
	pg.confirmed = pg.saved
	if st := pg.live(); st != nil {
		st.fail(errGone)
	}
}

// cut ends the live stream like a lost connection.
func (pg *postgres) cut() { pg.fail(errGone) }

// fail ends the live stream with err, after the messages that are on their way.
func (pg *postgres) fail(err error) {
	pg.b.mu.Lock()
	defer pg.b.mu.Unlock()
	if st := pg.live(); st != nil {
		st.fail(err)
	}
}

// keepalive sends a keepalive with the server's position, or with lsn if that is not 0.
func (pg *postgres) keepalive(lsn pglogrepl.LSN, reply bool) {
	pg.b.mu.Lock()
	defer pg.b.mu.Unlock()
	if lsn == 0 {
		lsn = pg.end
	}
	pg.live().keepalive(lsn, reply)
}

// edit changes the script or the server.
func (pg *postgres) edit(f func()) {
	pg.b.mu.Lock()
	defer pg.b.mu.Unlock()
	f()
}

var errGone = &replication.Error{Kind: replication.Unavailable, Op: "read the stream", Err: errors.New("unexpected EOF")}

// live returns the stream that has not ended, nil if there is none.
func (pg *postgres) live() *stream {
	if n := len(pg.streams); n > 0 && !pg.streams[n-1].closed && pg.streams[n-1].err == nil {
		return pg.streams[n-1]
	}
	return nil
}

// stream returns the newest stream.
func (pg *postgres) stream() *stream {
	pg.b.Helper()
	pg.b.mu.Lock()
	defer pg.b.mu.Unlock()
	if len(pg.streams) == 0 {
		pg.b.Fatal("no stream was opened")
	}
	return pg.streams[len(pg.streams)-1]
}

func (pg *postgres) sessions() int {
	pg.b.mu.Lock()
	defer pg.b.mu.Unlock()
	return len(pg.streams)
}

func (pg *postgres) slotAt() pglogrepl.LSN {
	pg.b.mu.Lock()
	defer pg.b.mu.Unlock()
	return pg.confirmed
}

func (pg *postgres) catalogChecks() []check {
	pg.b.mu.Lock()
	defer pg.b.mu.Unlock()
	return slices.Clone(pg.checks)
}

func (pg *postgres) slot() *replication.Slot {
	return &replication.Slot{
		Plugin: "pgoutput", Active: pg.held || pg.live() != nil, WALStatus: "reserved", RestartLSN: pg.confirmed - 0x100,
		ConfirmedFlush: pg.confirmed, ServerLSN: pg.end, Works: pg.works,
	}
}

func unavailable(op string, err error) error {
	return &replication.Error{Kind: replication.Unavailable, Op: op, Err: err}
}

func (pg *postgres) Open(ctx context.Context) (Stream, error) {
	pg.b.mu.Lock()
	pg.opens = append(pg.opens, time.Now())
	hook, n := pg.openErr, len(pg.opens)
	pg.b.mu.Unlock()
	if hook != nil {
		if err := hook(n); err != nil {
			return nil, err
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, unavailable("connect to Postgres", err)
	}
	pg.b.mu.Lock()
	defer pg.b.mu.Unlock()
	switch {
	case pg.down:
		return nil, unavailable("connect to Postgres", errors.New("connection refused"))
	case pg.held:
		return nil, &replication.Error{Kind: replication.SlotActive, Op: "start slot", Err: errors.New("it is active for PID 4711")}
	case pg.live() != nil:
		pg.b.Error("a second stream is opened while one is open")
	}
	st := &stream{pg: pg, id: pg.id, start: pg.confirmed, kick: make(chan struct{}, 1), announced: map[uint32]bool{}, sent: pg.confirmed}
	st.id.WALEnd = max(pg.end, pg.flushed)
	for _, t := range pg.wal {
		st.id.WALEnd = max(st.id.WALEnd, t.End) // an open transaction counts: it is committed, but not sent completely
		if t.Commit < pg.confirmed {            // the walsender's own rule
			continue
		}
		st.data(t.Commit, walsendertest.Begin(t.Commit, t.Time, t.XID))
		for _, msg := range t.Body {
			st.relation(&pg.table)
			st.data(t.Commit, msg)
		}
		if !t.open {
			st.data(t.End, walsendertest.Commit(t.Commit, t.End, t.Time))
		}
	}
	if n := len(pg.wal); pg.end > st.sent && (n == 0 || !pg.wal[n-1].open) {
		st.keepalive(pg.end, false) // the server has decoded up to here, and the client has not confirmed it
	}
	if pg.breaks > 0 && len(st.queue) > pg.breaks {
		st.queue, st.err, pg.breaks = st.queue[:pg.breaks], errGone, 0
	}
	if pg.stillborn > 0 {
		pg.stillborn--
		st.queue, st.err = nil, errGone
	}
	pg.streams = append(pg.streams, st)
	return st, nil
}

func (pg *postgres) WaitFree(ctx context.Context, tick func(*replication.Slot)) error {
	pg.edit(func() { pg.waits++ })
	for {
		pg.b.mu.Lock()
		slot := pg.slot()
		pg.b.mu.Unlock()
		tick(slot)
		if !slot.Active {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Second):
		}
	}
}

func (pg *postgres) Look(context.Context) (*replication.Slot, error) {
	pg.b.mu.Lock()
	defer pg.b.mu.Unlock()
	pg.slotReads++
	if pg.down {
		return nil, unavailable("connect to Postgres", errors.New("connection refused"))
	}
	return pg.slot(), nil
}

// stream is one session of the fake. Its fields are guarded like those of postgres.
type stream struct {
	pg    *postgres
	id    replication.Identity
	start pglogrepl.LSN
	kick  chan struct{}

	drained   func()
	queue     []replication.Message
	notices   []error
	err       error           // the error of Receive once the queue is empty
	mute      bool            // the server sends nothing any more
	dribbles  bool            // bytes of an incomplete message keep arriving
	stall     time.Duration   // the server sends a long transaction: it reads status updates this long after the relay stops reading
	reading   bool            // the relay waits in Receive
	announced map[uint32]bool // relations
	sent      pglogrepl.LSN   // the position up to which the server has sent
	received  pglogrepl.LSN   // the position up to which the relay has read: ends of transactions, and keepalives
	lent      []byte          // the last result of Receive

	deadline  time.Time
	interrupt bool
	statuses  []status
	frozen    *pglogrepl.LSN // no status update may be above it
	closed    bool           // by Close
	closedAt  time.Time
}

// status is a standby status update.
type status struct {
	pos   pglogrepl.LSN
	reply bool
	at    time.Time
}

func (st *stream) wake() {
	select {
	case st.kick <- struct{}{}:
	default:
	}
}

func (st *stream) push(m replication.Message) {
	if !st.mute && st.err == nil {
		st.queue = append(st.queue, m)
		st.wake()
	}
}

func (st *stream) data(at pglogrepl.LSN, msg []byte) {
	st.sent = max(st.sent, at)
	st.push(replication.Message{WALStart: at, Data: msg})
}

// relation announces the table before its first row.
func (st *stream) relation(t *walsendertest.Table) {
	if !st.announced[t.OID] {
		st.announced[t.OID] = true
		st.data(0, walsendertest.Relation(t))
	}
}

func (st *stream) keepalive(end pglogrepl.LSN, reply bool) {
	st.sent = max(st.sent, end)
	st.push(replication.Message{ServerWALEnd: end, ReplyRequested: reply})
}

func (st *stream) fail(err error) {
	st.err = err
	st.wake()
}

// notice makes Receive return an error next; the stream continues.
func (st *stream) notice(err error) {
	st.pg.b.mu.Lock()
	defer st.pg.b.mu.Unlock()
	st.notices = append(st.notices, err)
	st.wake()
}

// silence keeps the stream open, but sends nothing any more.
func (st *stream) silence() {
	st.pg.b.mu.Lock()
	defer st.pg.b.mu.Unlock()
	st.mute = true
}

// position returns the position of the last status update.
func (st *stream) position() pglogrepl.LSN {
	if n := len(st.statuses); n > 0 {
		return st.statuses[n-1].pos
	}
	return st.start
}

// freeze fails the test if a later position is confirmed from now on. It returns the current one.
func (st *stream) freeze() pglogrepl.LSN {
	st.pg.b.mu.Lock()
	defer st.pg.b.mu.Unlock()
	at := st.position()
	st.frozen = &at
	return at
}

// updates returns the status updates so far.
func (st *stream) updates() []status {
	st.pg.b.mu.Lock()
	defer st.pg.b.mu.Unlock()
	return slices.Clone(st.statuses)
}

// forget forgets the status updates so far.
func (st *stream) forget() {
	st.pg.b.mu.Lock()
	defer st.pg.b.mu.Unlock()
	st.statuses, st.start = nil, st.position()
}

func (st *stream) isClosed() (bool, time.Time) {
	st.pg.b.mu.Lock()
	defer st.pg.b.mu.Unlock()
	return st.closed, st.closedAt
}

// gaps returns the times between status updates.
func gaps(us []status) []time.Duration {
	var out []time.Duration
	for i := 1; i < len(us); i++ {
		out = append(out, us[i].at.Sub(us[i-1].at))
	}
	return out
}

func (st *stream) Identity() replication.Identity { return st.id }
func (st *stream) Start() pglogrepl.LSN           { return st.start }
func (st *stream) Missing() []string              { return st.pg.missing }
func (st *stream) IdleTimeout() time.Duration     { return st.pg.idle }

func (st *stream) SetDeadline(t time.Time) bool {
	st.pg.b.mu.Lock()
	defer st.pg.b.mu.Unlock()
	if st.interrupt {
		st.interrupt = false
		return false
	}
	st.deadline = t
	return true
}

func (st *stream) Interrupt() {
	st.pg.b.mu.Lock()
	defer st.pg.b.mu.Unlock()
	st.interrupt, st.deadline = true, time.Unix(1, 0)
	st.wake()
}

func (st *stream) OnDrained(f func()) { st.drained = f }

func (st *stream) Receive() (replication.Message, error) {
	st.setReading(true)
	defer st.setReading(false)
	for {
		m, ok, left, err := st.next()
		if ok || err != nil {
			return m, err
		}
		st.drained()
		timer := time.NewTimer(left)
		select {
		case <-st.kick:
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (st *stream) next() (m replication.Message, ok bool, left time.Duration, err error) {
	st.pg.b.mu.Lock()
	defer st.pg.b.mu.Unlock()
	for i := range st.lent { // a caller that kept it reads garbage
		st.lent[i] = 0xEE
	}
	st.lent = nil
	left = time.Until(st.deadline)
	switch {
	case st.closed:
		panic("Receive after Close")
	case left <= 0:
		m.Partial = st.dribbles
		return m, false, 0, replication.ErrDeadline
	case len(st.notices) > 0:
		err, st.notices = st.notices[0], st.notices[1:]
		return m, false, 0, err
	case len(st.queue) > 0:
		m, st.queue = st.queue[0], st.queue[1:]
		if m.Data == nil {
			st.received = max(st.received, m.ServerWALEnd)
			return m, true, 0, nil
		}
		if m.Data[0] == 'C' {
			st.received = max(st.received, m.WALStart)
		}
		m.Data = slices.Clone(m.Data)
		st.lent = m.Data
		return m, true, 0, nil
	}
	return m, false, left, st.err
}

func (st *stream) Status(confirmed pglogrepl.LSN, reply bool, now time.Time) error {
	st.pg.b.mu.Lock()
	defer st.pg.b.mu.Unlock()
	return st.status(confirmed, reply, now)
}

func (st *stream) status(confirmed pglogrepl.LSN, reply bool, now time.Time) error {
	b := st.pg.b
	switch last := st.position(); {
	case confirmed == 0:
		panic("a status update with position 0/0")
	case st.closed:
		b.Error("a status update after Close")
	case st.err != nil && len(st.queue) == 0: // messages on their way can be read, then the stream has ended
		return st.err
	case confirmed < last:
		b.Errorf("confirmed %s after %s: it fell", confirmed, last)
	case confirmed > max(st.received, st.start):
		b.Errorf("confirmed %s, but only %s was received", confirmed, st.received)
	case st.frozen != nil && confirmed > *st.frozen:
		b.Errorf("confirmed %s although confirmation was to stand still at %s", confirmed, *st.frozen)
	}
	if !now.Equal(time.Now()) {
		b.Errorf("the clock of a status update is %s, it is %s", now, time.Now())
	}
	moved := confirmed > st.position()
	st.statuses = append(st.statuses, status{confirmed, reply, time.Now()})
	if st.stall > 0 {
		st.hearLater(confirmed)
		return nil
	}
	st.pg.took(confirmed)
	if st.pg.slams && moved {
		st.pg.slams, st.err, st.queue = false, errGone, nil
		return errGone
	}
	if reply {
		st.push(replication.Message{ServerWALEnd: st.sent})
	}
	return nil
}

// hearLater makes the server read a status update when it cannot send any more. If the stream ends, the update is lost.
func (st *stream) hearLater(confirmed pglogrepl.LSN) {
	time.AfterFunc(st.stall, func() {
		st.pg.b.mu.Lock()
		defer st.pg.b.mu.Unlock()
		switch {
		case st.closed || st.err != nil:
		case st.reading:
			st.hearLater(confirmed)
		default:
			st.pg.took(confirmed)
		}
	})
}

func (st *stream) setReading(now bool) {
	st.pg.b.mu.Lock()
	defer st.pg.b.mu.Unlock()
	st.reading = now
}

// took moves the slot, and checks that Kafka has acknowledged every event before the position.
func (pg *postgres) took(pos pglogrepl.LSN) {
	pg.confirmed = max(pg.confirmed, pos)
	for _, t := range pg.wal {
		if t.Commit >= pos {
			break
		}
		if t.open {
			pg.b.Errorf("confirmed %s, which is behind the open transaction at %s", pos, t.Commit)
		}
		for _, id := range t.ids {
			if !pg.b.kafka.acked[id] {
				pg.b.Errorf("confirmed %s, which is behind event %s of the transaction at %s, and Kafka has not acknowledged it", pos, id, t.Commit)
			}
		}
	}
}

func (st *stream) Check(ctx context.Context) (*replication.Slot, error) {
	pg := st.pg
	pg.b.mu.Lock()
	asked := time.Now()
	pg.checks = append(pg.checks, check{asked, max(st.received, st.start)})
	hook, n := pg.checkErr, len(pg.checks)
	pg.b.mu.Unlock()
	var undecided error
	if hook != nil {
		if err := hook(n); errors.Is(err, replication.ErrUndecided) || replication.KindOf(err) == replication.PublicationChanged {
			undecided = err
		} else if err != nil {
			return nil, err
		}
	}
	pg.b.mu.Lock()
	defer pg.b.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return nil, unavailable("check publication", ctx.Err())
	case pg.down:
		return nil, unavailable("check publication", errors.New("unexpected EOF"))
	}
	slot := pg.slot()
	slot.Asked = asked
	return slot, undecided
}

func (st *stream) Types(context.Context, []uint32) (t replication.Types, err error) { return }

func (st *stream) Tables() []replication.TableNow { return st.pg.now }

func (st *stream) Found() error      { return st.pg.found }
func (st *stream) Published() string { return st.pg.published }
func (st *stream) Altered(_ context.Context, before string) (a replication.Alteration, err error) {
	time.Sleep(st.pg.compares)
	if before != st.pg.published && (st.pg.found == nil || st.pg.noted != "") {
		a.Why, a.Published = "the publication was altered", st.pg.noted
	}
	return a, nil
}

func (st *stream) Resolve(_ context.Context, rel *replication.Announced) (int, error) {
	if st.pg.resolve != nil {
		return st.pg.resolve(rel.OID)
	}
	if rel.OID != st.pg.table.OID {
		return replication.NotOurs, nil
	}
	return 0, nil
}

// Close behaves like the real one: on a connection that is known to be lost it sends nothing, and returns an error.
func (st *stream) Close(last pglogrepl.LSN, now time.Time) error {
	st.pg.b.mu.Lock()
	defer st.pg.b.mu.Unlock()
	if st.closed {
		st.pg.b.Error("Close twice")
		return nil
	}
	var err error
	if last != 0 && (st.err == nil || len(st.queue) > 0) {
		err = st.status(last, false, now)
	}
	st.closed, st.closedAt = true, time.Now()
	if st.err != nil {
		err = st.err
	}
	if st.stall > 0 {
		err = unavailable("end the stream", errors.New("timeout"))
	}
	return err
}
