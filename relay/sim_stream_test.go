package relay

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/test/walsendertest"
)

// simStream is one stream, with the state of both ends.
type simStream struct {
	pg    *simPG
	p     *process
	id    replication.Identity
	start pglogrepl.LSN
	kick  chan struct{}
	began time.Time
	n     int // number of the stream, counted per slot
	found error

	// the server's end
	next      int // index of the transaction that is sent next
	at        int // next message of that transaction: -1 Begin, then its rows, then Commit
	announced [4]*walsendertest.Table
	sent      pglogrepl.LSN // the position up to which it has sent
	lastSent  time.Time
	err       error     // the stream has ended, once the queue is empty
	tells     time.Time // when the relay can notice the end
	cutOff    bool      // until then its checks get no answer either
	mute      bool      // the server sends nothing any more
	deaf      bool      // the server receives nothing any more
	slams     bool      // the server receives the next status update, then the stream ends

	queue []sentItem // messages on their way

	// the relay's end
	inTx       bool
	begun      *simTx
	received   pglogrepl.LSN
	guarded    pglogrepl.LSN  // the received position when the last passed check began
	pos        pglogrepl.LSN  // of the last status update
	freeze     *pglogrepl.LSN // no later status update may be beyond it
	lastStatus time.Time
	lost       bool
	reads      bool // it has read the stream
	buf        []byte
	deadline   time.Time
	drained    func()
	interrupt  bool
	closed     bool
}

// sentItem is a message, or the error of a notice.
type sentItem struct {
	replication.Message
	tx     *simTx // of Begin and Commit
	notice error
}

// push sends the next message, if there is one.
func (st *simStream) push() bool {
	pg := st.pg
	for st.next < pg.flushed && pg.wal[st.next].hidden {
		st.next++
	}
	if st.next >= pg.flushed || st.err != nil || st.mute {
		return false
	}
	st.lastSent = time.Now()
	tx := pg.wal[st.next]
	switch {
	case st.at < 0:
		first := tx.commit
		if len(tx.rows) > 0 {
			first = tx.rows[0].lsn
		}
		st.say(sentItem{Message: replication.Message{WALStart: first, Data: walsendertest.Begin(tx.commit, tx.time, tx.xid)}, tx: tx})
	case st.at < len(tx.rows):
		r := &tx.rows[st.at]
		if !slices.Contains(st.announced[:], r.table) {
			i := slices.IndexFunc(st.announced[:], func(t *walsendertest.Table) bool { return t == nil || t.OID == r.table.OID })
			pg.w.reached[relationChanged] = pg.w.reached[relationChanged] || st.announced[i] != nil
			st.announced[i] = r.table
			st.say(sentItem{Message: replication.Message{Data: walsendertest.Relation(r.table)}})
			return true
		}
		st.say(sentItem{Message: replication.Message{WALStart: r.lsn, Data: r.msg}})
	default:
		st.say(sentItem{Message: replication.Message{WALStart: tx.end, Data: walsendertest.Commit(tx.commit, tx.end, tx.time)}, tx: tx})
		st.sent, st.next, st.at = tx.end, st.next+1, -1
		return true
	}
	st.at++
	return true
}

// decoded returns the server's position for keepalives: before the next transaction that it has to send.
func (st *simStream) decoded() pglogrepl.LSN {
	pg := st.pg
	for st.at < 0 && st.next < pg.flushed && pg.wal[st.next].hidden {
		st.next++
	}
	if st.next < pg.flushed {
		return pg.wal[st.next].commit
	}
	return pg.flushedEnd
}

func (st *simStream) keepalive(end pglogrepl.LSN, reply bool) {
	st.say(sentItem{Message: replication.Message{ServerWALEnd: end, ReplyRequested: reply}})
}

func (st *simStream) say(m sentItem) {
	if !st.mute && st.err == nil {
		st.queue = append(st.queue, m)
	}
}

// end ends the connection. The relay does not know it yet.
func (st *simStream) end(err error) {
	if st.err == nil {
		st.err = err
	}
	if st.pg.holder == st {
		st.pg.holder = nil
	}
	st.pg.w.disturb()
}

