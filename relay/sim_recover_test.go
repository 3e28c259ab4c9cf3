package relay

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing/synctest"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
)

// Runs in which the slot is lost, dropped, recreated or advanced after a history, and `recover` follows. It is the
// product's own (internal/recovery); only the servers are simulated. It is killed at random times, the server
// crashes, applications write and daemons are started meanwhile, and requests of killed processes arrive late. Then
// the daemon goes on. Checks:
//
//   - recover sends no event that Kafka has, or that the slot has, or that a crash could still undo, and uses no
//     position twice
//   - no daemon delivers from the first record of recover until a run has found nothing missing
//   - once a run has found nothing missing any more, nothing is: the daemon delivers the rest
//   - the daemon sends no event that recover has sent

// RunSimRecover is the product's recovery. sim_audit_external_test.go sets it.
var RunSimRecover func(context.Context, *SimRecover) error

// SimRecover is a run of `recover`: the servers as the product's steps use them.
type SimRecover struct {
	simReader
	Router       *router.Router
	Poison       PoisonPolicies
	Deduplicated bool
	Unjudged     string // what happens to rows that cannot be judged: "", "send" or "leave"

	// Set by RunSimRecover.
	Left     int  // rows that are missing still
	Doubtful bool // there are rows that cannot be judged

	snapshot *SimSnapshot // the last one

	cancel context.CancelFunc
	over   chan struct{}
	err    error
	flying []*recovered
	acked  int64
	beside bool // a daemon was started meanwhile
}

// SimFence is how long records of a killed process may arrive late.
const SimFence = simFence

// recovered is a record of recover.
type recovered struct {
	at     simPartition
	record *simRecord
	header simHeader
}

// beginRecover begins a run.
func (w *world) beginRecover(unjudged string) *SimRecover {
	w.mu.Lock()
	r := &SimRecover{
		simReader: simReader{p: &process{w: w, n: 700 + w.recovers, dead: make(chan struct{})}, restarts: -1},
		Router:    w.router(w.kafka.now.routes), Poison: w.cfg.Poison, Deduplicated: w.deduplicates(), Unjudged: unjudged, over: make(chan struct{}),
	}
	w.recovers++
	w.see(r.p, "recovers", 0, 0)
	w.mu.Unlock()
	var ctx context.Context
	ctx, r.cancel = context.WithCancel(context.Background())
	go func() {
		defer close(r.over)
		r.err = RunSimRecover(ctx, r)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.see(r.p, "has recovered", uint64(r.acked), uint64(r.Left))
		w.tell("%s: %d sent, %d left, error %v", r.p, r.acked, r.Left, r.err)
	}()
	synctest.Wait()
	return r
}

func (r *SimRecover) ended() bool {
	select {
	case <-r.over:
		return true
	default:
		return false
	}
}

// place sets the slot's position, for good. w.mu is held.
func (pg *simPG) place(at pglogrepl.LSN) {
	pg.confirmed, pg.saved, pg.highest, pg.placed = at, at, max(pg.highest, at), true
}

// Slots returns both slots.
func (r *SimRecover) Slots(ctx context.Context) (daemon, recovery *replication.Slot, err error) {
	if daemon, err = r.Read(ctx); err != nil {
		return nil, nil, err
	}
	if err := r.ask(ctx); err != nil {
		return nil, nil, err
	}
	pg := r.p.w.pg
	defer pg.w.mu.Unlock()
	if pg.recovery != 0 {
		recovery = &replication.Slot{Name: "slot_recovery", Plugin: "pgoutput", WALStatus: "reserved", ConfirmedFlush: pg.recovery}
	}
	return daemon, recovery, nil
}

// CreateRecoverySlot creates the recovery slot.
func (r *SimRecover) CreateRecoverySlot(ctx context.Context, copied bool) error {
	return r.change(ctx, "creates the recovery slot", func(pg *simPG) error {
		switch {
		case pg.recovery != 0:
			return errors.New("the recovery slot exists")
		case copied && !pg.hasSlot():
			return errors.New("there is no slot to copy")
		case copied:
			pg.recovery = pg.confirmed
		default:
			pg.flush()
			pg.recovery = pg.end
		}
		return nil
	})
}

