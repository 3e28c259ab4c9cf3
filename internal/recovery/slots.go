package recovery

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/internal/advice"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/human"
	"github.com/outboxcdc/outboxcdc/replication"
)

// state is what is there: the slots, and what the position record says about them.
type state struct {
	daemon, recovery *replication.Slot // nil: there is none
	verdict
}

// usable reports whether the daemon's slot can be read.
func (s *state) usable() bool { return s.daemon != nil && !s.daemon.Lost() }

// base is the slot that has what the stream will deliver; nil: there is none yet. Where the daemon's slot can be
// read, that is it, and the recovery slot only keeps daemons away.
func (s *state) base() *replication.Slot {
	switch {
	case s.usable():
		return s.daemon
	case s.recovery != nil && !s.recovery.Lost():
		return s.recovery
	}
	return nil
}

// beside reports whether a daemon may stream from the slot meanwhile.
func (r *Recovery) beside() bool { return r.Beside && r.state.usable() }

// look reads the position record and then the slots, which may change at any time.
func (r *Recovery) look(ctx context.Context) (err error) {
	s := &state{}
	r.state = s
	if s.verdict, err = loadRecord(ctx, r.Server, r.Positions, r.Sources); err != nil {
		return fmt.Errorf("nothing was changed: %w", err)
	}
	if err = r.readSlots(ctx); err != nil {
		return err
	}
	switch {
	case s.recovery != nil && s.recovery.Name != r.RecoverySlot:
		return exit.With(exit.Fault, fmt.Errorf("another recovery of slot %s has not finished: slot %s exists; %s. To leave behind what that one has not delivered, "+
			"run outboxcdc slot adopt", r.Slot, s.recovery.Name, advice.RecoverAgain))
	case r.Backfill && s.recovery == nil && s.daemon != nil:
		return exit.With(exit.Fault, fmt.Errorf("slot %s exists: backfill creates it. To send rows that are older than an existing slot, use recover", r.Slot))
	case r.Backfill && s.recovery == nil && s.old != nil:
		return exit.With(exit.Fault, fmt.Errorf("slot %s has a position record, of %s: outboxcdc has delivered from it, and backfill is for before the first delivery. "+
			"To deliver what is missing, use recover", r.Slot, s.old.At.Format(time.RFC3339)))
	case s.usable() && s.daemon.Active && !r.Beside:
		return exit.With(exit.Fault, fmt.Errorf("%w, or give --beside", ActiveError(r.Slot, s.daemon)))
	}
	switch {
	case r.beside() || r.Positions == nil:
	case s.usable():
		err = s.judgeSlot(ctx, r.Server, s.daemon.ConfirmedFlush)
	default:
		_, err = s.readPublished(ctx, r.Server, s.publishedBefore())
	}
	if err != nil {
		return err
	}
	return r.checkServer(ctx)
}

// readSlots reads the slots. What a daemon has sent that had the slot just before may still arrive in Kafka.
func (r *Recovery) readSlots(ctx context.Context) (err error) {
	r.state.daemon, r.state.recovery, err = r.Server.Slots(ctx)
	r.began = time.Now()
	return err
}

// fence returns when nothing can arrive in Kafka any more that a daemon has sent which was killed before this run: it
// had its own settings.
func (r *Recovery) fence() time.Time {
	wait := r.FenceWait
	if r.state.old != nil {
		wait = max(wait, r.state.old.FenceWait)
	}
	return r.began.Add(wait)
}

// checkServer asks if the position record may be of a server that is in use elsewhere: what this run writes would
// stop the daemon there.
func (r *Recovery) checkServer(ctx context.Context) error {
	s := r.state
	if s.old == nil || r.ThisServer {
		return nil
	}
	other := s.old.OtherServer(s.identity)
	if other == "" && s.other != nil {
		other = s.other.Error()
	}
	if other == "" {
		return nil
	}
	r.Operator.Say("the position record of slot %s may be of another server, which is in use: %s", r.Slot, other)
	if r.DryRun {
		return nil
	}
	ok, err := r.Operator.Decide(ctx, "does this server replace that one, so that no daemon reads from that one any more?")
	if err == nil && !ok {
		err = exit.With(exit.Fault, errors.New("nothing was changed: if this is a copy, set delivery.position_topic and the topics of the events to others; "+
			"if this server replaces the other one, run the command again with --this-server"))
	}
	return err
}

