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

// Runs in which the slot is lost, dropped, recreated or advanced after a history, and `recover` follows. It compares and sends with the
// product's own code (internal/audit, internal/recovery), in the steps of cmd/outboxcdc/recover.go. It is killed at random times, the server
// crashes, applications write meanwhile, and requests of killed processes arrive late. Then the daemon goes on. Checks:
//
//   - recover sends no event that Kafka has, or that the slot has, or that a crash could still undo, and uses no position twice
//   - once a run has found nothing missing any more, nothing is: the daemon delivers the rest
//   - the daemon sends no event that recover has sent

// RunSimRecover is the product's comparison and sending. sim_audit_external_test.go sets it.
var RunSimRecover func(context.Context, *SimRecover) error

// SimRecover is a run of `recover`. It is a recovery.Sender.
type SimRecover struct {
	simReader
	Router    *router.Router
	Poison    PoisonPolicies
	Lineage   replication.Identity
	NotBefore time.Time // Kafka is not read before
	At        checkpoint.Position
	Left      int // rows that are missing still, set by RunSimRecover

	cancel context.CancelFunc
	over   chan struct{}
	err    error
	flying []*recovered
	acked  int64
}

// recovered is a record of recover.
type recovered struct {
	at     simPartition
	record *simRecord
}

// beginRecover begins a run.
func (w *world) beginRecover() *SimRecover {
	w.mu.Lock()
	r := &SimRecover{
		simReader: simReader{p: &process{w: w, n: 700 + w.recovers, dead: make(chan struct{})}, restarts: -1},
		Router:    simRouter(nil), Poison: w.cfg.Poison, NotBefore: time.Now().Add(simFence), over: make(chan struct{}),
	}
	w.recovers++
	w.see(r.p, "recovers", 0, 0)
	w.mu.Unlock()
	var ctx context.Context
	ctx, r.cancel = context.WithCancel(context.Background())
	go func() {
		defer close(r.over)
		if r.err = r.prepareSlot(ctx); r.err == nil {
			r.err = RunSimRecover(ctx, r)
		}
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

// prepareSlot creates the slot if there is none that could be read.
func (r *SimRecover) prepareSlot(ctx context.Context) error {
	slot, err := r.Read(ctx)
	if err != nil {
		return err
	}
	w := r.p.w
	if slot == nil || slot.Lost() {
		if err := r.createSlot(ctx); err != nil {
			return err
		}
	}
	if err := r.awaitVisible(ctx); err != nil {
		return err
	}
	if err := r.ask(ctx); err != nil {
		return err
	}
	defer w.mu.Unlock()
	r.Lineage = w.pg.id
	r.Lineage.WALEnd = w.pg.flushedEnd
	r.At = checkpoint.Position{SystemID: w.pg.id.SystemID, Timeline: w.pg.id.Timeline, CommitLSN: w.pg.confirmed - 1}
	return nil
}

// createSlot creates the slot, which has what is committed from then on.
func (r *SimRecover) createSlot(ctx context.Context) error {
	if err := r.ask(ctx); err != nil {
		return err
	}
	pg := r.p.w.pg
	defer pg.w.mu.Unlock()
	pg.flush()
	pg.openErr = nil
	pg.place(pg.end)
	pg.w.see(r.p, "creates the slot", uint64(pg.end), 0)
	return nil
}

// place sets the slot's position, for good. w.mu is held.
func (pg *simPG) place(at pglogrepl.LSN) {
	pg.confirmed, pg.saved, pg.highest, pg.placed = at, at, max(pg.highest, at), true
}

// awaitVisible waits until each transaction that is committed now is visible.
func (r *SimRecover) awaitVisible(ctx context.Context) error {
	if err := r.ask(ctx); err != nil {
		return err
	}
	pg := r.p.w.pg
	committed := slices.Clone(pg.wal)
	pg.w.reached[recoverUnseen] = pg.w.reached[recoverUnseen] || slices.ContainsFunc(committed, func(tx *simTx) bool {
		return len(tx.rows) > 0 && tx.commit < pg.confirmed && time.Now().Before(tx.from)
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

// TakeSnapshot takes a snapshot.
func (r *SimRecover) TakeSnapshot(ctx context.Context) (*SimSnapshot, error) { return r.take(ctx, nil) }

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
	case rec.Topic != e.topic():
		w.fail("%s sends event %d to topic %q", r.p, id, rec.Topic)
	}
	w.judgeRecovered(r, rec)
	r.flying = append(r.flying, &recovered{simPartition{e.lane / 2, w.kafka.now.partition[e.lane] % w.kafka.now.counts[e.lane/2]}, w.copied(e, rec)})
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
	for _, h := range f.record.Headers {
		if h.Name == router.HeaderPosition {
			w.positions[string(h.Value)] = strconv.Itoa(e.id)
		}
	}
	w.kafka.put(f.at, f.record)
}

// kill is kill -9. What is in flight arrives within fence_wait, up to any record. w.mu is held.
func (r *SimRecover) kill() {
	w := r.p.w
	w.see(r.p, "is killed", uint64(len(r.flying)), 0)
	w.reached[recoverKilled] = w.reached[recoverKilled] || r.acked > 0
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