// RestoreSlot creates the daemon's slot.
func (r *SimRecover) RestoreSlot(ctx context.Context, lost bool) error {
	if lost {
		err := r.change(ctx, "drops the slot", func(pg *simPG) error {
			pg.openErr = &replication.Error{Kind: replication.SlotMissing, Op: "look", Err: errGone}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return r.change(ctx, "creates the slot", func(pg *simPG) error {
		if pg.hasSlot() || pg.recovery == 0 {
			return errors.New("the slot exists, or there is none to copy")
		}
		pg.openErr = nil
		pg.place(pg.recovery)
		return nil
	})
}

// SetFailover is for servers with standbys.
func (r *SimRecover) SetFailover(context.Context, bool) error { return nil }

// FreeSlots returns that there is room.
func (r *SimRecover) FreeSlots(context.Context) (most, free int, err error) { return 10, 8, nil }

// DropRecoverySlot drops the recovery slot.
func (r *SimRecover) DropRecoverySlot(ctx context.Context) error {
	return r.change(ctx, "drops the recovery slot", func(pg *simPG) error {
		if pg.recovery == 0 {
			return errors.New("there is no recovery slot")
		}
		pg.recovery, pg.w.recovering, pg.recovered = 0, false, true
		for _, p := range pg.w.alive() { // a daemon that was kept away until now starts when the run has ended
			p.die()
		}
		return nil
	})
}

// change changes a slot. A client that is killed after its question does not know whether it took effect.
func (r *SimRecover) change(ctx context.Context, what string, do func(*simPG) error) error {
	if err := r.ask(ctx); err != nil {
		return err
	}
	pg := r.p.w.pg
	err := do(pg)
	pg.w.see(r.p, what, uint64(pg.recovery), uint64(pg.confirmed))
	pg.w.mu.Unlock()
	if err != nil {
		return err
	}
	r.p.spend(ctx, readTable, 3*time.Millisecond)
	return ctx.Err()
}

// AwaitVisible waits until each transaction that is committed now is visible.
func (r *SimRecover) AwaitVisible(ctx context.Context) error {
	if err := r.ask(ctx); err != nil {
		return err
	}
	pg := r.p.w.pg
	committed := slices.Clone(pg.wal)
	pg.w.reached[recoverUnseen] = pg.w.reached[recoverUnseen] || slices.ContainsFunc(committed, func(tx *simTx) bool {
		return len(tx.rows) > 0 && tx.commit < max(pg.confirmed, pg.recovery) && time.Now().Before(tx.from)
	})
	for slices.ContainsFunc(committed, func(tx *simTx) bool { return tx.from.IsZero() || time.Now().Before(tx.from) }) {
		pg.w.mu.Unlock()
		r.p.spendAll(ctx, readTable, 100*time.Millisecond)
		if err := r.ask(ctx); err != nil {
			return err
		}
	}
	pg.w.mu.Unlock()
	return nil
}

// Identity returns the server's identity.
func (r *SimRecover) Identity(ctx context.Context) (replication.Identity, error) {
	if err := r.ask(ctx); err != nil {
		return replication.Identity{}, err
	}
	defer r.p.w.mu.Unlock()
	id := r.p.w.pg.id
	id.WALEnd = r.p.w.pg.flushedEnd
	return id, nil
}

// Published returns what the publication sends, which these runs do not change.
func (r *SimRecover) Published(context.Context, string) (published string, since replication.Alteration, err error) {
	return "published", since, nil
}

// OtherHistory reads the slot until it has the transaction of acked, as the product does.
func (r *SimRecover) OtherHistory(ctx context.Context, acked checkpoint.Position, tx checkpoint.TxID, start pglogrepl.LSN) (why *checkpoint.HistoryError, err error) {
	if err := r.ask(ctx); err != nil {
		return nil, err
	}
	pg := r.p.w.pg
	defer pg.w.mu.Unlock()
	id := pg.id
	id.WALEnd = pg.flushedEnd
	var expected checkpoint.Resume
	expected.AddRecord(id, acked, tx, start)
	for _, t := range pg.wal[min(pg.firstAfter(start), pg.flushed):pg.flushed] {
		if !expected.Expecting() {
			break
		}
		if _, err := expected.Begin(checkpoint.TxID{CommitLSN: t.commit, XID: t.xid, CommitTime: t.time}); err != nil {
			errors.As(err, &why)
			return why, nil
		}
	}
	if expected.Expecting() {
		errors.As(expected.Advance(pg.flushedEnd), &why)
	}
	return why, nil
}

// Database is the OID of the database.
func (r *SimRecover) Database() uint32 { return simDatabase }

// Load returns the position record.
func (r *SimRecover) Load(ctx context.Context) (*checkpoint.PositionRecord, error) {
	r.p.spend(ctx, readRecords, 3*time.Millisecond)
	w := r.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := errors.Join(ctx.Err(), w.kafka.openErr); err != nil {
		return nil, err
	}
	return checkpoint.Merge(w.kafka.saved), nil
}

// Save stores a position record. A client that is killed does not know whether Kafka has it.
func (r *SimRecover) Save(ctx context.Context, rec checkpoint.PositionRecord) error {
	r.p.spend(ctx, readRecords, 3*time.Millisecond)
	w := r.p.w
	w.mu.Lock()
	if err := errors.Join(ctx.Err(), w.kafka.openErr); err != nil {
		w.mu.Unlock()
		return err
	}
	w.see(r.p, "position", uint64(rec.Confirm), rec.Generation)
	w.kafka.saved, w.adopted = append(w.kafka.saved, rec), time.Now()
	for _, e := range w.pg.events {
		e.before = e.stored > 0
	}
	w.mu.Unlock()
	r.p.spend(ctx, readRecords, 3*time.Millisecond)
	return ctx.Err()
}

// TakeSnapshot takes a snapshot.
func (r *SimRecover) TakeSnapshot(ctx context.Context) (s *SimSnapshot, err error) {
	r.snapshot, err = r.take(ctx, nil)
	return r.snapshot, err
}

// Compared checks the result of a comparison: the rows of its snapshot that neither Kafka nor the slot has are
// missing, or not judged if another database has a record like theirs, and no other row is.
func (r *SimRecover) Compared(missing, unjudged int) {
	w := r.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	r.Left, r.Doubtful = missing, unjudged > 0
	if r.restarts != w.pg.restarts || r.p.isDead {
		return
	}
	gone, doubtful := 0, 0
	for i := range r.snapshot.rows {
		if e := r.snapshot.rows[i].e; w.kafka.copies[e] == 0 && !w.pg.slotHas(e) && e.alike {
			doubtful++
		} else if w.kafka.copies[e] == 0 && !w.pg.slotHas(e) {
			gone++
		}
	}
	w.reached[recoverDoubtful] = w.reached[recoverDoubtful] || unjudged > 0
	if missing != gone || unjudged != doubtful {
		w.fail("%s finds %d rows missing and cannot judge %d, and %d and %d are", r.p, missing, unjudged, gone, doubtful)
	}
}

// Send puts a record in flight.
func (r *SimRecover) Send(ctx context.Context, rec *router.Record) error {
	w := r.p.w
	w.mu.Lock()
	if ctx.Err() != nil {
		w.mu.Unlock()
		return ctx.Err()
	}
	id, err := strconv.Atoi(string(rec.ID))
	if err != nil || id >= len(w.pg.events) {
		w.fail("%s sends %q, which is no event", r.p, rec.ID)
		w.mu.Unlock()
		return errors.New("no such event")
	}
	e := w.pg.events[id]
	w.see(r.p, "sends", uint64(id), 0)
	switch {
	case !e.isRow() || e.tx.end > w.pg.flushedEnd:
		w.fail("%s sends event %d, whose transaction can be lost", r.p, id)
	case w.pg.slotHas(e):
		w.fail("%s sends event %d, which the slot has", r.p, id)
	case rec.Topic != w.kafka.now.topicName(e.lane):
		w.fail("%s sends event %d to topic %q", r.p, id, rec.Topic)
	}
	w.judgeRecovered(r, rec)
	w.recovering = true
	r.flying = append(r.flying, &recovered{w.kafka.now.of(e.lane), w.copied(e, rec), w.headerOf(e, rec)})
	full := len(r.flying) >= 4
	w.mu.Unlock()
	if full {
		return r.Wait(ctx)
	}
	return nil
}

// judgeRecovered checks that no two records of recover have one position. w.mu is held.
func (w *world) judgeRecovered(r *SimRecover, rec *router.Record) {
	for _, h := range rec.Headers {
		if h.Name != router.HeaderPosition {
			continue
		}
		if by, ok := w.positions[string(h.Value)]; ok && by != string(rec.ID) {
			w.fail("%s sends event %s with the position %s of event %s", r.p, rec.ID, h.Value, by)
		}
	}
}

// Wait waits until Kafka has what is in flight.
func (r *SimRecover) Wait(ctx context.Context) error {
	r.p.spend(ctx, readRecords, 500*time.Millisecond)
	w := r.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	for _, f := range r.flying {
		f.land(r.p)
		r.acked++
	}
	r.flying = nil
	return nil
}

// Close ends the sending.
func (r *SimRecover) Close() {}

// Acked returns how many records are in Kafka for certain.
func (r *SimRecover) Acked() int64 {
	r.p.w.mu.Lock()
	defer r.p.w.mu.Unlock()
	return r.acked
}

// land stores a record of recover. w.mu is held.
func (f *recovered) land(p *process) {
	w, e := p.w, f.record.e
	w.see(p, "stored by recover", uint64(e.id), 0)
	if w.kafka.copies[e] > 0 {
		w.fail("%s sends event %d, which Kafka has", p, e.id)
	}
	e.recovered = true
	mark := &w.headers.marks[e.lane]
	// As documented: the slot is as it was, so no epoch begins, and the consumer has an event of the key that is not
	// confirmed.
	isLate := w.slotKept && mark.Epoch == f.header.Epoch && mark.pos.CommitLSN > f.header.pos.CommitLSN
	if w.deduplicates() && !w.back && !isLate && !f.header.isNew(*mark) {
		w.fail("event %d is recovered, and a consumer drops it: %s after %s", e.id, checkpoint.FormatHeader(f.header.pos, f.header.Origin), checkpoint.FormatHeader(mark.pos, mark.Origin))
	}
	if w.deduplicates() && !isLate {
		*mark = f.header
	}
	for _, h := range f.record.Headers {
		if h.Name == router.HeaderPosition {
			w.positions[string(h.Value)] = strconv.Itoa(e.id)
		}
	}
	w.kafka.put(f.at, f.record)
}

// kill is kill -9, or SIGINT. What is in flight arrives within fence_wait, up to any record. w.mu is held.
func (r *SimRecover) kill() {
	w := r.p.w
	w.see(r.p, "is killed", uint64(len(r.flying)), 0)
	w.reached[recoverKilled] = w.reached[recoverKilled] || r.acked > 0
	r.p.isDead = w.IntN(3) > 0 // otherwise it is SIGINT, after which it cleans up
	r.cancel()
	flying := r.flying[:w.IntN(len(r.flying)+1)]
	r.flying = nil
	w.afterwards(func() {
		w.reached[recoverLate] = w.reached[recoverLate] || len(flying) > 0
		for _, f := range flying {
			f.land(r.p)
		}
	})
}

// afterwards does something, within fence_wait.
func (w *world) afterwards(do func()) {
	time.AfterFunc(w.upTo(simFence-time.Second)+1, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		do()
	})
}