// giveUp is end, which the relay may notice only after up to wal_sender_timeout.
func (st *simStream) giveUp(err error) {
	if draw := st.p.draw(hideEnd); st.err == nil && draw&1 == 0 {
		d := time.Duration(draw>>2)%st.pg.w.cfg.WalSenderTimeout&^1 + 1007
		st.tells, st.cutOff = time.Now().Add(d), draw&2 == 0
		time.AfterFunc(d, st.poke)
	}
	st.end(err)
}

// hidden reports whether the stream has ended and the relay cannot know it. w.mu is held.
func (st *simStream) hidden() bool {
	if st.err == nil || !time.Now().Before(st.tells) {
		return false
	}
	st.pg.w.reached[hiddenEnd] = true
	return true
}

func (st *simStream) poke() {
	select {
	case st.kick <- struct{}{}:
	default:
	}
}

func (st *simStream) Identity() replication.Identity { return st.id }
func (st *simStream) Start() pglogrepl.LSN           { return st.start }
func (st *simStream) Missing() []string              { return nil }
func (st *simStream) IdleTimeout() time.Duration     { return st.pg.idle }

func (st *simStream) OnDrained(f func()) { st.drained = f }

func (st *simStream) SetDeadline(t time.Time) bool {
	st.pg.w.mu.Lock()
	defer st.pg.w.mu.Unlock()
	if st.interrupt {
		st.interrupt = false
		return false
	}
	st.deadline = t
	return true
}

func (st *simStream) Interrupt() {
	st.pg.w.mu.Lock()
	defer st.pg.w.mu.Unlock()
	st.interrupt, st.deadline = true, time.Unix(1, 0)
	st.poke()
}

func (st *simStream) Receive() (replication.Message, error) {
	var timer *time.Timer
	for {
		m, ok, left, err := st.read()
		if ok || err != nil {
			if timer != nil {
				timer.Stop()
			}
			return m, err
		}
		if timer == nil {
			if st.drained != nil {
				st.drained()
			}
			timer = time.NewTimer(left)
		} else {
			timer.Reset(left)
		}
		select {
		case <-st.kick:
		case <-timer.C:
		case <-st.p.dead:
		}
	}
}

func (st *simStream) read() (m replication.Message, ok bool, left time.Duration, err error) {
	if err := st.p.gate(); err != nil {
		return m, false, 0, err
	}
	w := st.pg.w
	locked := true
	st.reads = true
	defer func() {
		if locked {
			w.mu.Unlock()
		}
	}()
	left = time.Until(st.deadline)
	switch {
	case st.closed:
		w.fail("%s: Receive after Close", st.p)
		return m, false, 0, errGone
	case left <= 0:
		return m, false, 0, replication.ErrDeadline
	case len(st.queue) == 0 && (st.err == nil || st.hidden()):
		return m, false, left, nil
	}
	if err := st.p.count("receive"); err != nil {
		locked = false
		return m, false, 0, err
	}
	if len(st.queue) == 0 {
		w.reached[streamCutInside] = w.reached[streamCutInside] || st.inTx
		w.see(st.p, "stream is over", 0, 0)
		st.lost = true
		return m, false, 0, st.err
	}
	item := st.queue[0]
	st.queue = st.queue[1:]
	if item.notice != nil {
		w.see(st.p, "receive a notice", 0, 0)
		if !errors.As(item.notice, new(*replication.Waiting)) {
			st.forbidMoves()
		}
		return m, false, 0, item.notice
	}
	w.messages++
	m = item.Message
	kind := byte('k')
	if m.Data == nil {
		if !st.inTx {
			w.reached[keepaliveRepeated] = w.reached[keepaliveRepeated] || m.ServerWALEnd <= st.received
			w.reached[keepaliveAhead] = w.reached[keepaliveAhead] || st.pg.done < len(st.pg.wal) && m.ServerWALEnd > st.pg.wal[st.pg.done].commit
			st.received = max(st.received, m.ServerWALEnd)
		} else {
			w.reached[keepaliveInside] = true
		}
	} else {
		kind = m.Data[0]
		switch kind {
		case 'B':
			st.inTx, st.begun = true, item.tx
		case 'C':
			st.inTx = false
			st.received = max(st.received, m.WALStart)
			item.tx.readAt, item.tx.readIn = time.Now(), st
		}
		// The next message overwrites the last one.
		st.buf = append(st.buf[:0], m.Data...)
		m.Data = st.buf
	}
	w.see(st.p, "receive", uint64(kind), uint64(m.WALStart|m.ServerWALEnd))
	if w.messages == w.cutAfter {
		st.queue = nil
		st.end(errGone)
	}
	return m, true, 0, nil
}

