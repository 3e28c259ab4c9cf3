package recovery

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/outboxtable"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/router"
)

func (w *world) adopt(deduplicated bool) *Adoption {
	w.calls = nil
	a := &Adoption{Server: w, Slot: "slot", Topic: "positions", Sources: "s"}
	if deduplicated {
		a.Positions = w
	}
	return a
}

// TestAdoption runs `slot adopt` in every state that its steps tell apart.
func TestAdoption(t *testing.T) {
	moved := losses["the slot was moved"]
	upgrade := func(a *Adoption) { a.UpgradedFrom = 6 }
	upgraded := func(w *world) {
		w.saved[0].SystemID, w.saved[0].ServerMajor, w.saved[0].Confirm = 6, 17, 0x80
	}
	for _, c := range []struct {
		name       string
		once       bool
		given      func(*world)
		options    func(*Adoption)
		err        string
		code       int
		saved      int
		held       bool
		starts     bool
		unfinished bool
		wrong      bool
		epoch      uint32
	}{
		{name: "the daemon would start", starts: true, saved: 1, epoch: 4},
		{name: "the slot was moved", given: moved, starts: true, saved: 1, epoch: 4, wrong: true},
		{name: "dry run", given: moved, options: func(a *Adoption) { a.DryRun = true }, epoch: 4, wrong: true},
		{name: "no record", given: func(w *world) { w.saved = nil }, starts: true, saved: 1, epoch: 1},
		{name: "a broken record", given: func(w *world) { w.loadErr = &checkpoint.Unusable{Record: true, Err: errors.New("cut")} }, starts: true, saved: 1, epoch: 4},
		{name: "no broker", given: func(w *world) { w.loadErr = errors.New("no broker") }, err: "nothing was changed: no broker", code: exit.Fault, starts: true},
		{name: "the slot is missing", given: func(w *world) { w.daemon = nil }, err: "slot slot is missing: run outboxcdc recover", code: exit.Lost},
		{name: "the slot is lost", given: func(w *world) { w.daemon = lostSlot() }, err: "slot slot is lost: run outboxcdc recover", code: exit.Lost},
		{name: "the slot is active", given: func(w *world) { w.daemon.Active = true }, err: "is active for PID", code: exit.Fault, starts: true},
		{name: "at least once", once: true, err: "nothing to adopt", code: exit.Config, starts: true},
		{name: "at least once, a recovery has not finished", once: true, given: func(w *world) { w.recovery = slotAt(w.daemon.ConfirmedFlush) }, starts: true, unfinished: true},
		{name: "a recovery has not finished", given: losses["a recovery has not finished"], starts: true, saved: 1, unfinished: true, epoch: 4, wrong: true},
		{name: "its slot is lost", given: losses["a recovery has not finished, and its slot is lost"], err: "slot slot is missing", code: exit.Lost, held: true},
		{name: "the slot is lost, and a recovery has not finished", given: func(w *world) { w.daemon, w.recovery = lostSlot(), slotAt(w.end) }, starts: true, saved: 1, unfinished: true, epoch: 4, wrong: true},
		{
			name: "moved while it ran", given: func(w *world) { in(w, "Slots", 2, func() { w.daemon.ConfirmedFlush += 0x10 }) },
			err: "the position record is written, but the slot was in use: slot slot was moved", code: exit.Fault, saved: 1, epoch: 4,
		},
		{name: "active while it ran", given: func(w *world) { in(w, "Slots", 2, func() { w.daemon.Active = true }) }, err: "the slot was in use", code: exit.Fault, saved: 1, starts: true},
		{name: "moved while it ended a recovery", given: func(w *world) {
			losses["a recovery beside a slot that was moved"](w)
			in(w, "Slots", 2, func() { w.daemon.ConfirmedFlush += 0x10 })
		}, err: "was moved to", code: exit.Fault, saved: 1, held: true},
		{name: "pg_upgrade", given: upgraded, options: upgrade, saved: 1, starts: true, epoch: 4, wrong: true},
		{name: "pg_upgrade, no record", given: func(w *world) { w.saved = nil }, options: upgrade, err: "topic positions has no position record", code: exit.Fault, starts: true},
		{name: "pg_upgrade, a broken record", given: func(w *world) { w.loadErr = &checkpoint.Unusable{Record: true, Err: errors.New("cut")} }, options: upgrade, err: "cannot be read: cut", code: exit.Fault, starts: true},
		{name: "pg_upgrade, a recovery has not finished", given: func(w *world) { upgraded(w); w.recovery = slotAt(w.end) }, options: upgrade, err: "a recovery has not finished", code: exit.Fault, held: true},
		{name: "pg_upgrade of this server", options: func(a *Adoption) { a.UpgradedFrom = system }, err: "system 7", code: exit.Fault, starts: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := lose(t, !c.once, func(*world) {})
			if c.given != nil {
				c.given(w)
			}
			before := len(w.saved)
			a := w.adopt(!c.once)
			if c.options != nil {
				c.options(a)
			}
			out, err := a.Run(t.Context())
			if (err == nil) != (c.err == "") || err != nil && (!strings.Contains(err.Error(), c.err) || exit.Code(err) != c.code) {
				t.Errorf("error %v, exit status %d; want %q, %d", err, exit.Code(err), c.err, c.code)
			}
			if len(w.saved)-before != c.saved || (w.recovery != nil) != c.held || w.starts() != c.starts {
				t.Errorf("%d records, held %t, daemon starts %t; want %d, %t, %t", len(w.saved)-before, w.recovery != nil, w.starts(), c.saved, c.held, c.starts)
			}
			if err == nil && (out.Unfinished != c.unfinished || (out.Wrong != nil) != c.wrong || out.New.Epoch != c.epoch) {
				t.Errorf("%+v", out)
			}
		})
	}
}