// hold creates the recovery slot, and waits until every row that was committed before the slot's position is visible.
// It does not matter who has created the daemon's slot or moved it.
func (r *Recovery) hold(ctx context.Context) (err error) {
	s := r.state
	if r.DryRun {
		if s.base() == nil {
			r.Operator.Say("slot %s is %s and would be created: rows that are committed until then count as missing as well", r.Slot, problem(s.daemon))
		}
		return nil
	}
	if err := r.checkRoom(ctx); err != nil {
		return err
	}
	if !r.beside() {
		if err := r.createRecoverySlot(ctx); err != nil {
			return err
		}
	}
	if err := r.Server.AwaitVisible(ctx); err != nil {
		return err
	}
	if err = r.readSlots(ctx); err != nil {
		return err
	}
	switch {
	case r.beside():
	case s.recovery == nil || s.base() == nil:
		err = fmt.Errorf("slot %s was created and is gone again", r.RecoverySlot)
	case s.base().ConfirmedFlush == 0:
		err = exit.With(exit.Unavailable, fmt.Errorf("slot %s is still being created, by a command that was interrupted or runs elsewhere: "+
			"end PID %d of the server, or wait, then run the command again", s.base().Name, s.base().ActivePID))
	case s.usable() && s.daemon.Active: // a daemon that began before the recovery slot existed
		err = exit.With(exit.Fault, ActiveError(r.Slot, s.daemon))
	case s.usable() && s.daemon.Failover && !s.recovery.Failover: // after a failover, too, no daemon starts
		err = r.Server.SetFailover(ctx, true)
		s.recovery.Failover = err == nil
	}
	return err
}

// checkRoom returns an error if the server has no room for the slots of this run: the recovery slot, and a copy of a
// slot, which is read, or the daemon's. Nothing was changed yet.
func (r *Recovery) checkRoom(ctx context.Context) error {
	needed := 1
	if !r.beside() && r.state.recovery == nil {
		needed++
	}
	most, free, err := r.Server.FreeSlots(ctx)
	if err == nil && free < needed {
		err = exit.With(exit.Fault, fmt.Errorf("nothing was changed: this needs %s for a time, and %d of %d are free (max_replication_slots): drop a slot that no client needs "+
			"(pg_replication_slots), or raise max_replication_slots and restart the server, then run the command again", human.Count(needed, "replication slot", "replication slots"), free, most))
	}
	return err
}

// noteSign says that a failover takes away the sign that this run has not finished, if it does.
func (r *Recovery) noteSign() {
	if s := r.state; s.recovery != nil && !s.recovery.Failover && !r.DryRun && !r.beside() {
		r.Operator.Say("slot %s keeps the daemon away until a run has finished. Standbys do not copy it: after a failover, run this command before the daemon starts", r.RecoverySlot)
	}
}

func (r *Recovery) createRecoverySlot(ctx context.Context) error {
	s, name := r.state, r.RecoverySlot
	switch {
	case s.recovery != nil && (s.usable() || !s.recovery.Lost()): // where the daemon's slot can be read, this one only keeps daemons away
		r.Operator.Say("continuing the recovery that has slot %s", name)
		return nil
	case s.recovery != nil:
		r.Operator.Say("slot %s, of a recovery that has not finished, is lost: it is created again", name)
		if err := r.Server.DropRecoverySlot(ctx); err != nil {
			return err
		}
	case s.daemon != nil && s.daemon.Lost():
		ok, err := r.Operator.Ask(ctx, fmt.Sprintf("slot %s is lost: create it again?", r.Slot))
		if err != nil {
			return err
		}
		if !ok {
			return exit.With(exit.Fault, errors.New("nothing was changed"))
		}
	}
	if !s.usable() {
		r.Operator.Say("slot %s is %s: creating slot %s, which waits for the transactions that are open now", r.Slot, problem(s.daemon), name)
	}
	if err := r.Server.CreateRecoverySlot(ctx, s.usable()); err != nil {
		return err
	}
	r.created = s.recovery == nil // otherwise the sign of a run that has not finished was there before
	return nil
}

func problem(s *replication.Slot) string {
	if s == nil {
		return "missing"
	}
	return "lost"
}

// undo drops the recovery slot that this run has created, when it ends without having sent or recorded anything: then
// everything is as before.
func (r *Recovery) undo(ctx context.Context) error {
	if !r.created {
		return nil
	}
	r.created = false
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := r.Server.DropRecoverySlot(ctx); err != nil {
		return fmt.Errorf("drop slot %s again: %w", r.RecoverySlot, err)
	}
	r.state.recovery = nil
	r.Operator.Say("slot %s dropped again", r.RecoverySlot)
	return nil
}