// forbidMoves fails the run if a later status update moves the slot: the relay has received an error.
func (st *simStream) forbidMoves() {
	if st.freeze == nil {
		at := st.pos
		st.freeze = &at
	}
}

func (st *simStream) Status(confirmed pglogrepl.LSN, reply bool, now time.Time) error {
	st.pg.w.mu.Lock()
	wasFrozen := st.freeze != nil
	st.pg.w.mu.Unlock()
	if err := st.p.call("status"); err != nil {
		return err
	}
	defer st.pg.w.mu.Unlock()
	if gap := time.Since(st.lastStatus); gap > 6500*time.Millisecond && st.err == nil {
		st.pg.w.fail("%s: no status update for %s", st.p, gap)
	}
	if st.freeze != nil && !wasFrozen && st.p.wasFrozen { // the call began before the error
		st.freeze = new(max(*st.freeze, confirmed))
	}
	return st.status(confirmed, reply, now)
}

func (st *simStream) status(confirmed pglogrepl.LSN, reply bool, now time.Time) error {
	w, p := st.pg.w, st.p
	w.see(p, "status", uint64(confirmed), 0)
	p.sentToAny = max(p.sentToAny, confirmed)
	if st.id.Timeline == st.pg.id.Timeline {
		p.lastSent = max(p.lastSent, confirmed)
	}
	switch {
	case confirmed == 0:
		w.fail("%s sends a status update with position 0/0", p)
	case st.closed:
		w.fail("%s sends a status update after Close", p)
	case confirmed < st.pos:
		w.fail("%s confirms %s after %s: it fell", p, confirmed, st.pos)
	case confirmed > max(st.received, st.start):
		w.fail("%s confirms %s, but only %s was received", p, confirmed, st.received)
	case confirmed > st.guarded:
		w.fail("%s confirms %s, but when the last look at the catalogs passed, only %s had been received", p, confirmed, st.guarded)
	case st.freeze != nil && confirmed > *st.freeze:
		w.fail("%s confirms %s although confirmation was to stand still at %s", p, confirmed, *st.freeze)
	case !now.Equal(time.Now()) && !p.wasFrozen:
		w.fail("%s: the clock of a status update is %s, it is %s", p, now, time.Now())
	}
	moved := confirmed > st.pos
	st.pos, st.lastStatus = confirmed, time.Now()
	switch {
	case st.lost:
		return errGone
	case st.err != nil || st.deaf:
		// The socket accepts the update although the other end does not read any more. The second time, the kernel may know.
		w.reached[statusLost] = w.reached[statusLost] || moved
		if st.err != nil && !st.hidden() && p.draw(loseStatus)&1 == 0 {
			st.lost = true
			return errGone
		}
		return nil
	}
	if w.deduplicates() && confirmed > max(w.kafka.allowed(), st.start) {
		w.fail("%s confirms %s, and no position record allows that", p, confirmed)
	}
	st.pg.took(p, confirmed)
	if st.slams {
		w.reached[statusUnanswered] = w.reached[statusUnanswered] || moved
		st.end(errGone)
		st.lost = true
		return errGone
	}
	if reply {
		st.keepalive(st.decoded(), false)
		st.poke()
	}
	return nil
}