// TestAdoptionCrashes fails each call of an adoption. It never makes a daemon start that has less than before, and a
// second adoption finishes.
func TestAdoptionCrashes(t *testing.T) {
	for _, state := range []string{"the slot was moved", "a recovery has not finished", "a recovery beside a slot that was moved"} {
		for at := 1; ; at++ {
			finished := false
			for mode := range 4 {
				w := lose(t, true, losses[state])
				w.crashAt, w.late, w.deadly = at, mode&1 > 0, mode&2 > 0
				_, err := w.adopt(true).Run(t.Context())
				if finished = len(w.calls) < at; finished {
					if err != nil || !w.starts() {
						t.Errorf("%s: %v", state, err)
					}
					break
				}
				where := fmt.Sprintf("%s, call %d (%s), late %t, dead %t", state, at, w.calls[at-1], w.late, w.deadly)
				if w.starts() && (w.daemon.ConfirmedFlush != w.rows[8].commit || !w.saved[len(w.saved)-1].Adopted) {
					t.Errorf("%s: a daemon starts", where)
				}
				w.crashAt, w.late = 0, false
				if _, err := w.adopt(true).Run(t.Context()); err != nil || !w.starts() || w.daemon.ConfirmedFlush != w.rows[8].commit {
					t.Errorf("%s: the second time: %v", where, err)
				}
			}
			if finished {
				break
			}
		}
	}
}

// TestReplay: what replay selects, refuses and sends.
func TestReplay(t *testing.T) {
	compact := func(w *world, r *Replay) {
		of := w.settings["order"]
		of.Compact = true
		w.settings["order"] = of
	}
	for _, c := range []struct {
		name   string
		given  func(*world, *Replay)
		n      int
		err    string
		sent   string
		poison int64
	}{
		{name: "all rows", n: 3, sent: "0 1 2"},
		{name: "one row", given: func(_ *world, r *Replay) { r.Tables[0].Range.Where = "1" }, n: 1, sent: "1"},
		{name: "no row", given: func(_ *world, r *Replay) { r.Tables[0].Range.Where = "9" }, err: "no row is selected"},
		{name: "as many as are allowed", given: func(_ *world, r *Replay) { r.AtMost = 3 }, n: 3, sent: "0 1 2"},
		{name: "more than are allowed", given: func(_ *world, r *Replay) { r.AtMost = 2 }, n: 3, err: "need --yes"},
		{name: "a compacted topic", given: compact, n: 3, err: "is compacted"},
		{name: "settings that may not be read", given: func(w *world, _ *Replay) { w.settings = nil }, n: 3, err: "may be compacted"},
		{name: "a compacted topic, wanted", given: func(w *world, r *Replay) { compact(w, r); r.Compacted = true }, n: 3, sent: "0 1 2"},
		{name: "a compacted topic, to another", given: func(w *world, r *Replay) { compact(w, r); r.Topic = "again" }, n: 3, sent: "0 1 2"},
		{name: "dry run", given: func(_ *world, r *Replay) { r.DryRun = true }, n: 3},
		{name: "a row that is poison", given: func(w *world, _ *Replay) { w.rows[1].key = "" }, n: 3, sent: "0 2", poison: 1},
		{name: "the rows cannot be read", given: func(w *world, _ *Replay) { w.crashAt = 2 }, err: "crash"},
		{name: "the topics cannot be read", given: func(w *world, _ *Replay) { w.crashAt = 3 }, n: 3, err: "crash"},
		{name: "Kafka cannot be reached", given: func(w *world, _ *Replay) { w.refused = errors.New("no broker") }, n: 3, err: "no broker"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.commit(3)
			selected := 0
			r := &Replay{
				Kafka: w, Router: w.recover(false).Router, Poison: &relay.PoisonPolicies{Policy: relay.StopAtPoison}, Tables: []Table{{}}, Run: "run",
				Open: func() Sender { return producer{w} }, Operator: operator{w}, From: "7:5",
				Selected: func(*router.Record, *outboxtable.Row, *router.Poison) error { selected++; return nil },
			}
			if c.given != nil {
				c.given(w, r)
			}
			var err error
			if r.Snapshot, _, err = w.Snapshot(context.Background()); err != nil {
				t.Fatal(err)
			}
			n, sent, err := r.Deliver(t.Context())
			if n != c.n || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("%d selected, %v; want %d, %q", n, err, c.n, c.err)
			}
			var ids []string
			for _, rec := range w.log {
				ids = append(ids, string(rec.Headers[0].Value))
				if len(rec.Headers) != 3 || rec.Headers[1].Name != "outboxcdc-replayed" || string(rec.Headers[2].Value) != "7:5" || rec.Headers[2].Name != router.HeaderOrigin {
					t.Errorf("headers %v", rec.Headers)
				}
			}
			if got := strings.Join(ids, " "); got != c.sent || sent.Records != int64(len(ids)) || sent.Poisoned != c.poison {
				t.Errorf("sent %q, %+v; want %q", got, sent, c.sent)
			}
			if r.DryRun != (selected > 0) {
				t.Errorf("%d were shown", selected)
			}
		})
	}
}