// finish records that nothing is missing, and lets the daemon start.
func (r *Recovery) finish(ctx context.Context) error {
	if r.beside() {
		return nil
	}
	if r.part() {
		return r.finishPart(ctx)
	}
	s := r.state
	record, err := r.recordToWrite()
	if err != nil {
		return err
	}
	if err := stillThere(ctx, r.Server, r.Slot, s); err != nil {
		return err
	}
	r.created = false // what is recorded from here on rests on it
	if record != nil {
		if err := r.Positions.Save(ctx, *record); err != nil {
			return fmt.Errorf("write the position record: %w", err)
		}
		r.Operator.Say("position record written: the daemon continues at %s", record.Confirm)
	}
	at := s.base().ConfirmedFlush
	if err := release(ctx, r.Server, s); err != nil {
		return err
	}
	r.Operator.Say("slot %s is at %s\nstart the daemon: outboxcdc run", r.Slot, at)
	return nil
}

// finishPart ends a run for some rows. Other rows may be missing, so nothing says that the daemon may go on.
func (r *Recovery) finishPart(ctx context.Context) error {
	s := r.state
	marker := s.usable() && r.created // the recovery slot only kept daemons away
	if marker {
		if err := r.undo(ctx); err != nil {
			return err
		}
	}
	r.Operator.Say("only rows of --since, --until or --where were compared: others may be missing as well")
	if !marker || s.wrong != nil || s.broken != nil {
		r.Operator.Say("the daemon will not start yet: run recover for all rows, or accept the position of the slot with \"outboxcdc slot adopt\"")
	}
	return nil
}

// recordToWrite returns the position record with which the daemon starts; nil: the daemon starts as it is.
func (r *Recovery) recordToWrite() (*checkpoint.PositionRecord, error) {
	s := r.state
	if r.Positions == nil || !s.adopts() {
		return nil, nil
	}
	if s.detached != "" {
		return nil, exit.With(exit.Fault, fmt.Errorf("%s; recover does not read that partition: attach it again and run recover, "+
			"or continue without its rows with outboxcdc slot adopt", s.detached))
	}
	record := s.adoption(r.Slot, s.base().ConfirmedFlush, time.Now())
	if s.old != nil && s.old.SystemID != record.SystemID { // the operator has said that this server replaces that one
		record.UpgradedFrom = s.old.SystemID
	}
	return &record, nil
}

// adopts reports whether the next session begins with a record of this run: the slot is a new one, or the daemon
// would stop.
func (s *state) adopts() bool { return !s.usable() || s.wrong != nil || s.broken != nil }

// release lets the daemon start: it creates the daemon's slot if there is none to be read, and drops the recovery slot.
func release(ctx context.Context, server Server, s *state) error {
	if !s.usable() {
		if err := server.RestoreSlot(ctx, s.daemon != nil); err != nil {
			return err
		}
	}
	if s.recovery == nil {
		return nil
	}
	// The recovery slot has the property that the daemon's slot is to have. A run that was killed may have created that
	// one without it.
	if s.recovery.Failover && !(s.usable() && s.daemon.Failover) {
		if err := server.SetFailover(ctx, false); err != nil {
			return err
		}
	}
	err := server.DropRecoverySlot(ctx)
	if err == nil {
		s.recovery = nil
	}
	return err
}

// stillThere returns an error if the slot was moved, or is in use, since it was read: then what was compared does not
// hold.
func stillThere(ctx context.Context, server Server, name string, s *state) error {
	now := &state{}
	var err error
	if now.daemon, now.recovery, err = server.Slots(ctx); err != nil {
		return fmt.Errorf("read slot %s once more: %w", name, err)
	}
	was, is := s.base(), now.base()
	switch {
	case is == nil || now.usable() != s.usable():
		err = fmt.Errorf("slot %s was dropped, created or lost meanwhile", name)
	case is.Active:
		err = ActiveError(name, is)
	case is.ConfirmedFlush != was.ConfirmedFlush:
		err = fmt.Errorf("slot %s was moved to %s meanwhile", name, is.ConfirmedFlush)
	default:
		return nil
	}
	return exit.With(exit.Fault, fmt.Errorf("the slot was in use: %w; run this again", err))
}

// ActiveError says which client holds the slot.
func ActiveError(name string, slot *replication.Slot) error {
	return fmt.Errorf("slot %s is active for PID %d (application %q); stop that client first", name, slot.ActivePID, slot.ActiveName)
}
