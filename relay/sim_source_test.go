package relay

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/outboxcdc/outboxcdc/replication"
)

// simSource is the server for one process.
type simSource struct{ p *process }

func (s *simSource) Open(ctx context.Context) (Stream, error) {
	p, w := s.p, s.p.w
	pg := w.pg
	p.spend(ctx, openStream, 3*time.Millisecond)
	if err := p.call("open the stream"); err != nil {
		return nil, err
	}
	if hang := pg.hang; hang != nil {
		w.mu.Unlock()
		select {
		case <-hang:
		case <-ctx.Done():
		case <-p.dead:
		}
		p.spend(ctx, openStream, 3*time.Millisecond) // other clients wait as well
		if err := p.gate(); err != nil {
			return nil, err
		}
	}
	defer w.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return nil, unavailable("connect to Postgres", ctx.Err())
	case pg.down:
		return nil, unavailable("connect to Postgres", errors.New("connection refused"))
	case pg.openErr != nil:
		return nil, pg.openErr
	case pg.recovery != 0:
		return nil, &replication.Error{Kind: replication.RecoveryUnfinished, Op: "look", Err: errors.New("a recovery has not finished")}
	case pg.busy():
		return nil, &replication.Error{Kind: replication.SlotActive, Op: "start slot", Err: errors.New("it is active for PID 4711")}
	}
	st := &simStream{
		pg: pg, p: p, id: pg.id, start: pg.confirmed, pos: pg.confirmed, sent: pg.confirmed, next: pg.firstAfter(pg.confirmed), at: -1,
		kick: make(chan struct{}, 1), guarded: pg.confirmed, began: time.Now(), lastStatus: time.Now(),
	}
	st.id.WALEnd = pg.flushedEnd
	if pg.filter || p.opened > 0 && p.altered != pg.altered {
		st.found = &replication.Error{Kind: replication.PublicationChanged, Op: "look", Err: errors.New("it was altered")}
	}
	if p.opened > 0 && p.lookAgain() != nil {
		st.found, p.look.found = p.lookAgain(), true
	}
	pg.streams++
	st.n = pg.streams
	if p.opened == 0 {
		p.altered, p.look.acts = pg.altered, pg.looks.acts
	}
	p.opened++
	p.look.mustTell = false
	p.outdated = false
	p.stream, pg.holder = st, st
	if p.sink != nil {
		p.sink.begin(st)
	}
	w.reached[takenOver] = w.reached[takenOver] || slices.ContainsFunc(w.procs[:p.n-1], func(q *process) bool { return !q.gone && !q.isDead && q.opened > 0 })
	w.see(p, "streams from", uint64(st.start), uint64(st.id.WALEnd))
	draw := p.draw(openStream)
	if draw&1 == 0 {
		st.keepalive(st.start, false) // the first keepalives have the slot's position
	}
	switch {
	case pg.still > 0:
		pg.still--
		st.end(errGone)
	case pg.trickle:
		pg.pump(int(draw >> 1 & 15))
	default:
		pg.pump(-1)
	}
	if pg.breaks > 0 && len(st.queue) > pg.breaks {
		pg.cut(pg.breaks)
		pg.breaks = 0
	}
	return st, nil
}

func (s *simSource) WaitFree(ctx context.Context, tick func(*replication.Slot)) error {
	p, w := s.p, s.p.w
	for {
		if err := p.call("look whether the slot is free"); err != nil {
			return err
		}
		slot, down := w.pg.slot(), w.pg.down
		w.mu.Unlock()
		if down {
			return unavailable("look at the slot", errors.New("connection refused"))
		}
		tick(slot)
		if !slot.Active {
			return nil
		}
		p.spend(ctx, waitFree, 1000)
		p.spendAll(ctx, waitFree, time.Second)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

func (s *simSource) Look(ctx context.Context) (*replication.Slot, error) {
	p := s.p
	p.spend(ctx, lookAtSlot, 2*time.Millisecond)
	if ctx.Err() != nil {
		return nil, unavailable("connect to Postgres", ctx.Err())
	}
	if err := p.call("look at the slot"); err != nil {
		return nil, err
	}
	defer p.w.mu.Unlock()
	if p.w.pg.down {
		return nil, unavailable("connect to Postgres", errors.New("connection refused"))
	}
	return p.w.pg.slot(), nil
}