func (st *simStream) Check(ctx context.Context) (*replication.Slot, error) {
	p, w, pg := st.p, st.pg.w, st.pg
	slow, asked := pg.slowness(), time.Now()
	p.spend(ctx, checkBefore, slow)
	for st.unreachable() {
		p.spendAll(ctx, checkBefore, 100*time.Millisecond)
		if ctx.Err() != nil {
			break
		}
	}
	if ctx.Err() != nil {
		return nil, unavailable("check publication", ctx.Err())
	}
	if err := p.call("check"); err != nil {
		return nil, err
	}
	received := max(st.received, st.start)
	err := pg.lookErr
	switch {
	case pg.down || pg.flaky:
		err = unavailable("check publication", errors.New("unexpected EOF"))
	case err != nil:
	case pg.holder != st:
		err = unavailable("check slot", errors.New("our walsender has lost it"))
	case p.lookAgain() != nil:
		err = p.lookAgain()
		p.look.found, p.look.mustTell = true, st.reads && st.mustTell()
	case pg.filter || p.altered != pg.altered:
		err = &replication.Error{Kind: replication.PublicationChanged, Op: "check publication", Err: errors.New("it was altered")}
	case pg.pending:
		err = replication.ErrUndecided
	}
	w.see(p, "check", uint64(received), 0)
	slot := pg.slot()
	slot.Asked = asked
	w.mu.Unlock()
	p.spend(ctx, checkAfter, slow)
	if ctx.Err() != nil {
		return nil, unavailable("check publication", ctx.Err())
	}
	if err := p.gate(); err != nil {
		return nil, err
	}
	defer w.mu.Unlock()
	if err != nil {
		w.disturb()
		if fatal(err) {
			st.forbidMoves()
		}
		if errors.Is(err, replication.ErrUndecided) || replication.KindOf(err) == replication.PublicationChanged {
			return slot, err
		}
		return nil, err
	}
	st.guarded = max(st.guarded, received)
	return slot, nil
}

// unreachable reports whether checks do not reach the server.
func (st *simStream) unreachable() bool {
	st.pg.w.mu.Lock()
	defer st.pg.w.mu.Unlock()
	return st.cutOff && st.hidden() && !st.p.isDead
}

// fatal reports whether an error ends the process.
func fatal(err error) bool {
	v := classify(err, true)
	return v.class != Retry
}

// slowness returns the longest duration of either half of a Check.
func (pg *simPG) slowness() time.Duration {
	pg.w.mu.Lock()
	defer pg.w.mu.Unlock()
	return max(pg.slow, 2*time.Millisecond)
}

func (st *simStream) Types(context.Context, []uint32) (t replication.Types, err error) { return }

func (st *simStream) Tables() []replication.TableNow { return nil }

// Published is the last look. Other alterations than those of the owner end a running process, and the operator
// handles them.
func (st *simStream) Published() string {
	st.pg.w.mu.Lock()
	defer st.pg.w.mu.Unlock()
	return st.p.look.String()
}

func (st *simStream) Altered(ctx context.Context, published string) (a replication.Alteration, err error) {
	if !st.pg.w.owner {
		return a, nil
	}
	st.p.spend(ctx, checkBefore, 2*time.Millisecond)
	if err := st.p.call("compare the catalogs"); err != nil {
		return a, err
	}
	defer st.pg.w.mu.Unlock()
	before := parseSimLook(published)
	if st.pg.changedSince(before) {
		a.Why = ownersAct
		if !before.found {
			before.found, st.p.look.mustTell = true, st.mustTell()
			a.Published = before.String()
		}
	}
	return a, nil
}

func (st *simStream) Found() error { return st.found }

func (st *simStream) Resolve(ctx context.Context, rel *replication.Announced) (int, error) {
	st.p.spend(ctx, resolveRelation, 2*time.Millisecond)
	if err := st.p.call("resolve"); err != nil {
		return replication.NotOurs, err
	}
	defer st.pg.w.mu.Unlock()
	if st.pg.down {
		return replication.NotOurs, unavailable("look up a relation", errors.New("unexpected EOF"))
	}
	if rel.OID == st.pg.other.OID {
		return replication.NotOurs, nil
	}
	return 0, nil
}

func (st *simStream) Close(last pglogrepl.LSN, now time.Time) error {
	p, w := st.p, st.pg.w
	if err := p.call("close the stream"); err != nil {
		return err
	}
	defer w.mu.Unlock()
	if st.closed {
		w.fail("%s closes a stream twice", p)
		return errGone
	}
	w.see(p, "close the stream", uint64(last), 0)
	var err error
	if last != 0 && !st.lost {
		err = st.status(last, false, now)
	}
	st.closed = true
	if p.stream == st {
		p.stream = nil
		p.idle = time.Now()
	}
	if st.err != nil || st.deaf || st.lost { // no answer has arrived
		err = errGone
	}
	st.end(errGone)
	return err
}
